"""The Avro schemas of a table's messages: of keys, of values and of resolved messages.

The names of records are those that Debezium's consumers know: Key, Value and Envelope in a
namespace made of the topic's name. The fields of a value come from its envelope.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackwater.spark_sink.avro.types import avro_name, avro_schema
from slackwater.spark_sink.envelopes.avro_fields import (
    Schema,
    TableSchemas,
    record_schema,
    string_fields,
)
from slackwater.spark_sink.envelopes.envelope import Envelope
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.types import type_json


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The columns of a table at some time, which determine its messages' schemas.

    Attributes:
        topic: the messages' topic.
        table: the table's full name.
        columns: for each its name, the JSON of its type, whether it is in the primary key.
    """

    topic: str
    table: str
    columns: tuple[tuple[str, str, bool], ...]

    @staticmethod
    def of(topic: str, table: str, column_types: Sequence[Mapping[str, Any]]) -> TableSchema:
        """Return the table schema of a data change record."""
        columns = ((c["name"], c["type"], c["is_primary_key"]) for c in column_types)
        return TableSchema(topic, table, tuple(columns))

    @staticmethod
    def of_columns(topic: str, table: str, columns: Iterable[Column]) -> TableSchema:
        """Return the table schema of the data change records that a table will have."""
        named = ((c.name, type_json(c.spanner_type), c.is_key) for c in columns)
        return TableSchema(topic, table, tuple(named))

    @property
    def column_types(self) -> list[dict[str, Any]]:
        """The columns as a data change record has them."""
        return [
            {"name": name, "type": kind, "is_primary_key": is_key, "ordinal_position": place}
            for place, (name, kind, is_key) in enumerate(self.columns)
        ]


def key_schema(table_schema: TableSchema, namespace: str) -> Schema:
    """Return the schema of keys: a record of the primary key's columns."""
    key_columns = (column for column in table_schema.columns if column[2])
    return record_schema("Key", _column_fields(key_columns), namespace)


def value_schema(table_schema: TableSchema, namespace: str, envelope: Envelope) -> Schema | None:
    """Return the schema of an envelope's values; None if its messages have no value."""
    columns = _column_fields(table_schema.columns)
    row = record_schema("Value", columns)
    table = TableSchemas(key_schema(table_schema, namespace), row, columns)
    fields = envelope.avro_fields(table)
    if fields is None:
        return None
    metadata = _metadata_fields(envelope, *envelope.timestamp_names, key=table.key)
    return record_schema("Envelope", {**fields, **metadata}, namespace)


def resolved_schema(namespace: str, envelope: Envelope) -> Schema:
    """Return the schema of resolved messages.

    It has the name of the envelope's, so that a reader of any message of the topic reads it.
    """
    return record_schema("Envelope", _metadata_fields(envelope), namespace)


def _metadata_fields(
    envelope: Envelope, *timestamp_names: str, key: Schema | None = None
) -> dict[str, Schema]:
    fields = string_fields(*timestamp_names, "resolved")
    has_changefeed_fields = envelope.has_changefeed_options or envelope.metadata_key is not None
    if key is not None and envelope.options.key_in_value and has_changefeed_fields:
        fields["key"] = key
    if envelope.metadata_key is None:
        return fields
    return {envelope.metadata_key: record_schema("Apart", fields)}


def _column_fields(columns: Iterable[tuple[str, str, bool]]) -> dict[str, Schema]:
    return {avro_name(name): avro_schema(kind) for name, kind, _ in columns}
