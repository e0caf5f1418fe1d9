"""The columns of a Spanner table, from its change records or from the information schema."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from slackwater.column_types import spark_type
from slackwater.spark_sink.sql.types import spanner_type


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a Spanner table.

    Attributes:
        name: as Spanner names it.
        spanner_type: such as INT64, ARRAY<BYTES> or PG_NUMERIC.
        is_key: whether it belongs to the primary key.
        nanoseconds_of: the name of the key column whose nanoseconds beyond whole microseconds it
            holds; None for a column of Spanner's.
        former_types: JSON of types that the column had in earlier records, and that are another
            type in Spark. In Spanner no row has a value of them any more.
        absent_at: a time at which the table had no such column: values of earlier changes are gone,
            and those in the mirror too. None if it has been there all the time.
    """

    name: str
    spanner_type: str
    is_key: bool
    nanoseconds_of: str | None = None
    former_types: tuple[str, ...] = ()
    absent_at: datetime | None = None

    @property
    def spark_type(self) -> str:
        """The column's type in Spark SQL."""
        if self.nanoseconds_of is not None:
            return "INT"
        return spark_type(self.spanner_type)

    @property
    def is_set_by_update(self) -> bool:
        """Whether an update sets it: not the key, except nanoseconds that a row may lack."""
        return not self.is_key or self.nanoseconds_of is not None


def columns_from_records(lists: Iterable[Iterable[Mapping[str, Any]]]) -> tuple[Column, ...]:
    """Merge the column lists of several records into a table's columns, in the table's order.

    Args:
        lists: column_types of the records, the latest last; it decides a column's type, and its
            name: of columns whose names differ only in case, the earlier ones were dropped.
    """
    types: dict[str, list[str]] = {}
    latest: dict[str, Mapping[str, Any]] = {}
    for column in (column for columns in lists for column in columns):
        latest[column["name"].lower()] = column
        types.setdefault(column["name"], []).append(column["type"])
    return tuple(
        Column(
            column["name"],
            spanner_type(column["type"]),
            column["is_primary_key"],
            former_types=_former_types(types[column["name"]]),
        )
        for column in sorted(latest.values(), key=lambda column: column["ordinal_position"])
    )


def _former_types(types: Sequence[str]) -> tuple[str, ...]:
    latest = spark_type(spanner_type(types[-1]))
    return tuple(dict.fromkeys(t for t in types if spark_type(spanner_type(t)) != latest))


def columns_from_schema(types: Mapping[str, str], key: Collection[str]) -> tuple[Column, ...]:
    """Return the columns of a table from the information schema.

    Args:
        types: Spanner types by column name, in the table's order.
        key: the names of the primary key's columns.
    """
    return tuple(Column(name, kind, name in key) for name, kind in types.items())


def mirror_columns(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Return the columns of a mirror: a TIMESTAMP in the key has a second one for nanoseconds.

    Spark's timestamps have microseconds, and keys that differ by nanoseconds are different rows.
    """
    return tuple(
        part
        for column in columns
        for part in (column, *([_nanoseconds(column)] if _is_timestamp_key(column) else []))
    )


def _is_timestamp_key(column: Column) -> bool:
    return column.is_key and column.spark_type == "TIMESTAMP"


def _nanoseconds(column: Column) -> Column:
    # In PostgreSQL's dialect a table may have it; mirror_table.require_own_names() refuses that.
    name = f"_{column.name}_nanoseconds"
    return Column(name, column.spanner_type, is_key=True, nanoseconds_of=column.name)
