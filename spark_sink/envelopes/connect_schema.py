"""The schemas that Kafka Connect's JsonConverter writes beside a payload (schemas.enable).

Types and names are those of Debezium's Spanner connector (ColumnTypeSchemaMapper,
KafkaSpannerTableSchemaFactory, SpannerSourceInfoStructMaker in its source).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import orjson

from slackwater.column_types import element_type, spark_type

ConnectSchema = dict[str, Any]
_STRING: Final[Mapping[str, Any]] = {"type": "string"}
_INT64: Final[Mapping[str, Any]] = {"type": "int64"}
_UUID: Final[Mapping[str, Any]] = {"type": "string", "name": "io.debezium.data.Uuid", "version": 1}
_BY_SPARK_TYPE: Final[Mapping[str, Mapping[str, Any]]] = {
    "BOOLEAN": {"type": "boolean"},
    "BINARY": {"type": "bytes"},
    "FLOAT": {"type": "float"},
    "DOUBLE": {"type": "double"},
    "BIGINT": _INT64,
}
_SNAPSHOT: Final[Mapping[str, Any]] = {
    "type": "string",
    "name": "io.debezium.data.Enum",
    "version": 1,
    "parameters": {
        "allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,"
        "incremental"
    },
    "default": "false",
}
_REQUIRED: Final = frozenset(
    {
        *("version", "connector", "name", "ts_ms", "db", "project_id", "instance_id"),
        *("database_id", "change_stream_name", "table"),
    }
)
_BY_AVRO_TYPE: Final[Mapping[str, Mapping[str, Any]]] = {
    "boolean": {"type": "boolean"},
    "long": _INT64,
    "string": _STRING,
}


@dataclass(frozen=True, slots=True)
class EventTable:
    """A table whose events have schemas.

    Attributes:
        connector: its name, which topics and schemas begin with.
        name: the table's full name.
        columns: names and types of the columns, as the information schema spells them.
        key: the primary key's columns.
        required: those of them that can't be NULL.
        source: the types of the fields of source, with Avro's names.
    """

    connector: str
    name: str
    columns: tuple[tuple[str, str], ...]
    key: frozenset[str]
    required: frozenset[str]
    source: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class EventSchemas:
    """The schemas of a table's events.

    Attributes:
        key: of the key.
        value: of the value.
        key_json, value_json: the same as JSON.
    """

    key: ConnectSchema
    value: ConnectSchema
    key_json: orjson.Fragment
    value_json: orjson.Fragment


def with_schema(schema: Any, payload: Any) -> dict[str, Any]:
    """Return a payload beside its schema, as JsonConverter does."""
    return {"schema": schema, "payload": payload}


def resolved_schema(name: str) -> ConnectSchema:
    """Return the schema of a resolved message.

    Args:
        name: the connector's.
    """
    return _struct([_field("resolved", _STRING, optional=True)], f"{name}.Resolved")


def heartbeat_schemas() -> EventSchemas:
    """Return the schemas of the connector's heartbeats."""
    package = "io.debezium.connector.spanner.processor.heartbeat"
    return _schemas(
        _struct([_field("partitionToken", _STRING)], f"{package}.PartitionTokenKey"),
        _struct([_field("ts_ms", _INT64)], f"{package}.SpannerHeartbeat"),
    )


@lru_cache(maxsize=1_000)
def event_schemas(table: EventTable) -> EventSchemas:
    """Return the schemas of a table's events."""
    fields = {
        name: _field(name, _column_schema(kind), optional=name not in table.required)
        for name, kind in table.columns
    }
    row = [
        {**_struct(list(fields.values()), f"{table.name}.Value", optional=True), "field": part}
        for part in ("before", "after")
    ]
    times = [_field(name, _INT64, optional=True) for name in ("ts_ms", "ts_us", "ts_ns")]
    parts = [*row, _source(table.source), _field("op", _STRING), *times, _transaction()]
    return _schemas(
        _struct(
            [field for name, field in fields.items() if name in table.key], f"{table.name}.Key"
        ),
        _struct(parts, f"{table.connector}.{table.name}.Envelope", version=2),
    )


def _schemas(key: ConnectSchema, value: ConnectSchema) -> EventSchemas:
    key_json, value_json = (orjson.Fragment(orjson.dumps(schema)) for schema in (key, value))
    return EventSchemas(key, value, key_json, value_json)


def _source(fields: Iterable[tuple[str, str]]) -> ConnectSchema:
    schemas = {name: _BY_AVRO_TYPE[kind] for name, kind in fields} | {
        "snapshot": _SNAPSHOT,
        "mod_number": {"type": "int32"},
    }
    struct = _struct(
        [_field(n, s, optional=n not in _REQUIRED) for n, s in schemas.items()],
        "com.google.spanner.connector.Source",
        version=1,
    )
    return {**struct, "field": "source"}


def _transaction() -> ConnectSchema:
    """Return the schema of a field that the connector always leaves empty."""
    orders = [_field(name, _INT64) for name in ("total_order", "data_collection_order")]
    struct = _struct([_field("id", _STRING), *orders], "event.block", version=1, optional=True)
    return {**struct, "field": "transaction"}


def _column_schema(spanner_type: str) -> Mapping[str, Any]:
    element = element_type(spanner_type)
    if element is not None:
        return {"type": "array", "items": {**_column_schema(element), "optional": True}}
    if spanner_type.upper() == "UUID":
        return _UUID
    return _BY_SPARK_TYPE.get(spark_type(spanner_type), _STRING)


def _field(name: str, schema: Mapping[str, Any], *, optional: bool = False) -> ConnectSchema:
    return {**schema, "optional": optional, "field": name}


def _struct(
    fields: Sequence[Mapping[str, Any]],
    name: str,
    *,
    optional: bool = False,
    version: int | None = None,
) -> ConnectSchema:
    struct = {"type": "struct", "fields": list(fields), "optional": optional, "name": name}
    return struct if version is None else {**struct, "version": version}
