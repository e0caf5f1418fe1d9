"""Topics with schemas: messages in Avro by the topic's schema, or what is wrong and what to do.

Google's emulator takes and refuses messages by Apache Avro's own library.
"""

import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from google.iam.v1 import iam_policy_pb2  # type: ignore[import-untyped]
from google.pubsub_v1.types import PubsubMessage
from pydantic import ValidationError

from slackwater.own_error import OwnError
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.spark_sink.avro.schemas import TableSchema
from slackwater.spark_sink.envelopes.envelope import Origin
from slackwater.spark_sink.envelopes.registry import envelopes
from slackwater.spark_sink.errors import (
    MessageRefusedError,
    NotPermittedError,
    PartialRowError,
    SchemaRefusedError,
)
from slackwater.spark_sink.pubsub import topic_messages
from slackwater.spark_sink.pubsub.topic_messages import TopicMessages
from slackwater.spark_sink.sinks.pubsub import PubSubSettings
from slackwater.spark_sink.sql.columns import Column
from slackwater.testing.emulator_database import update_ddl
from slackwater.timestamp import format_rfc3339
from tests.spark.test_avro import same
from tests.support import mixed_load, services
from tests.support.command_line import slackwater
from tests.support.emulators import NewDatabase
from tests.support.grpc_servers import answering
from tests.support.mixed_load import MixedLoad
from tests.support.pubsub import PROJECT, PubSubEmulator
from tests.support.pubsub import pubsub as pubsub
from tests.support.pubsub_output import COLUMNS, Output, change
from tests.support.pubsub_output import output as output
from tests.support.table_rows import spanner_rows
from tests.unit.spark_sink.test_envelopes import record

pytestmark = pytest.mark.timeout(300)
WIDER = {**COLUMNS, "Sum": "NUMERIC"}
ENCODINGS = pytest.mark.parametrize("encoding", ["BINARY", "JSON"])
_NUMBERS = itertools.count(1)
_ADDED_COLUMN = {
    Dialect.GOOGLE_STANDARD_SQL: f"ALTER TABLE {mixed_load.ALBUMS} ADD COLUMN Score FLOAT64",
    Dialect.POSTGRESQL: f'ALTER TABLE "{mixed_load.ALBUMS}" ADD COLUMN "Score" float8',
}


def settings_of(**values: Any) -> PubSubSettings:
    return PubSubSettings.model_validate(
        {"checkpoint": "c", "project": PROJECT, "format": "avro", **values}
    )


def columns_of(types: Mapping[str, str]) -> dict[str, list[Column]]:
    return {"Orders": [Column(name, kind, name == "Id") for name, kind in types.items()]}


def commands_of(error: OwnError) -> str:
    """Return the commands that a hint ends with."""
    return error.hint[error.hint.index("gcloud") :]


def definition_of(error: OwnError) -> str:
    [definition] = (w for w in shlex.split(error.hint) if w.startswith("--definition="))
    return definition.partition("=")[2]


def changes_and_resolved(
    messages: Iterable[PubsubMessage],
) -> tuple[list[PubsubMessage], list[PubsubMessage]]:
    """Return the messages of changes, in the order of commit, and the resolved ones."""
    by_time = sorted(messages, key=lambda m: m.attributes.get("commit_timestamp", ""))
    is_change = [(message, "uuid" in message.attributes) for message in by_time]
    return [m for m, yes in is_change if yes], [m for m, yes in is_change if not yes]


def new_topic(
    pubsub: PubSubEmulator,
    encoding: str = "BINARY",
    columns: Mapping[str, str] = COLUMNS,
    **settings: Any,
) -> tuple[str, dict[str, Any]]:
    """Create the topic of a table Orders; return its name, and the settings of its sink."""
    values = {"format": "avro", "topic": f"avro-{next(_NUMBERS)}-{{table}}", **settings}
    with pytest.raises(MessageRefusedError) as missing:
        settings_of(**values).check_tables(columns_of(columns))
    topic = values["topic"].replace("{table}", "Orders")
    pubsub.create_with_schema(topic, definition_of(missing.value), encoding)
    settings_of(**values).check_tables(columns_of(columns))
    return topic, values


@ENCODINGS
def test_messages_are_of_the_topics_schema_in_its_encoding(
    encoding: str, output: Output, pubsub: PubSubEmulator
) -> None:
    topic, values = new_topic(pubsub, encoding, resolved="0s")
    records = [change(1, at=1, note="é"), change(1, at=2, kind="DELETE")]
    output.write(output.sink(**values), 1, *records)
    first, [resolved] = changes_and_resolved(pubsub.pull(topic))
    assert [pubsub.decoded(message) for message in first] == [
        {"after": {"Id": 1, "Note": "é"}, "key": {"Id": 1}, "resolved": None},
        {"after": None, "key": {"Id": 1}, "resolved": None},
    ]
    assert pubsub.decoded(resolved)["resolved"] == "1769850001000000000.0000000000"
    for message in first:
        assert message.attributes["table"] == "Orders"
        assert message.attributes["googclient_schemaencoding"] == encoding
        assert message.ordering_key == 'Orders {"Id": "1"}'
    # Another process, which does not know that the epoch was sent.
    output.write(output.sink(**values), 1, *records)
    again, _ = changes_and_resolved(pubsub.pull(topic))
    assert {(m.attributes["uuid"], m.data) for m in again} == {
        (m.attributes["uuid"], m.data) for m in first
    }


@ENCODINGS
@pytest.mark.parametrize("envelope", sorted(envelopes()))
def test_each_envelope_makes_messages_that_pubsub_takes(
    envelope: str, encoding: str, pubsub: PubSubEmulator
) -> None:
    topic, values = new_topic(pubsub, encoding, envelope=envelope)
    settings, origin = settings_of(**values), Origin("orders", "p", "i", "d", "Everything")
    avro = TopicMessages(settings.make_envelope(origin), settings.service())
    columns = [
        {"name": name, "type": kind, "is_primary_key": name == "Id", "ordinal_position": place}
        for place, (name, kind) in enumerate(
            {"Id": '{"code":"INT64"}', "Note": '{"code":"STRING"}'}.items(), 1
        )
    ]
    mod = {"keys": '{"Id":"7"}', "new_values": '{"Note":"n"}', "old_values": "{}"}
    records = [
        record(kind, mod, table_name="Orders", column_types=columns, value_capture_type="NEW_ROW")
        for kind in ("INSERT", "DELETE")
    ]
    encoder = avro.encoder([TableSchema.of(topic, "Orders", columns)])
    data = [value for each in records for _, value in encoder.messages(each, topic)]
    data.append(avro.resolved(topic, avro.envelope.resolved(1).value))
    settings.service().publish(topic, [PubsubMessage.pb(PubsubMessage(data=d)) for d in data])
    inserted, deleted, resolved = map(pubsub.decoded, pubsub.pull(topic))
    assert "7" in str(inserted)
    assert "7" in str(deleted)
    assert "1.0000000000" in str(resolved)


def test_a_column_that_is_added_waits_for_a_revision_and_nothing_is_lost(
    output: Output, pubsub: PubSubEmulator, tmp_path: Path
) -> None:
    topic, values = new_topic(pubsub, resolved="0s", bad_records="dead_letter")
    records = [
        change(1, at=1, note="former"),
        change(2, at=2, columns=WIDER, Sum="2.5"),
    ]
    sink = output.sink(**values)
    with pytest.raises(
        SchemaRefusedError, match=r"schemas/avro-\d+-Orders lacks after.Sum\."
    ) as lacking:
        output.write(sink, 1, *records)
    assert (pubsub.pull(topic), output.dead_letters()) == ([], [])
    with pytest.raises(SchemaRefusedError, match=r"lacks after.Sum\.") as checked:
        settings_of(**values).check_tables(columns_of(WIDER))
    assert commands_of(checked.value) == commands_of(lacking.value)
    pubsub.run_commands(commands_of(lacking.value), tmp_path / "gcloud")
    output.write(sink, 1, *records)
    [former, latest], _ = changes_and_resolved(pubsub.pull(topic))
    # By the one revision: the bytes of another could be read by it, as something else.
    assert pubsub.definition(former) == pubsub.definition(latest)
    assert pubsub.decoded(former)["after"] == {"Id": 1, "Note": "former", "Sum": None}
    assert pubsub.decoded(latest)["after"] == {"Id": 2, "Note": "", "Sum": Decimal("2.5")}


def test_a_revision_that_is_committed_before_its_column_is_added_stops_nothing(
    output: Output, pubsub: PubSubEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, values = new_topic(pubsub)
    sink = output.sink(**values)
    output.write(sink, 1, change(1, at=1))
    with pytest.raises(SchemaRefusedError) as lacking:
        settings_of(**values).check_tables(columns_of(WIDER))
    revision = pubsub.commit(topic, definition_of(lacking.value))
    output.write(sink, 2, change(2, at=2))
    output.write(sink, 3, change(3, at=3, columns=WIDER, Sum="1"))
    # The column is dropped, and a minute over.
    monkeypatch.setattr(topic_messages, "_LOOK_S_MIN", 0)
    output.write(sink, 4, change(4, at=4))
    messages, _ = changes_and_resolved(pubsub.pull(topic))
    revisions = [m.attributes["googclient_schemarevisionid"] for m in messages]
    assert [each == revision for each in revisions] == [False, False, True, True]
    assert [pubsub.decoded(m)["after"]["Id"] for m in messages] == [1, 2, 3, 4]


def test_a_topic_that_takes_revisions_up_to_one_is_let_take_the_next(
    output: Output, pubsub: PubSubEmulator, tmp_path: Path
) -> None:
    topic, values = new_topic(pubsub)
    output.write(output.sink(**values), 1, change(1, at=1))
    [message] = pubsub.pull(topic)
    pinned = message.attributes["googclient_schemarevisionid"]
    pubsub.pin(topic, pinned)
    with pytest.raises(SchemaRefusedError) as lacking:
        settings_of(**values).check_tables(columns_of(WIDER))
    # A revision alone would not be one of the topic's.
    pubsub.commit(topic, definition_of(lacking.value))
    with pytest.raises(SchemaRefusedError, match=r"lacks after\.Sum"):
        settings_of(**values).check_tables(columns_of(WIDER))
    pubsub.run_commands(commands_of(lacking.value), tmp_path)
    settings_of(**values).check_tables(columns_of(WIDER))


@pytest.mark.parametrize(
    "state",
    [
        "no topic",
        "another schema",
        *(pytest.param(of, marks=pytest.mark.long) for of in ("no schema", "another type")),
    ],
)
def test_a_remedys_commands_let_a_topic_take_the_messages(
    state: str, output: Output, pubsub: PubSubEmulator, tmp_path: Path
) -> None:
    topic, values = f"remedy-{state.replace(' ', '-')}-Orders", {"format": "avro"}
    values["topic"] = topic.replace("Orders", "{table}")
    reason = "Topic not found"
    if state == "no schema":
        pubsub.create(topic)
        reason = "has no schema, which format avro needs"
    elif state == "another schema":
        pubsub.create_with_schema(topic, '{"type":"string"}', "JSON")
        reason = "does not fit the messages: the message is string, not record"
    elif state == "another type":
        with pytest.raises(MessageRefusedError) as missing:
            settings_of(**values).check_tables(columns_of({"Id": "STRING", "Note": "STRING"}))
        pubsub.create_with_schema(topic, definition_of(missing.value), "JSON")
        reason = "after.Id is null or string, not long; key.Id is null or string, not long"
    asking: list[Callable[[], None]] = [
        lambda: output.write(output.sink(**values), 1, change(1, at=1)),
        lambda: settings_of(**values).check_tables(columns_of(COLUMNS)),
    ]
    for refused in asking:
        with pytest.raises(OwnError, match=reason) as refusal:
            refused()
        assert refusal.value.user_error
    pubsub.run_commands(commands_of(refusal.value), tmp_path)
    settings_of(**values).check_tables(columns_of(COLUMNS))
    if state == "no topic":
        pubsub.subscribe(topic)
    output.write(output.sink(**values), 1, change(1, at=1))
    [message] = pubsub.pull(topic)
    assert pubsub.decoded(message)["after"] == {"Id": 1, "Note": ""}


def test_a_schema_that_was_deleted_is_named(output: Output, pubsub: PubSubEmulator) -> None:
    topic, values = new_topic(pubsub)
    pubsub.delete_schema(topic)
    with pytest.raises(SchemaRefusedError, match=r"schema \S+ was deleted\..*--clear-schema"):
        output.write(output.sink(**values), 1, change(1, at=1))


def test_records_of_messages_that_are_refused_or_have_no_topic_are_set_aside(
    output: Output, pubsub: PubSubEmulator
) -> None:
    columns = {**COLUMNS, "Rate": "FLOAT64"}
    topic, values = new_topic(pubsub, "JSON", columns, bad_records="dead_letter", resolved="0s")
    records = [
        change(1, at=1, columns=columns, Rate=1.5),
        # JSON has no such number.
        change(2, at=2, columns=columns, Rate="NaN"),
        change(3, at=3, table="Nowhere"),
    ]
    output.write(output.sink(**values), 1, *records)
    [one], _ = changes_and_resolved(pubsub.pull(topic))
    assert pubsub.decoded(one)["after"]["Rate"] == 1.5
    letters = output.dead_letters()
    assert sorted(letter["table_name"] for letter in letters) == ["Nowhere", "Orders"]


def test_json_for_a_topic_with_a_schema_is_refused_with_what_to_do(
    output: Output, pubsub: PubSubEmulator, tmp_path: Path
) -> None:
    topic, _ = new_topic(pubsub, "JSON")
    settings = settings_of(topic=topic, format="json")
    with pytest.raises(SchemaRefusedError, match=r"Set sink\.format to avro") as checked:
        settings.check()
    one_per_table = topic.replace("Orders", "{table}")
    with pytest.raises(SchemaRefusedError, match="and format json makes"):
        settings_of(topic=one_per_table, format="json").check_tables(columns_of(COLUMNS))
    with pytest.raises(SchemaRefusedError, match="and format json makes"):
        settings_of(watermarks_topic=topic).check()
    with pytest.raises(Exception, match=r"MessageRefusedError.*set sink\.format to avro"):
        output.write(output.sink(topic=topic), 1, change(1, at=1))
    aside = output.sink(topic=topic, bad_records="dead_letter")
    output.write(aside, 1, change(1, at=1))
    assert pubsub.pull(topic) == []
    assert [letter["table_name"] for letter in output.dead_letters()] == ["Orders"]
    pubsub.run_commands(commands_of(checked.value), tmp_path / "gcloud")
    settings.check()
    output.write(output.sink(topic=topic), 2, change(2, at=2))
    [message] = pubsub.pull(topic)
    assert json.loads(message.data)["after"]["Id"] == 2


def test_tables_share_a_topic_only_where_they_share_a_schema(
    output: Output, pubsub: PubSubEmulator
) -> None:
    with pytest.raises(ValidationError, match=r"a topic has one schema.*spanner-\{table\}"):
        settings_of(topic="changes")
    topic = f"shared-{next(_NUMBERS)}"
    values = {"format": "avro", "topic": topic, "envelope": "record"}
    with pytest.raises(MessageRefusedError) as missing:
        settings_of(**values).check_tables(columns_of(COLUMNS))
    pubsub.create_with_schema(topic, definition_of(missing.value), "BINARY")
    records = [change(1, at=1), change(2, at=2, table="Customers", columns=WIDER, Sum="1")]
    output.write(output.sink(**values), 1, *records)
    tables = [pubsub.decoded(message)["table_name"] for message in pubsub.pull(topic)]
    assert sorted(tables) == ["Customers", "Orders"]


def test_parts_of_rows_are_refused(output: Output, pubsub: PubSubEmulator) -> None:
    topic, values = new_topic(pubsub, envelope="flat")
    with pytest.raises(PartialRowError, match="in Avro a missing column looks like NULL"):
        output.write(output.sink(**values), 1, change(1, at=1, capture="NEW_VALUES"))
    assert pubsub.pull(topic) == []


@contextmanager
def publishers_only(behind: str) -> Iterator[str]:
    """Run a server before Pub/Sub's that lets its user publish, and look at nothing."""
    with grpc.insecure_channel(behind) as channel:

        def answer(details: Any, request: bytes, context: grpc.ServicerContext) -> bytes:
            if details.method.endswith(("/GetTopic", "/GetSchema")):
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "not yours")
            if details.method.endswith("/TestIamPermissions"):
                # The emulator has no such service.
                rights = ["pubsub.topics.publish"]
                may = iam_policy_pb2.TestIamPermissionsResponse(permissions=rights)
                return bytes(may.SerializeToString())
            made: bytes = channel.unary_unary(details.method)(request)
            return made

        with answering(answer) as host:
            yield host


def test_a_right_that_is_missing_is_named_with_its_role(
    output: Output, pubsub: PubSubEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, values = new_topic(pubsub)
    with publishers_only(pubsub.host) as host:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", host)
        role = f"Grant roles/pubsub.viewer on project {PROJECT}"
        with pytest.raises(NotPermittedError, match=role):
            output.write(output.sink(**values), 1, change(1, at=1))
        # Whoever sends JSON needs to look at no schema.
        pubsub.create(plain := f"plain-{next(_NUMBERS)}")
        settings_of(topic=plain, format="json").check()
    assert pubsub.pull(topic) == []


@pytest.mark.long
@pytest.mark.usefixtures("commands_here")
# PostgreSQL's types are in tests/unit/spark_sink/test_revisions.py.
@pytest.mark.parametrize(
    "dialect",
    Dialect,
    ids=str,
)
def test_topics_made_by_the_programs_own_commands_get_the_rows_of_all_types(
    dialect: Dialect, new_database: NewDatabase, pubsub: PubSubEmulator, tmp_path: Path
) -> None:
    statements = mixed_load.ddl(dialect, "NEW_ROW_AND_OLD_VALUES")
    stream = new_database(dialect, statements, mixed_load.CHANGE_STREAM)
    start_ns = Connection(stream).strong_read_timestamp_ns()
    values = services.settings(stream, tmp_path / "out", format_rfc3339(start_ns))
    prefix = f"rows-{next(_NUMBERS)}"
    values["sink"] = {
        "kind": "pubsub",
        "format": "avro",
        "project": PROJECT,
        "topic": f"{prefix}-{{table}}",
        "envelope": "flat",
        "checkpoint": str(tmp_path / "out" / "checkpoint"),
    }
    config = tmp_path / "slackwater.yaml"
    config.write_text(yaml.safe_dump(values))

    def until_permitted(*command: str) -> list[str]:
        """Run a command and what it prints, until it ends well; return what was run."""
        ran: list[str] = []
        while True:
            done = slackwater(command[0], "-c", str(config), *command[1:])
            if done.returncode == 0:
                return ran
            assert done.returncode == 2, done.stderr
            [remedy] = set(re.findall("gcloud pubsub schemas .*", done.stdout + done.stderr))
            assert remedy not in ran
            pubsub.run_commands(remedy, tmp_path / "gcloud")
            ran.append(remedy)

    assert len(until_permitted("check")) == len(mixed_load.TABLES)
    topics = {table: f"{prefix}-{table}" for table in mixed_load.TABLES}
    for topic in topics.values():
        pubsub.subscribe(topic)
    load = MixedLoad(stream, dialect, seed=5)
    for _ in range(40):
        load.transaction()
    assert until_permitted("run", "--until-caught-up") == []
    update_ddl(stream, [_ADDED_COLUMN[dialect]])
    for _ in range(40):
        load.transaction()
    [revision] = until_permitted("run", "--until-caught-up")
    assert revision.startswith(f"gcloud pubsub schemas commit projects/{PROJECT}/schemas/{prefix}-")
    for table, topic in topics.items():
        changes, _ = changes_and_resolved(pubsub.pull(topic))
        rows = {repr(value["key"]): value["after"] for value in map(pubsub.decoded, changes)}
        # Change streams do not watch generated columns.
        expected = [
            {name: value for name, value in row.items() if name != mixed_load.GENERATED}
            for row in spanner_rows(stream, dialect, table)
        ]
        left = [row for row in rows.values() if row is not None]
        assert left
        assert sorted(map(without_nulls, left)) == sorted(map(without_nulls, expected))


def without_nulls(row: dict[str, Any]) -> str:
    """Return a row as a text, without the column that was added when it was NULL."""
    return repr({name: value for name, value in same(row).items() if value is not None})
