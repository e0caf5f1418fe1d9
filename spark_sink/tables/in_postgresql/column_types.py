"""The types of columns, between Arrow and PostgreSQL."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa

from slackwater.column_types import element_type
from slackwater.spark_sink.sql.columns import Column
from slackwater.typed_changes import AFTER, BEFORE, KEY

_TYPES: Final[Mapping[pa.DataType, str]] = {
    pa.int64(): "bigint",
    pa.int32(): "integer",
    pa.float64(): "double precision",
    pa.float32(): "real",
    pa.bool_(): "boolean",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp with time zone",
}
# Of columns that hold Spanner's texts as they are, by what Spanner calls their types.
_NATIVE: Final[Mapping[str, str]] = {
    "JSON": "json",
    "PG_JSONB": "json",
    "jsonb": "json",
    "UUID": "uuid",
    "uuid": "uuid",
    "PG_NUMERIC": "numeric",
    "numeric": "numeric",
}
# Types that somebody may have given such a column are as good.
_CAST: Final = frozenset({*_NATIVE.values(), "jsonb", "character varying"})
_ARROW: Final = {name: kind for kind, name in _TYPES.items()}
_ARRAY: Final = "[]"
# In no name of Spanner's.
_DOT: Final = "."
_NUMERIC: Final = re.compile(r"numeric\((\d+),(\d+)\)")


def postgresql_type(kind: pa.DataType, spanner_type: str = "") -> str:
    """Return the type of a column in SQL.

    Args:
        kind: in Arrow.
        spanner_type: in Spanner.
    """
    if pa.types.is_list(kind):
        return postgresql_type(kind.value_type, element_type(spanner_type) or "") + _ARRAY
    if native := _NATIVE.get(spanner_type):
        return native
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    return _TYPES[kind]


def arrow_type(name: str) -> pa.DataType | None:
    """Return the type of a column that a mirror may have; None for another one.

    Args:
        name: as format_type() gives it.
    """
    if name.endswith(_ARRAY):
        element = arrow_type(name.removesuffix(_ARRAY))
        return None if element is None else pa.list_(element)
    if match := _NUMERIC.fullmatch(name):
        return pa.decimal128(int(match[1]), int(match[2]))
    return pa.string() if name in _CAST else _ARROW.get(name)


def is_cast(name: str) -> bool:
    """Return whether a column holds texts, or arrays of them, as another type of this name."""
    return name.removesuffix(_ARRAY) in _CAST


def as_texts(column: str, name: str) -> str:
    """Return a column of a type in SQL, as texts if it is one that they are cast to."""
    if not is_cast(name):
        return column
    return f"{column}::text{_ARRAY if name.endswith(_ARRAY) else ''}"


def schema_of(columns: Iterable[tuple[str, str]]) -> pa.Schema:
    """Return the columns of a table, without those that others added in other types.

    Args:
        columns: their names and types in SQL; PART.NAME is a field of a typed changelog's struct.
    """
    fields: dict[str, pa.DataType | list[pa.Field]] = {}
    for name, kind in columns:
        part, dot, of_part = name.partition(_DOT)
        arrow = arrow_type(kind)
        if arrow is not None and dot:
            fields.setdefault(part, []).append(pa.field(of_part, arrow))
        elif arrow is not None:
            fields[name] = arrow
    structs = ((n, pa.struct(f) if isinstance(f, list) else f) for n, f in fields.items())
    return pa.schema(list(structs))


def flat(schema: pa.Schema) -> pa.Schema:
    """Return the columns that a table has for those of a schema, which may have structs."""
    return schema.empty_table().flatten().schema


def types_in_spanner(columns: Iterable[Column]) -> dict[str, str]:
    """Return the types in Spanner of a mirror's columns, and of a typed changelog's, by name."""
    prefixes = ("", *(f"{part}{_DOT}" for part in (KEY, BEFORE, AFTER)))
    return {
        f"{prefix}{column.name}": column.spanner_type for column in columns for prefix in prefixes
    }
