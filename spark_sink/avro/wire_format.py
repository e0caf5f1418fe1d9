"""The wire format of schema registries: a zero byte, the schema's number in four bytes, and Avro.

Confluent's documentation of the Schema Registry defines it.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

import fastavro

from slackwater.spark_sink.avro.encoding import avro_bytes
from slackwater.spark_sink.avro.schemas import TableSchema, key_schema, value_schema
from slackwater.spark_sink.avro.types import avro_converter, avro_name
from slackwater.spark_sink.envelopes.envelope import Envelope, MessageBody
from slackwater.spark_sink.envelopes.event import WITH_OLD_VALUES, Event, Row, events
from slackwater.spark_sink.envelopes.values import Values


@dataclass(frozen=True, slots=True)
class SchemaIds:
    """The schemas' numbers in the registry; None if messages have no key or no value."""

    key: int | None
    value: int | None


@dataclass(frozen=True)
class RegistryEncoder:
    """An encoder of messages whose schemas a registry has; see messages.Encoder.

    Attributes:
        envelope: an envelope from for_avro().
        ids: the numbers of the tables' schemas.
        by_table: whether a topic has the messages of several tables.
    """

    envelope: Envelope
    ids: Mapping[TableSchema, SchemaIds]
    by_table: bool

    def messages(self, record: Row, topic: str) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Yield the keys and values of a record's messages; see messages.Encoder."""
        table_schema = TableSchema.of(topic, record["table_name"], record["column_types"])
        ids = self.ids[table_schema]
        key, value = parsed_schemas(table_schema, self.by_table, self.envelope)
        for body in avro_bodies(self.envelope, record):
            yield encode(ids.key, key, body.key), encode(ids.value, value, body.value)


def for_avro(envelope: Envelope) -> Envelope:
    """Return the same envelope for fastavro: a timestamp stays a datetime, a key has its names."""
    options = replace(envelope.options, timestamp_format=_unchanged, key_as_object=True)
    return replace(envelope, options=options)


def namespace(topic: str, table: str, *, by_table: bool) -> str:
    """Return the namespace of a table's schemas: the topic's name, and a shared topic's table.

    Args:
        topic: the messages' topic.
        table: the table's full name, empty for messages about no table.
        by_table: whether tables share the topic.
    """
    parts = [*topic.split("."), *(table.split(".") if by_table and table else ())]
    return ".".join(avro_name(part) for part in parts if part)


@lru_cache(maxsize=1_000)
def parsed_schemas(
    table_schema: TableSchema, by_table: bool, envelope: Envelope
) -> tuple[Any, Any]:
    """Return the parsed schemas of keys and values; None for values if there are none.

    Args:
        table_schema, envelope: that they are of.
        by_table: whether a topic has the messages of several tables.
    """
    name = namespace(table_schema.topic, table_schema.table, by_table=by_table)
    value = value_schema(table_schema, name, envelope)
    return (
        fastavro.parse_schema(key_schema(table_schema, name)),
        None if value is None else fastavro.parse_schema(value),
    )


def encode(number: int | None, schema: Any, value: Any) -> bytes | None:
    """Encode a value in the wire format; None stands for a missing value.

    Args:
        number: the schema's number in the registry.
        schema: the parsed schema.
        value: the value that fastavro writes.
    """
    if number is None or value is None:
        return None
    return number_bytes(number) + avro_bytes(schema, value)


def number_bytes(number: int) -> bytes:
    """Return the first bytes of a message, which have the number of its schema."""
    return struct.pack(">bI", 0, number)


def avro_bodies(envelope: Envelope, record: Row) -> Iterator[MessageBody]:
    """Yield the messages of a record as fastavro writes them, with valid names of columns."""
    return envelope.bodies(record, _whole_row_events)


def _whole_row_events(record: Row) -> Iterator[Event]:
    return map(_whole_rows, events(record, avro_converter))


def _whole_rows(event: Event) -> Event:
    """Return the event with whole rows and valid Avro names.

    If old values come with a whole new row, columns without an old value did not change. Without
    old values the row before an update is unknown.
    """
    captures_old = event.record["value_capture_type"] == WITH_OLD_VALUES
    before = event.whole_before if event.after is None or captures_old else None
    return replace(
        event,
        keys=_avro_names(event.keys),
        before=_avro_names(before),
        after=_avro_names(event.after),
    )


def _unchanged(timestamp: datetime) -> datetime:
    # Not a lambda: each epoch would have another one, and parsed_schemas() no hit in its cache.
    return timestamp


def _avro_names(values: Values | None) -> Any:
    return None if values is None else {avro_name(name): v for name, v in values.items()}
