"""Spanner's types in Spark SQL: how a value out of a mod's JSON becomes one of a column.

The values come as the texts that Spark makes of JSON values: strings without quotation marks,
numbers and arrays as they are written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

# A type that is not named here stays a text: JSON, NUMERIC of PostgreSQL (it may have more digits
# than Spark's decimals), INTERVAL, UUID, protos, and what there will be.
_TYPES: Final[Mapping[str, str]] = {
    "INT64": "BIGINT",
    "FLOAT64": "DOUBLE",
    "FLOAT32": "FLOAT",
    "BOOL": "BOOLEAN",
    "TIMESTAMP": "TIMESTAMP",
    "DATE": "DATE",
    "NUMERIC": "DECIMAL(38, 9)",
    "bigint": "BIGINT",
    "double precision": "DOUBLE",
    "real": "FLOAT",
    "boolean": "BOOLEAN",
    "timestamp with time zone": "TIMESTAMP",
    "date": "DATE",
}
_BYTES: Final = ("BYTES", "bytea")
_ARRAY: Final = re.compile(r"ARRAY<(.*)>(?:\(.*\))?|(.*)\[\]")
_LENGTH: Final = re.compile(r"\(.*\)")


def spark_value(text: str, spanner_type: str) -> str:
    """An SQL expression of the column's type.

    Args:
        text: an SQL expression of the value's text.
        spanner_type: as the information schema spells it, in either dialect.
    """
    if match := _ARRAY.fullmatch(spanner_type):
        items = f"from_json({text}, 'array<string>')"
        inner = match.group(1) or match.group(2)
        item = spark_value("item", inner)
        return items if item == "item" else f"transform({items}, item -> {item})"
    name = _LENGTH.sub("", spanner_type)
    if name in _BYTES:
        return f"unbase64({text})"
    return f"CAST({text} AS {_TYPES[name]})" if name in _TYPES else text
