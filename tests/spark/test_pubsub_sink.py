"""The sink pubsub against Google's emulator, epoch by epoch, without a pipeline around it."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pyarrow as pa
import pytest
from google.pubsub_v1.types import PubsubMessage
from pydantic import ValidationError
from pyspark.errors import PySparkException

from slackwater.endpoint import EndpointError, plaintext
from slackwater.spark_sink.envelopes.registry import envelopes
from slackwater.spark_sink.errors import (
    MessageRefusedError,
    NotPermittedError,
    PublishError,
    TableNameError,
)
from slackwater.spark_sink.pubsub import service
from slackwater.spark_sink.pubsub.publisher import Publisher
from slackwater.spark_sink.sinks.pubsub import PubSubSettings
from tests.support.epoch_rows import frame
from tests.support.grpc_servers import answering
from tests.support.pubsub import PROJECT, PubSubEmulator
from tests.support.pubsub import pubsub as pubsub
from tests.support.pubsub_output import AT, Output, change
from tests.support.pubsub_output import output as output

pytestmark = pytest.mark.timeout(300)
_NUMBERS = itertools.count(1)
_LOST_ANSWERS = (None, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL)


def new_topic(pubsub: PubSubEmulator) -> str:
    topic = f"changes-{next(_NUMBERS)}"
    pubsub.create(topic)
    return topic


def uuids(messages: list[PubsubMessage]) -> list[str]:
    return [message.attributes["uuid"] for message in messages]


@pytest.mark.parametrize("ordering", ["key", "table", "none"])
def test_messages_come_in_order_and_a_replay_repeats_their_uuids(
    ordering: str, output: Output, pubsub: PubSubEmulator
) -> None:
    topic = new_topic(pubsub)
    records = [
        change(
            at % 5, at=at, table=f"T{at % 2}", note=str(at), kind="INSERT" if at < 5 else "UPDATE"
        )
        for at in range(200)
    ]
    # Few in a request, so that an ordering key has several.
    settings = {"topic": topic, "ordering": ordering, "batch_messages": 7}
    output.write(output.sink(**settings, compression=True), 1, *records)
    first = pubsub.pull(topic)
    # Another process, which does not know that the epoch was sent.
    output.write(output.sink(**settings), 1, *records)
    again = pubsub.pull(topic)
    assert len(set(uuids(first))) == len(first) == 200
    assert sorted(uuids(first)) == sorted(uuids(again))
    for messages in (first, again):
        for group in groups(messages, ordering).values():
            assert group == sorted(group)
    message = first[0]
    assert json.loads(message.data)["after"].keys() == {"Id", "Note"}
    attributes = dict(message.attributes)
    assert attributes.keys() == {"table", "mod_type", "commit_timestamp", "low_watermark", "uuid"}
    assert attributes["commit_timestamp"].startswith("2026-01-31T09:00:00.000")
    assert attributes["low_watermark"] == "2026-01-31T09:00:00.000000Z"


def groups(messages: list[PubsubMessage], ordering: str) -> dict[Any, list[int]]:
    """Return the times of messages by what is delivered in order."""
    found: dict[Any, list[int]] = {}
    for message in messages:
        after = json.loads(message.data)["after"]
        table = message.attributes["table"]
        key = {"key": (table, after["Id"]), "table": table, "none": message.message_id}[ordering]
        found.setdefault(key, []).append(int(after["Note"]))
        expected = {"key": f'{table} ["{after["Id"]}"]', "table": table, "none": ""}[ordering]
        assert message.ordering_key.replace(f"[{after['Id']}]", f'["{after["Id"]}"]') == expected
    return found


@pytest.mark.parametrize("envelope", sorted(envelopes()))
def test_each_envelope_names_its_row_in_the_message(
    envelope: str, output: Output, pubsub: PubSubEmulator
) -> None:
    topic = new_topic(pubsub)
    sink = output.sink(topic=topic, envelope=envelope)
    output.write(sink, 1, change(7, at=1, note="n"), change(8, at=2, kind="DELETE"))
    inserted, deleted = sorted(pubsub.pull(topic), key=lambda m: m.attributes["commit_timestamp"])
    assert "7" in inserted.data.decode()
    assert "8" in deleted.data.decode()
    assert deleted.attributes["mod_type"] == "DELETE"


def test_each_table_has_a_topic_and_its_resolved_messages_follow(
    output: Output, pubsub: PubSubEmulator
) -> None:
    pubsub.create("own-Orders", "own-Customers", "own-Unwritten", "own-watermarks")
    sink = output.sink(topic="own-{table}", resolved="0s", watermarks_topic="own-watermarks")
    output.write(sink, 1, change(1, at=1), change(1, at=2, table="Customers"))
    output.write(sink, 2)
    for table in ("Orders", "Customers"):
        one, *resolved = pubsub.pull(f"own-{table}")
        assert one.attributes["table"] == table
        assert [m.attributes["low_watermark"] for m in resolved] == [
            "2026-01-31T09:00:01.000000Z",
            "2026-01-31T09:00:02.000000Z",
        ]
        assert all("resolved" in json.loads(m.data) for m in resolved)
    assert pubsub.pull("own-Unwritten") == []
    assert [json.loads(m.data)["epoch"] for m in pubsub.pull("own-watermarks")] == [1, 2]


def test_rows_of_a_scan_have_uuids_of_their_own_in_each_chunk(
    output: Output, pubsub: PubSubEmulator
) -> None:
    topic = new_topic(pubsub)
    sink = output.sink(topic=topic)

    def scanned(key: int) -> Any:
        row = list(change(key, at=0))
        row[1] = ""
        return tuple(row)

    sink.begin_scan(output.session, {})
    for chunk in (0, 0, 1):
        rows = frame(output.session, [scanned(10 * chunk + key) for key in range(3)])
        assert sink.add_scanned(rows, chunk, AT) == 3
    sink.end_scan(output.session, 6, AT)
    found = uuids(pubsub.pull(topic))
    assert (len(found), len(set(found))) == (9, 6)


def test_a_missing_topic_is_named_with_the_command_that_makes_it(
    output: Output, pubsub: PubSubEmulator
) -> None:
    del pubsub
    sink = output.sink(topic="nobodys")
    command = f"gcloud pubsub topics create nobodys --project {PROJECT}"
    with pytest.raises(PySparkException, match=f"Topic not found .*NOT_FOUND.*{command}"):
        output.write(sink, 1, change(1, at=1))
    values = {"checkpoint": "c", "project": PROJECT}
    with pytest.raises(MessageRefusedError, match="nobodys"):
        PubSubSettings.model_validate({**values, "topic": "nobodys"}).check()
    with pytest.raises(MessageRefusedError, match="Customers"):
        PubSubSettings.model_validate(values).check_tables({"Customers": ()})
    with pytest.raises(TableNameError, match="'T' can't be a topic"):
        PubSubSettings.model_validate(values).check_tables({"T": ()})


def test_records_of_messages_that_are_too_large_are_set_aside(
    output: Output, pubsub: PubSubEmulator
) -> None:
    pubsub.create("stops-Orders", "aside-Orders")
    large = change(1, at=2, note="x" * 10_000_001)
    records = [change(key, at=key) for key in range(2, 6)]
    refuses = output.sink(topic="stops-Orders")
    with pytest.raises(PySparkException, match="a message has more than 10 MB"):
        output.write(refuses, 1, *records, large)
    sink = output.sink(topic="aside-{table}", bad_records="dead_letter", resolved="0s")
    output.write(sink, 1, *records, large, change(9, at=9, table="Nowhere"))
    assert len(pubsub.pull("aside-Orders")) == 4 + 1, "and a resolved message"
    letters = output.dead_letters()
    assert sorted(letter["table_name"] for letter in letters) == ["Nowhere", "Orders"]


@contextmanager
def breaking(
    answers: list[grpc.StatusCode | None], behind: str, before: Callable[[], object] = lambda: None
) -> Iterator[str]:
    """Run a server before Pub/Sub's.

    Args:
        answers: to the next requests; None for its own. One of _LOST_ANSWERS comes after the
            request has arrived.
        behind: HOST:PORT of Pub/Sub's.
        before: called when a request has arrived.
    """
    with grpc.insecure_channel(behind) as channel:

        def answer(details: Any, request: bytes, context: grpc.ServicerContext) -> bytes:
            before()
            code = answers.pop(0) if answers else None
            if code not in _LOST_ANSWERS:
                context.abort(code, "refused")
            made: bytes = channel.unary_unary(details.method)(request)
            if code is not None:
                context.abort(code, "broken")
            return made

        with answering(answer) as host:
            yield host


def test_a_request_whose_answer_is_lost_is_sent_again_before_the_next(
    output: Output, pubsub: PubSubEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(pubsub)
    codes = [grpc.StatusCode.UNAVAILABLE, None, grpc.StatusCode.INTERNAL] * 5
    with breaking(codes, pubsub.host) as host:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", host)
        records = [change(1, at=at, note=str(at), kind="UPDATE") for at in range(40)]
        output.write(output.sink(topic=topic, batch_messages=5), 1, *records)
    messages = pubsub.pull(topic)
    assert len(messages) > 40
    once = list(dict.fromkeys(uuids(messages)))
    notes = {m.attributes["uuid"]: json.loads(m.data)["after"]["Note"] for m in messages}
    assert [notes[each] for each in once] == [str(at) for at in range(40)]


def test_a_tasks_requests_are_under_way_at_once(pubsub: PubSubEmulator) -> None:
    topic, together = new_topic(pubsub), threading.Barrier(4)
    row: dict[str, Any] = {
        "topic": topic,
        "table_name": "Orders",
        "value": "{}",
        "mod_type": "INSERT",
    }
    row |= dict.fromkeys(("server_transaction_id", "record_sequence", "uuid"), "")
    row |= {"commit_timestamp": AT, "low_watermark": AT, "number": 0, "row_hash": 0}
    rows = pa.RecordBatch.from_pylist([{**row, "key": f"[{key}]"} for key in range(100)])
    with breaking([], pubsub.host, lambda: together.wait(60)) as host:
        sender = Publisher(service.Service(PROJECT, plaintext(host)), "key", 4, 1_000, stops=True)
        [result] = sender([rows])
    assert result["topic"].to_pylist() == [topic] * 4
    assert len(pubsub.pull(topic)) == 100


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, NotPermittedError),
        (grpc.StatusCode.UNAUTHENTICATED, NotPermittedError),
        (grpc.StatusCode.INVALID_ARGUMENT, MessageRefusedError),
        # As gRPC makes of a proxy's 404.
        (grpc.StatusCode.UNIMPLEMENTED, PublishError),
        (grpc.StatusCode.FAILED_PRECONDITION, PublishError),
    ],
)
def test_only_pubsubs_own_refusals_are_for_good(
    code: grpc.StatusCode, expected: type[Exception], pubsub: PubSubEmulator
) -> None:
    topic = new_topic(pubsub)
    with breaking([code], pubsub.host) as host, pytest.raises(expected) as raised:
        service.Service(PROJECT, plaintext(host)).publish(
            topic, [PubsubMessage.pb(PubsubMessage())]
        )
    is_final = expected is MessageRefusedError
    assert getattr(raised.value, "user_error", False) is is_final


def test_another_endpoint_than_the_emulators_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"checkpoint": "c", "project": PROJECT, "endpoint": "us-east1-pubsub.googleapis.com"}
    settings = PubSubSettings.model_validate(values)
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:1")
    with pytest.raises(EndpointError, match=r"us-east1.*and PUBSUB_EMULATOR_HOST is 127"):
        settings.service()
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "http://127.0.0.1:1")
    with pytest.raises(EndpointError, match="PUBSUB_EMULATOR_HOST 'http"):
        settings.service()


def test_a_service_that_does_not_answer_is_the_worlds_fault(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_PATIENCE_S", 0.1)
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:1")
    with pytest.raises(PublishError, match=r"Pub/Sub at 127\.0\.0\.1:1: .*UNAVAILABLE"):
        PubSubSettings.model_validate(
            {"checkpoint": "c", "project": PROJECT, "topic": "orders"}
        ).check()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"endpoint": "https://us-east1-pubsub.googleapis.com"}, "is not HOST or HOST:PORT"),
        ({"ordering": "key", "envelope": "record"}, "an envelope whose messages have a key"),
        ({"ordering": "none", "topic": "a b"}, "must match|should match"),
        ({"format": "orc"}, "not a format of kind pubsub"),
    ],
)
def test_settings_that_can_not_be_are_refused(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        PubSubSettings.model_validate({"checkpoint": "c", "project": PROJECT, **settings})
