"""With strict, messages are those of Debezium's connector, field by field.

The connector's own classes made them (tests/support/debezium_connector.py).
"""

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from slackwater.spark_sink.avro.registry import SchemaRegistry
from slackwater.spark_sink.avro.schemas import TableSchema
from slackwater.spark_sink.connect.avro import AVRO_CONVERTER, avro_of_connect
from slackwater.spark_sink.connect.converter import Converter
from slackwater.spark_sink.connect.messages import ConnectMessages
from slackwater.spark_sink.connect.protobuf import PROTOBUF_CONVERTER, proto_name, proto_text
from slackwater.spark_sink.envelopes.debezium import Debezium
from slackwater.spark_sink.envelopes.envelope import EnvelopeOptions, table_topic
from slackwater.spark_sink.errors import ColumnNameError
from slackwater.spark_sink.sql.table_shape import TableShape
from tests.support.debezium_connector import (
    CASES,
    MESSAGES,
    Changes,
    all_messages,
    compact,
    without_clock,
)
from tests.support.kafka_messages import Decode, avro_decoder
from tests.support.protobuf_messages import protobuf_decoder, read_protobuf
from tests.support.row_changes import ORIGIN, WATERMARK_MS
from tests.support.row_changes import record as record_of
from tests.support.schema_registry import running_registry

EXPECTED = json.loads(MESSAGES.read_text())
TOPIC = f"{ORIGIN.pipeline}.{{table}}"
HEARTBEATS = f"__debezium-heartbeat.{ORIGIN.pipeline}"


PARTS = ("key", "value")
# The element of the array i that is not NULL.
_VALUES_I = 9_223_372_036_854_775_807


def strict_envelope(changes: Changes, *, schemas_enable: bool) -> Debezium:
    options = EnvelopeOptions(
        ORIGIN,
        tombstones=True,
        schemas_enable=schemas_enable,
        strict=True,
        shapes=changes.shapes,
    )
    return Debezium(options)


def ours(changes: Changes) -> Iterator[dict[str, Any]]:
    envelope = strict_envelope(changes, schemas_enable=True)
    for record in changes.records:
        for message in envelope.messages(record):
            topic = table_topic(TOPIC, message.table or "")
            yield read(topic, message.key, message.value, envelope.headers(record))
    beat = envelope.heartbeat("partition_token").as_json()
    yield read(HEARTBEATS, beat.key, beat.value, {})
    for table in changes.shapes:
        resolved = envelope.resolved(WATERMARK_MS * 1_000_000, table).as_json()
        topic = table_topic(TOPIC, table)
        yield read(topic, resolved.key, resolved.value, envelope.headers(None))


def read(
    topic: str, key: str | None, value: str | None, headers: Mapping[str, str]
) -> dict[str, Any]:
    parts = {"key": key and json.loads(key), "value": value and json.loads(value)}
    schemas = {name: message and message["schema"] for name, message in parts.items()}
    in_avro = {f"avro_{name}": s and avro_of_connect(s) for name, s in schemas.items()}
    in_protobuf = {
        f"protobuf_{name}": schema and {"schema": proto_text(schema)}
        for name, schema in schemas.items()
    }
    # Kafka Connect's task adds this one as it takes a message from the queue.
    of_connector = headers.keys() - {"pollAtTimestamp"}
    return {**parts, **in_avro, **in_protobuf, "topic": topic, "headers": of_connector}


def in_order(messages: Iterable[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the messages of each topic as texts, in their order."""
    by_topic: dict[str, list[str]] = {}
    for message in messages:
        plain = {name: message[name] for name in ("key", "value", "headers")}
        by_topic.setdefault(message["topic"], []).append(json.dumps(plain, sort_keys=True))
    return sorted(by_topic.items())


@pytest.mark.parametrize("case", CASES)
def test_messages_are_the_connectors(case: str) -> None:
    made = compact(ours(CASES[case]))
    assert in_order(made["messages"]) == in_order(EXPECTED[case]["messages"])
    assert made["schemas"] == EXPECTED[case]["schemas"]


@contextmanager
def registered(
    envelope: Debezium, converter: Converter
) -> Iterator[tuple[ConnectMessages, Decode]]:
    """Yield a maker of messages, and what reads them by the schemas that it registers."""
    with running_registry() as (registry, url):
        decoder = avro_decoder if converter is AVRO_CONVERTER else protobuf_decoder
        messages = ConnectMessages(envelope, SchemaRegistry(url), converter)
        yield messages, decoder(registry.schemas)


def encoded(
    messages: ConnectMessages, record: Mapping[str, Any]
) -> Iterator[tuple[bytes | None, bytes | None]]:
    topic = table_topic(TOPIC, record["table_name"])
    table_schema = TableSchema.of(topic, record["table_name"], record["column_types"])
    return messages.encoder({table_schema}).messages(record, topic)


@pytest.mark.parametrize("case", CASES)
def test_messages_in_avro_say_what_those_in_json_do(case: str) -> None:
    changes = CASES[case]
    envelope = strict_envelope(changes, schemas_enable=False)
    with registered(envelope, AVRO_CONVERTER) as (messages, decode):
        for record in changes.records:
            for parts, message in zip(
                encoded(messages, record), envelope.messages(record), strict=True
            ):
                read_back = [data and plain(decode(data)) for data in parts]
                texts = [text and json.loads(text) for text in (message.key, message.value)]
                assert without_clock(dict(zip(PARTS, read_back, strict=True))) == without_clock(
                    dict(zip(PARTS, texts, strict=True))
                )


@pytest.mark.parametrize("case", CASES)
def test_messages_in_protobuf_are_those_of_confluents_converter(case: str) -> None:
    changes = CASES[case]
    envelope = strict_envelope(changes, schemas_enable=False)
    made: dict[str, list[dict[str, Any]]] = {}
    with registered(envelope, PROTOBUF_CONVERTER) as (messages, decode):
        for record in changes.records:
            for parts in encoded(messages, record):
                key, value = (data and decode(data) for data in parts)
                topic = table_topic(TOPIC, record["table_name"])
                made.setdefault(topic, []).append({"key": key, "value": value})
        for table in changes.shapes:
            topic = table_topic(TOPIC, table)
            body = envelope.resolved(WATERMARK_MS * 1_000_000, table)
            watermark = decode(messages.resolved(topic, body.value, table))
            made[topic].append({"key": None, "value": watermark})
        beat = [*map(decode, messages.heartbeat("beats", envelope.heartbeat("token")))]
    assert beat[0] == {"partitionToken": "token"}
    assert beat[1]["ts_ms"]
    for topic, ours_of_topic in made.items():
        schemas = EXPECTED[case]["schemas"][topic]
        theirs = [m for m in EXPECTED[case]["messages"] if m["topic"] == topic]
        for message, converted in zip(ours_of_topic, theirs, strict=True):
            if converted["value"] and converted["protobuf"]["value"] is None:
                # The converter ends at a NULL in an array.
                assert message["value"]["after"]["i"] == [_VALUES_I, 0]
                continue
            read_back = {
                part: data and read_protobuf(schemas[f"{part} in Protobuf"], bytes.fromhex(data))
                for part, data in converted["protobuf"].items()
            }
            assert without_clock(plain(message)) == without_clock(plain(read_back))


def test_a_name_that_protobuf_has_no_place_for_is_the_one_that_the_converter_makes() -> None:
    """With scrub.invalid.names: what its doScrubName returned."""
    assert [*map(proto_name, ["Id", "_a", "1a", "a b-c", "größe", "_ a", "~", "-a"])] == [
        *("Id", "_a", "x1a", "a_b_c", "gr_C3_B6_C3_9Fe", "x__a", "_7E", "_a")
    ]
    empty = {"type": "struct", "name": "my-shop.Users.Key", "fields": []}
    assert proto_text(empty) == 'syntax = "proto3";\npackage my_shop.Users;\n\nmessage Key {}\n'


def test_columns_that_would_have_one_name_are_refused_before_a_schema_is_registered() -> None:
    types = {"id": "INT64", "a-b": "INT64", "a_b": "INT64"}
    shapes = {"T": TableShape(("id",), types)}
    envelope = Debezium(EnvelopeOptions(ORIGIN, strict=True, shapes=shapes))
    row = dict.fromkeys(types, 1)
    with running_registry() as (registry, url):
        messages = ConnectMessages(envelope, SchemaRegistry(url), PROTOBUF_CONVERTER)
        with pytest.raises(ColumnNameError, match="'a-b' and 'a_b' of table T have one name"):
            list(encoded(messages, record_of("T", types, ["id"], None, row)))
    assert not registry.schemas


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    match value:
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case list():
            return [plain(item) for item in value]
        case bytes():
            return base64.b64encode(value).decode()
        case float() if not math.isfinite(value):
            return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        case float():
            # A float has some seven digits.
            return float(f"{value:.7g}")
    return value


def test_columns_whose_names_protobufs_json_would_not_tell_apart_are_written() -> None:
    kept = {"user_id": 1, "userId": 2}
    types = dict.fromkeys(kept, "INT64")
    envelope = Debezium(
        EnvelopeOptions(ORIGIN, strict=True, shapes={"T": TableShape(("user_id",), types)})
    )
    with registered(envelope, PROTOBUF_CONVERTER) as (messages, _):
        ((_, value),) = encoded(messages, record_of("T", types, ["user_id"], None, kept))
    # The row: four bytes, number 1 has 1, number 2 has 2. protoc itself takes no such schema.
    assert b"\x12\x04\x08\x01\x10\x02" in (value or b"")


@pytest.mark.long
def test_the_connector_makes_these_messages() -> None:
    assert all_messages() == without_protobuf(EXPECTED)


def without_protobuf(expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is made without Confluent's converter, which has to be built."""
    return {
        case: {
            "schemas": {
                topic: {part: s for part, s in of_topic.items() if "Protobuf" not in part}
                for topic, of_topic in made["schemas"].items()
            },
            "messages": [
                {part: m for part, m in message.items() if part != "protobuf"}
                for message in made["messages"]
            ],
        }
        for case, made in expected.items()
    }


def test_a_table_that_was_made_again_with_another_key_has_that_of_each_record() -> None:
    changes = CASES["googlesql"]
    other = replace(changes, shapes={"Users": TableShape(("email",), {"email": "STRING(9)"})})
    record = changes.records[0]
    for envelope in (
        strict_envelope(other, schemas_enable=False),
        Debezium(EnvelopeOptions(ORIGIN, strict=True)),
    ):
        with registered(envelope, AVRO_CONVERTER) as (messages, decode):
            ((key, _),) = encoded(messages, record)
            assert decode(key or b"") == {"id": 1}
