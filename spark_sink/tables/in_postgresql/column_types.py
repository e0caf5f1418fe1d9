"""The types of columns, between Arrow and PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa

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
_ARROW: Final = {name: kind for kind, name in _TYPES.items()}
_ARRAY: Final = "[]"
_NUMERIC: Final = re.compile(r"numeric\((\d+),(\d+)\)")


def postgresql_type(kind: pa.DataType) -> str:
    """Return the type of a column in SQL."""
    if pa.types.is_list(kind):
        return postgresql_type(kind.value_type) + _ARRAY
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
    return _ARROW.get(name)


def schema_of(columns: Iterable[tuple[str, str]]) -> pa.Schema:
    """Return the columns of a mirror, without those that others added in other types.

    Args:
        columns: their names and types in SQL.
    """
    kinds = ((name, arrow_type(kind)) for name, kind in columns)
    return pa.schema([(name, kind) for name, kind in kinds if kind is not None])
