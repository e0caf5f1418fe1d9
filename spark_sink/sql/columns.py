"""The columns of a mirrored table, as the records of its changes name them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slackwater.spark_sink.sql.types import spanner_type, spark_type


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a mirrored table.

    Attributes:
        name: as Spanner names it.
        spanner_type: INT64, ARRAY<BYTES>, PG_NUMERIC.
        is_key: of the primary key.
    """

    name: str
    spanner_type: str
    is_key: bool

    @property
    def spark_type(self) -> str:
        """Its type in Spark SQL."""
        return spark_type(self.spanner_type)


def columns_from_records(lists: Iterable[Iterable[Mapping[str, Any]]]) -> tuple[Column, ...]:
    """The columns that some lists of column types name, in the table's order.

    Args:
        lists: column_types of records, the newest last: what it says of a column holds.
    """
    newest = {column["name"]: column for columns in lists for column in columns}
    return tuple(
        Column(column["name"], spanner_type(column["type"]), column["is_primary_key"])
        for column in sorted(newest.values(), key=lambda column: column["ordinal_position"])
    )


def columns_from_schema(types: Mapping[str, str], key: Collection[str]) -> tuple[Column, ...]:
    """The columns of a table as the information schema tells of it.

    Args:
        types: of each column by its name, in the table's order.
        key: names of the primary key's columns.
    """
    return tuple(Column(name, kind, name in key) for name, kind in types.items())
