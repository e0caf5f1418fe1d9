"""The Avro schemas of a table's messages: key, row and envelope.

Records have the names that Debezium's consumers expect: Key, Value and Envelope in a namespace of
the topic. Every field may be null and is null by default: columns come and go, and any version of a
schema has to read what another one wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slackwater.spark_sink.avro.types import (
    TIMESTAMP_MICROS,
    Schema,
    avro_name,
    avro_schema,
    nullable,
)
from slackwater.spark_sink.envelopes.changefeed import METADATA_KEY
from slackwater.spark_sink.envelopes.envelope import (
    RESOLVED_UNDER_METADATA_KEY,
    Envelope,
    EnvelopeOptions,
)
from slackwater.spark_sink.envelopes.plain import OF_THE_RECORD

_OTHER_TYPES: Final[Mapping[str, Schema]] = {
    "commit_timestamp": TIMESTAMP_MICROS,
    "low_watermark": TIMESTAMP_MICROS,
    "is_last_record_in_transaction_in_partition": "boolean",
    "is_system_transaction": "boolean",
    "system_transaction": "boolean",
    "number_of_records_in_transaction": "long",
    "number_of_partitions_in_transaction": "long",
    "mod_number": "long",
}
_DEBEZIUM_SOURCE: Final = (
    *("connector", "name", "ts_ms", "snapshot", "db", "sequence", "project_id", "instance_id"),
    *("database_id", "change_stream_name", "table", "server_transaction_id", "low_watermark"),
    *("read_at_timestamp", "number_of_records_in_transaction", "transaction_tag"),
    *("system_transaction", "value_capture_type", "partition_token", "mod_number"),
    *("is_last_record_in_transaction_in_partition", "number_of_partitions_in_transaction"),
)
_DEBEZIUM_MS: Final = dict.fromkeys(("ts_ms", "low_watermark", "read_at_timestamp"), "long")


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


def key_schema(table_schema: TableSchema, namespace: str) -> Schema:
    """Return the schema of keys: a record of the primary key's columns."""
    return _record(
        "Key", _column_fields(column for column in table_schema.columns if column[2]), namespace
    )


def value_schema(
    table_schema: TableSchema, namespace: str, envelope_options: EnvelopeOptions
) -> Schema | None:
    """Return the schema of an envelope; None for key_only, whose messages have no value."""
    row = _record("Value", _column_fields(table_schema.columns))
    match envelope_options.envelope:
        case Envelope.KEY_ONLY:
            return None
        case Envelope.ROW:
            apart = _record("Apart", _string_fields(*envelope_options.timestamp_names, "resolved"))
            return _record(
                "Envelope", {**_column_fields(table_schema.columns), METADATA_KEY: apart}, namespace
            )
        case Envelope.WRAPPED:
            fields = {"after": row, **_string_fields(*envelope_options.timestamp_names)}
        case Envelope.FLAT:
            fields = {
                **_string_fields("table_name", "mod_type"),
                "key": key_schema(table_schema, namespace),
                "before": row,
                "after": "Value",
                "mod_number": "long",
                **_typed_fields(OF_THE_RECORD),
            }
        case Envelope.DATASTREAM:
            fields = _datastream(row)
        case Envelope.DEBEZIUM:
            source = {**_typed_fields(_DEBEZIUM_SOURCE), **_DEBEZIUM_MS}
            fields = {
                "before": row,
                "after": "Value",
                "source": _record("Source", source),
                "op": "string",
                "ts_ms": "long",
            }
        case Envelope.RECORD:
            fields = _data_change_record()
    return _record("Envelope", {**fields, "resolved": "string"}, namespace)


def resolved_schema(namespace: str, envelope_options: EnvelopeOptions) -> Schema:
    """Return the schema of a resolved message, whose name is that of the topic's envelope."""
    if envelope_options.envelope in RESOLVED_UNDER_METADATA_KEY:
        apart = _record("Apart", _string_fields("resolved"))
        return _record("Envelope", {METADATA_KEY: apart}, namespace)
    return _record("Envelope", _string_fields("resolved"), namespace)


def _datastream(row: Schema) -> dict[str, Schema]:
    source = _record(
        "SourceMetadata",
        {
            **_string_fields("database", "schema", "table"),
            "primary_keys": {"type": "array", "items": "string"},
            "is_deleted": "boolean",
            **_string_fields("change_type", "tx_id"),
        },
    )
    return {
        **_string_fields("stream_name", "read_method", "object", "schema_key", "uuid"),
        "read_timestamp": TIMESTAMP_MICROS,
        "source_timestamp": TIMESTAMP_MICROS,
        "sort_keys": {"type": "array", "items": ["long", "string"]},
        "source_metadata": source,
        "payload": row,
    }


def _data_change_record() -> dict[str, Schema]:
    column = {
        **_string_fields("name", "type"),
        "is_primary_key": "boolean",
        "ordinal_position": "long",
    }
    mod = _string_fields("keys", "new_values", "old_values")
    return {
        **_string_fields("table_name", "mod_type"),
        "column_types": {"type": "array", "items": _record("ColumnType", column)},
        "mods": {"type": "array", "items": _record("Mod", mod)},
        **_typed_fields(OF_THE_RECORD),
    }


def _column_fields(columns: Any) -> dict[str, Schema]:
    return {avro_name(name): avro_schema(kind) for name, kind, _ in columns}


def _typed_fields(names: Sequence[str]) -> dict[str, Schema]:
    return {name: _OTHER_TYPES.get(name, "string") for name in names}


def _string_fields(*names: str) -> dict[str, Schema]:
    return dict.fromkeys(names, "string")


def _record(name: str, fields: Mapping[str, Schema], namespace: str | None = None) -> Schema:
    record: dict[str, Any] = {"type": "record", "name": name}
    if namespace is not None:
        record["namespace"] = namespace
    field_schemas = [{"name": n, "type": nullable(s), "default": None} for n, s in fields.items()]
    return {**record, "fields": field_schemas}
