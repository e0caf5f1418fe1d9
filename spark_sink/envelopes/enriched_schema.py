"""The schemas beside the payloads of the envelope enriched, with CockroachDB's types and names.

Its float64 and json are not among the types that Kafka Connect's JsonConverter reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from slackwater.column_types import element_type
from slackwater.spark_sink.envelopes.changefeed import SOURCE_FIELDS
from slackwater.spark_sink.envelopes.connect_schema import (
    BY_AVRO_TYPE,
    INT64,
    STRING,
    ConnectSchema,
    EventSchemas,
    array_schema,
    field_schema,
    schemas_of,
    struct_schema,
)
from slackwater.spark_sink.envelopes.values import Values
from slackwater.spark_sink.sql.types import spanner_type

_DECIMAL: Final[Mapping[str, Any]] = {"type": "float64", "name": "decimal"}
_BY_TYPE: Final[Mapping[str, Mapping[str, Any]]] = {
    "BOOL": {"type": "boolean"},
    "BYTES": {"type": "bytes"},
    "DATE": {"type": "string", "name": "date"},
    "FLOAT32": {"type": "float64"},
    "FLOAT64": {"type": "float64"},
    "INT64": INT64,
    "JSON": {"type": "json"},
    "NUMERIC": {**_DECIMAL, "parameters": {"precision": "38", "scale": "9"}},
    "PG_JSONB": {"type": "json"},
    # It has no limits, as a DECIMAL without them.
    "PG_NUMERIC": {**_DECIMAL, "parameters": {"precision": "0", "scale": "0"}},
    "PG_OID": INT64,
    "TIMESTAMP": {"type": "string", "name": "timestamp"},
}
_ON_REQUEST: Final = frozenset({"mvcc_timestamp", "ts_hlc", "ts_ns"})


def enriched_schemas(
    table: str, column_types: Iterable[Mapping[str, Any]], keys: Values, fields: Iterable[str]
) -> EventSchemas:
    """Return the schemas of a change in the envelope enriched.

    Args:
        table: the table's full name.
        column_types: of the record.
        keys: the key's values. A change record does not say whether a column may be NULL: one of
            the key that is not NULL here is required.
        fields: those that the value has.
    """
    return _enriched_schemas(
        table,
        tuple((column["name"], spanner_type(column["type"])) for column in column_types),
        frozenset(name for name, value in keys.items() if value is not None),
        frozenset(keys),
        frozenset(fields),
    )


@lru_cache(maxsize=1_000)
def _enriched_schemas(
    table: str,
    columns: Sequence[tuple[str, str]],
    required: frozenset[str],
    key_names: frozenset[str],
    fields: frozenset[str],
) -> EventSchemas:
    of_columns = {
        name: field_schema(name, _column_schema(kind), optional=name not in required)
        for name, kind in columns
    }
    row = list(of_columns.values())
    in_key = [of_columns[name] for name in of_columns if name in key_names]
    key = struct_schema(in_key, f"{table}.key")
    parts = {
        "before": struct_schema(row, f"{table}.before.value", optional=True),
        # CockroachDB says that it is never null, also where it is: in a delete.
        "after": struct_schema(row, f"{table}.after.value", optional=True),
        "source": struct_schema(_source(), "cockroachdb.source", optional=True),
        "key": key,
        "topic": {**STRING, "optional": False},
        "ts_ns": {**INT64, "optional": False},
        "op": {**STRING, "optional": False},
    }
    value = [{**part, "field": name} for name, part in parts.items() if name in fields]
    return schemas_of(key, struct_schema(value, "cockroachdb.envelope"))


def _source() -> list[ConnectSchema]:
    texts = {"type": "array", "items": {**STRING, "optional": False}}
    return [
        field_schema(
            name,
            BY_AVRO_TYPE[kind] if isinstance(kind, str) else texts,
            optional=name in _ON_REQUEST,
        )
        for name, kind in SOURCE_FIELDS.items()
    ]


def _column_schema(kind: str) -> Mapping[str, Any]:
    element = element_type(kind)
    return array_schema(_column_schema(element)) if element else _BY_TYPE.get(kind, STRING)
