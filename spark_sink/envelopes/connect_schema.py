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

from slackwater.spark_sink.envelopes.values import Values, parsed_type

_BY_CODE: Final[Mapping[str, Mapping[str, Any]]] = {
    "BOOL": {"type": "boolean"},
    "BYTES": {"type": "bytes"},
    "FLOAT32": {"type": "float"},
    "FLOAT64": {"type": "double"},
    "INT64": {"type": "int64"},
    "UUID": {"type": "string", "name": "io.debezium.data.Uuid", "version": 1},
}
_STRING: Final[Mapping[str, Any]] = {"type": "string"}
_INT64: Final[Mapping[str, Any]] = {"type": "int64"}
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
class EventSchemas:
    """The schemas of a table's events, as JSON.

    Attributes:
        key: of the key.
        value: of the value.
    """

    key: orjson.Fragment
    value: orjson.Fragment


def with_schema(schema: Any, payload: Any) -> dict[str, Any]:
    """Return a payload beside its schema, as JsonConverter does."""
    return {"schema": schema, "payload": payload}


def resolved_schema(name: str) -> dict[str, Any]:
    """Return the schema of a resolved message.

    Args:
        name: the connector's.
    """
    return _struct([_field("resolved", _STRING, optional=True)], f"{name}.Resolved")


def event_schemas(
    connector: str,
    table: str,
    column_types: Iterable[Mapping[str, Any]],
    keys: Values,
    source: Mapping[str, str],
) -> EventSchemas:
    """Return the schemas of an event.

    Args:
        connector: its name, which topics and schemas begin with.
        table: the table's full name.
        column_types: of the record.
        keys: the key's values. A change record does not say whether a column may be NULL; the
            connector says that the key's columns can't. A key that has one is an exception.
        source: the types of the fields of source, with Avro's names.
    """
    columns = sorted(column_types, key=lambda column: int(column["ordinal_position"]))
    return _event_schemas(
        connector,
        table,
        tuple((column["name"], column["type"]) for column in columns),
        frozenset(name for name, value in keys.items() if value is not None),
        frozenset(keys),
        tuple(source.items()),
    )


@lru_cache(maxsize=1_000)
def _event_schemas(
    connector: str,
    table: str,
    columns: Sequence[tuple[str, str]],
    required: frozenset[str],
    key_names: frozenset[str],
    source: Sequence[tuple[str, str]],
) -> EventSchemas:
    fields = {
        name: _field(name, _column_schema(kind), optional=name not in required)
        for name, kind in columns
    }
    row = [
        {**_struct(list(fields.values()), f"{table}.Value", optional=True), "field": part}
        for part in ("before", "after")
    ]
    times = [_field(name, _INT64, optional=True) for name in ("ts_ms", "ts_us", "ts_ns")]
    value = [*row, _source(source), _field("op", _STRING, optional=False), *times]
    key = [field for name, field in fields.items() if name in key_names]
    return EventSchemas(
        orjson.Fragment(orjson.dumps(_struct(key, f"{table}.Key"))),
        orjson.Fragment(orjson.dumps(_struct(value, f"{connector}.{table}.Envelope"))),
    )


def _source(fields: Sequence[tuple[str, str]]) -> dict[str, Any]:
    schemas = {name: _BY_AVRO_TYPE[kind] for name, kind in fields} | {
        "snapshot": _SNAPSHOT,
        "mod_number": {"type": "int32"},
    }
    struct = _struct(
        [_field(n, s, optional=n not in _REQUIRED) for n, s in schemas.items()],
        "com.google.spanner.connector.Source",
    )
    return {**struct, "field": "source"}


def _column_schema(type_json: str) -> Mapping[str, Any]:
    kind = parsed_type(type_json)
    code = kind.get("code") if isinstance(kind, dict) else None
    if code != "ARRAY":
        return _BY_CODE.get(str(code), _STRING)
    item = kind.get("array_element_type") or {}
    items = {**_BY_CODE.get(str(item.get("code")), _STRING), "optional": True}
    return {"type": "array", "items": items}


def _field(name: str, schema: Mapping[str, Any], *, optional: bool) -> dict[str, Any]:
    return {**schema, "optional": optional, "field": name}


def _struct(
    fields: Sequence[Mapping[str, Any]], name: str, *, optional: bool = False
) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields), "optional": optional, "name": name}
