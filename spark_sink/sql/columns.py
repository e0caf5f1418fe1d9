"""The columns of a Spanner table, from its change records or from the information schema."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slackwater.spark_sink.sql.types import spanner_type, spark_type


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a Spanner table.

    Attributes:
        name: as Spanner names it.
        spanner_type: such as INT64, ARRAY<BYTES> or PG_NUMERIC.
        is_key: whether it belongs to the primary key.
    """

    name: str
    spanner_type: str
    is_key: bool

    @property
    def spark_type(self) -> str:
        """The column's type in Spark SQL."""
        return spark_type(self.spanner_type)


def columns_from_records(lists: Iterable[Iterable[Mapping[str, Any]]]) -> tuple[Column, ...]:
    """Merge the column lists of several records into a table's columns, in the table's order.

    Args:
        lists: column_types of the records, the latest last; it decides a column's type.
    """
    latest = {column["name"]: column for columns in lists for column in columns}
    return tuple(
        Column(column["name"], spanner_type(column["type"]), column["is_primary_key"])
        for column in sorted(latest.values(), key=lambda column: column["ordinal_position"])
    )


def columns_from_schema(types: Mapping[str, str], key: Collection[str]) -> tuple[Column, ...]:
    """Return the columns of a table from what the information schema says.

    Args:
        types: Spanner types by column name, in the table's order.
        key: the names of the primary key's columns.
    """
    return tuple(Column(name, kind, name in key) for name, kind in types.items())
