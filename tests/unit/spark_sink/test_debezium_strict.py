"""With strict, messages are those of Debezium's connector, field by field.

The connector's own classes made them (tests/support/debezium_connector.py).
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import fastavro
import pytest

from slackwater.spark_sink.avro.connect import avro_of_connect
from slackwater.spark_sink.avro.schemas import TableSchema
from slackwater.spark_sink.avro.wire_format import (
    RegistryEncoder,
    SchemaIds,
    for_avro,
    parsed_schemas,
)
from slackwater.spark_sink.envelopes.debezium import Debezium
from slackwater.spark_sink.envelopes.envelope import EnvelopeOptions
from slackwater.spark_sink.envelopes.message import table_topic
from slackwater.spark_sink.sql.table_shape import TableShape
from tests.support.debezium_connector import (
    CASES,
    MESSAGES,
    Changes,
    all_messages,
    compact,
    without_clock,
)
from tests.support.row_changes import ORIGIN, WATERMARK_MS

EXPECTED = json.loads(MESSAGES.read_text())
TOPIC = f"{ORIGIN.pipeline}.{{table}}"
HEARTBEATS = f"__debezium-heartbeat.{ORIGIN.pipeline}"


PARTS = ("key", "value")


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
    in_avro = {
        f"avro_{name}": message and avro_of_connect(message["schema"])
        for name, message in parts.items()
    }
    # Kafka Connect's task adds this one as it takes a message from the queue.
    return {**parts, **in_avro, "topic": topic, "headers": headers.keys() - {"pollAtTimestamp"}}


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


@pytest.mark.parametrize("case", CASES)
def test_messages_in_avro_say_what_those_in_json_do(case: str) -> None:
    changes = CASES[case]
    envelope = for_avro(strict_envelope(changes, schemas_enable=False))
    in_json = strict_envelope(changes, schemas_enable=False)
    for record in changes.records:
        table_schema = TableSchema.of("t", record["table_name"], record["column_types"])
        encoder = RegistryEncoder(envelope, {table_schema: SchemaIds(1, 2)}, by_table=False)
        shape = envelope.options.shapes.get(record["table_name"])
        schemas = parsed_schemas(table_schema, False, envelope, shape)
        written = zip(encoder.messages(record, "t"), in_json.messages(record), strict=True)
        for parts, message in written:
            read_back = [
                data and plain(fastavro.schemaless_reader(io.BytesIO(data[5:]), schema, None))
                for data, schema in zip(parts, schemas, strict=True)
            ]
            texts = [text and json.loads(text) for text in (message.key, message.value)]
            assert without_clock(dict(zip(PARTS, read_back, strict=True))) == without_clock(
                dict(zip(PARTS, texts, strict=True))
            )


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


@pytest.mark.long
def test_the_connector_makes_these_messages() -> None:
    assert all_messages() == EXPECTED


def test_a_table_that_was_made_again_with_another_key_has_that_of_each_record() -> None:
    changes = CASES["googlesql"]
    other = replace(changes, shapes={"Users": TableShape(("email",), {"email": "STRING(9)"})})
    record = changes.records[0]
    for envelope in (
        strict_envelope(other, schemas_enable=False),
        Debezium(EnvelopeOptions(ORIGIN, strict=True)),
    ):
        table_schema = TableSchema.of("t", "Users", record["column_types"])
        for_task = for_avro(envelope)
        encoder = RegistryEncoder(for_task, {table_schema: SchemaIds(1, 2)}, by_table=False)
        ((key, _),) = encoder.messages(record, "t")
        shape = for_task.options.shapes.get("Users")
        schema, _ = parsed_schemas(table_schema, False, for_task, shape)
        assert fastavro.schemaless_reader(io.BytesIO((key or b"")[5:]), schema, None) == {"id": 1}
