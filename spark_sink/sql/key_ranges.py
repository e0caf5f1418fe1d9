"""The condition that a mirror's row lies in a key range, in Spark SQL and the order of Spanner.

In ascending order NULL comes first, then NaN, then the other values; in descending order last
("ORDER BY" in Spanner's GoogleSQL reference). Texts are ordered by code point and bytes by value,
in Spark as in Spanner.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.quoting import identifier, literal
from slackwater.spark_sink.sql.types import nanoseconds_expression, value_expression

_FLOATS: Final = ("DOUBLE", "FLOAT")
# Its values are texts of numbers, and its order is theirs.
_ENUM: Final = "ENUM"


@dataclass(frozen=True, slots=True)
class SortOrder:
    """The order of a table's keys.

    Attributes:
        columns: the key's columns, in the key's order; of a mirror, so that a TIMESTAMP is followed
            by its nanoseconds.
        descending: the names of those in descending order.
    """

    columns: Sequence[Column]
    descending: frozenset[str]

    @classmethod
    def of(
        cls, columns: Sequence[Column], key: Sequence[str], descending: frozenset[str]
    ) -> "SortOrder":
        """Return the order of a mirror's keys.

        Args:
            columns: the mirror's.
            key: the names of the primary key's columns, in the key's order.
            descending: those of them that are in descending order.
        """
        of_key = [
            column
            for name in key
            for column in columns
            if column.is_key and name in (column.name, column.nanoseconds_of)
        ]
        return cls(of_key, descending)


def range_condition(
    order: SortOrder, after: Mapping[str, Any] | None, through: Mapping[str, Any] | None
) -> str:
    """Return the condition that a row's key lies behind one key and not behind another.

    Args:
        order: the order of the keys.
        after, through: values by column as Spanner's JSON has them; None for no limit.
    """
    conditions = ["true"]
    if after is not None:
        conditions.append(_is_behind(order, after))
    if through is not None:
        conditions.append(f"NOT {_is_behind(order, through)}")
    return " AND ".join(conditions)


def _is_behind(order: SortOrder, key: Mapping[str, Any]) -> str:
    """Return the condition that a row's key comes after this one; it is never NULL."""
    same: list[str] = []
    alternatives: list[str] = []
    for column in order.columns:
        word = "<" if (column.nanoseconds_of or column.name) in order.descending else ">"
        for of_row, of_key in _comparable(column, key):
            alternatives.append(" AND ".join([*same, f"coalesce({of_row} {word} {of_key}, false)"]))
            same.append(f"{of_row} <=> {of_key}")
    return f"({' OR '.join(f'({one})' for one in alternatives) or 'false'})"


def _comparable(column: Column, key: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield pairs of a row's and the key's expression that decide in this order."""
    of_row, of_key = identifier(column.name), _value(column, key)
    if column.nanoseconds_of is not None:
        # A NULL has none.
        yield f"coalesce({of_row}, 0)", f"coalesce({of_key}, 0)"
        return
    if column.spanner_type.startswith(_ENUM):
        of_row, of_key = f"CAST({of_row} AS BIGINT)", f"CAST({of_key} AS BIGINT)"
    yield f"({of_row} IS NOT NULL)", f"({of_key} IS NOT NULL)"
    if column.spark_type in _FLOATS:
        yield f"(NOT isnan({of_row}))", f"(NOT isnan({of_key}))"
    yield of_row, of_key


def _value(column: Column, key: Mapping[str, Any]) -> str:
    value = key[column.nanoseconds_of or column.name]
    if value is None:
        return f"CAST(NULL AS {column.spark_type})"
    text = literal(value if isinstance(value, str) else orjson.dumps(value).decode())
    if column.nanoseconds_of is not None:
        return nanoseconds_expression(text)
    return value_expression(text, column.spanner_type)
