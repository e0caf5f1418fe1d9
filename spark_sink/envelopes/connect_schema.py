"""The schemas that Kafka Connect's JsonConverter writes beside a payload (schemas.enable).

Types and names are those of Debezium's Spanner connector (ColumnTypeSchemaMapper,
KafkaSpannerTableSchemaFactory, SpannerSourceInfoStructMaker in its source).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import orjson

from slackwater.column_types import element_type, spark_type

ConnectSchema = dict[str, Any]
STRING: Final[Mapping[str, Any]] = {"type": "string"}
INT64: Final[Mapping[str, Any]] = {"type": "int64"}
_UUID: Final[Mapping[str, Any]] = {"type": "string", "name": "io.debezium.data.Uuid", "version": 1}
_BY_SPARK_TYPE: Final[Mapping[str, Mapping[str, Any]]] = {
    "BOOLEAN": {"type": "boolean"},
    "BINARY": {"type": "bytes"},
    "FLOAT": {"type": "float"},
    "DOUBLE": {"type": "double"},
    "BIGINT": INT64,
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
BY_AVRO_TYPE: Final[Mapping[str, Mapping[str, Any]]] = {
    "boolean": {"type": "boolean"},
    "long": INT64,
    "string": STRING,
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
    return struct_schema([field_schema("resolved", STRING, optional=True)], f"{name}.Resolved")


def heartbeat_schemas() -> EventSchemas:
    """Return the schemas of the connector's heartbeats."""
    package = "io.debezium.connector.spanner.processor.heartbeat"
    return schemas_of(
        struct_schema([field_schema("partitionToken", STRING)], f"{package}.PartitionTokenKey"),
        struct_schema([field_schema("ts_ms", INT64)], f"{package}.SpannerHeartbeat"),
    )


@lru_cache(maxsize=1_000)
def event_schemas(table: EventTable) -> EventSchemas:
    """Return the schemas of a table's events."""
    fields = {
        name: field_schema(name, _column_schema(kind), optional=name not in table.required)
        for name, kind in table.columns
    }
    row = struct_schema(list(fields.values()), f"{table.name}.Value", optional=True)
    rows = [{**row, "field": part} for part in ("before", "after")]
    times = [field_schema(name, INT64, optional=True) for name in ("ts_ms", "ts_us", "ts_ns")]
    parts = [*rows, _source(table.source), field_schema("op", STRING), *times, _transaction()]
    return schemas_of(
        struct_schema(
            [field for name, field in fields.items() if name in table.key], f"{table.name}.Key"
        ),
        struct_schema(parts, f"{table.connector}.{table.name}.Envelope", version=2),
    )


def schemas_of(key: ConnectSchema, value: ConnectSchema) -> EventSchemas:
    """Return schemas with their JSON."""
    key_json, value_json = (orjson.Fragment(orjson.dumps(schema)) for schema in (key, value))
    return EventSchemas(key, value, key_json, value_json)


def _source(fields: Iterable[tuple[str, str]]) -> ConnectSchema:
    schemas = {name: BY_AVRO_TYPE[kind] for name, kind in fields} | {
        "snapshot": _SNAPSHOT,
        "mod_number": {"type": "int32"},
    }
    struct = struct_schema(
        [field_schema(n, s, optional=n not in _REQUIRED) for n, s in schemas.items()],
        "com.google.spanner.connector.Source",
        version=1,
    )
    return {**struct, "field": "source"}


def _transaction() -> ConnectSchema:
    """Return the schema of a field that the connector always leaves empty."""
    orders = [field_schema(name, INT64) for name in ("total_order", "data_collection_order")]
    fields = [field_schema("id", STRING), *orders]
    struct = struct_schema(fields, "event.block", version=1, optional=True)
    return {**struct, "field": "transaction"}


def array_schema(element: Mapping[str, Any]) -> ConnectSchema:
    """Return the schema of an array column, whose elements may be null."""
    return {"type": "array", "items": {**element, "optional": True}}


def _column_schema(spanner_type: str) -> Mapping[str, Any]:
    element = element_type(spanner_type)
    if element is not None:
        return array_schema(_column_schema(element))
    if spanner_type.upper() == "UUID":
        return _UUID
    return _BY_SPARK_TYPE.get(spark_type(spanner_type), STRING)


def field_schema(name: str, schema: Mapping[str, Any], *, optional: bool = False) -> ConnectSchema:
    """Return the schema of a struct's field."""
    return {**schema, "optional": optional, "field": name}


def struct_schema(
    fields: Sequence[Mapping[str, Any]],
    name: str,
    *,
    optional: bool = False,
    version: int | None = None,
) -> ConnectSchema:
    """Return the schema of a struct."""
    struct = {"type": "struct", "fields": list(fields), "optional": optional, "name": name}
    return struct if version is None else {**struct, "version": version}
