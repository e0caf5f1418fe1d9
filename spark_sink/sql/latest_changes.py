"""The latest changes per key: the effect of an epoch on each row of a table.

If the value capture type captures whole rows, the last change of a row is enough. Otherwise an
update has only the columns that it changed: the epoch's changes of a row are folded in their order,
and columns that none of them has keep their values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.sql.columns import Column, columns_from_records
from slackwater.spark_sink.sql.quoting import identifier, literal, timestamp_literal
from slackwater.spark_sink.sql.rebuild_view import WHOLE_ROW_CAPTURE_TYPES
from slackwater.spark_sink.sql.types import (
    VALUES,
    bad_value_condition,
    nanoseconds_expression,
    value_expression,
    values_expression,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The columns of records that columns_by_table() reads.
COLUMNS_OF_TABLES: Final = ("table_name", "column_types", "commit_timestamp")
_EMPTY: Final = f"CAST(map() AS {VALUES})"


def columns_by_table(changes: DataFrame) -> dict[str, tuple[Column, ...]]:
    """Return the columns of each table that an epoch changes, by the table's full name."""
    from pyspark.sql import functions as F

    versions = changes.groupBy("table_name", "column_types").agg(
        F.max("commit_timestamp").alias("at")
    )
    by_table: dict[str, list[Any]] = {}
    for row in sorted(versions.collect(), key=lambda row: row["at"]):
        by_table.setdefault(row["table_name"], []).append(row["column_types"])
    return {table: columns_from_records(lists) for table, lists in sorted(by_table.items())}


def latest_changes(
    changes: DataFrame, table: str, columns: Sequence[Column], *, is_checked: bool = False
) -> DataFrame:
    """Return one row for each key that the epoch changes.

    Returns:
        deleted: whether the row is gone.
        whole: whether the changes have the whole row; columns not in changed_columns are NULL then.
        changed_columns: map of the names and texts of the values that the changes have.
        row: struct of the table's columns.
        commit_timestamp: the latest change's.
        key: JSON of the key.
        bad_columns: if is_checked, the columns whose values are not of their types.

    Args:
        changes: rows of the output's contract.
        table: the table's full name.
        columns: the table's.
        is_checked: a value that is not of its column's type becomes NULL and is reported in
            bad_columns; otherwise the query fails.
    """
    from pyspark.sql import functions as F

    mods = changes.where(F.col("table_name") == table).selectExpr(
        "commit_timestamp",
        "record_sequence",
        "mod_type",
        "value_capture_type",
        f"{_former_columns(columns)} AS former_columns",
        "posexplode(mods) AS (mod_number, mod)",
    )
    state = mods.groupBy("mod.keys").agg(
        F.max("commit_timestamp").alias("commit_timestamp"), F.expr(_FOLD_UPDATES).alias("state")
    )
    mapped = state.selectExpr(
        "commit_timestamp",
        "keys AS key",
        "state.deleted AS deleted",
        "state.whole AS whole",
        f"{values_expression('keys')} AS keys",
        "state.changed_columns AS changed_columns",
    )
    return mapped.selectExpr(
        "commit_timestamp",
        "key",
        "deleted",
        "whole",
        "changed_columns",
        *_row_expressions(columns, is_checked=is_checked),
    )


def whole_rows(
    inserts: DataFrame, table: str, columns: Sequence[Column], *, is_checked: bool = False
) -> DataFrame:
    """Return the rows of a table from records that insert each of them once.

    Returns:
        key, row and bad_columns as latest_changes() has them.

    Args:
        inserts: rows of the output's contract, one of them for each of the table's rows.
        table: the table's full name.
        columns: of the table.
        is_checked: as for latest_changes().
    """
    from pyspark.sql import functions as F

    mods = inserts.where(F.col("table_name") == table).selectExpr("explode(mods) AS mod")
    maps = mods.selectExpr(
        "mod.keys AS key",
        f"{values_expression('mod.keys')} AS keys",
        f"{values_expression('mod.new_values')} AS changed_columns",
    )
    return maps.selectExpr("key", *_row_expressions(columns, is_checked=is_checked))


def _row_expressions(columns: Sequence[Column], *, is_checked: bool) -> list[str]:
    """Return the expressions of the row and, if is_checked, of its bad columns."""
    cast = "TRY_CAST" if is_checked else "CAST"
    fields = ", ".join(f"{_value(column, cast)} AS {identifier(column.name)}" for column in columns)
    names = ", ".join(
        f"CASE WHEN {bad_value_condition(_value_text(column), column.spanner_type)}"
        f" THEN {literal(column.name)} END"
        for column in columns
        if column.nanoseconds_of is None
    )
    bad = [f"array_compact(array({names})) AS bad_columns"] if is_checked else []
    return [f"struct({fields}) AS row", *bad]


def _value(column: Column, cast: str) -> str:
    if column.nanoseconds_of is not None:
        return nanoseconds_expression(_value_text(column))
    return value_expression(_value_text(column), column.spanner_type, cast=cast)


def _value_text(column: Column) -> str:
    source = "keys" if column.is_key else "changed_columns"
    return f"{source}[{literal(column.nanoseconds_of or column.name)}]"


def _former_conditions(column: Column) -> Iterator[str]:
    if column.former_types:
        types = ", ".join(map(literal, column.former_types))
        name = literal(column.name)
        yield f"exists(column_types, c -> c.name = {name} AND c.type IN ({types}))"
    if column.absent_at is not None:
        yield f"commit_timestamp <= {timestamp_literal(column.absent_at)}"


def _former_columns(columns: Sequence[Column]) -> str:
    """Return the expression of the columns that are not a record's: it has former ones' values.

    A column with another type is another column of the same name, and so is one that was absent.
    """
    names = ", ".join(
        f"CASE WHEN {condition} THEN {literal(column.name)} END"
        for column in columns
        for condition in _former_conditions(column)
    )
    return f"array_compact(CAST(array({names}) AS array<string>))"


_WHOLE_ROW_TYPES: Final = ", ".join(f"'{name}'" for name in sorted(WHOLE_ROW_CAPTURE_TYPES))
_FOLD_UPDATES: Final = f"""
aggregate(
  transform(
    array_sort(collect_list(struct(
      struct(commit_timestamp, record_sequence, mod_number) AS place,
      mod_type,
      value_capture_type IN ({_WHOLE_ROW_TYPES}) AS is_whole,
      former_columns,
      mod.new_values AS new_values
    ))),
    change -> named_struct(
      'mod_type', change.mod_type,
      'is_whole', change.is_whole,
      'changed_columns', map_filter(
        coalesce({values_expression("change.new_values")}, {_EMPTY}),
        (name, value) -> NOT array_contains(change.former_columns, name)
      )
    )
  ),
  named_struct('deleted', false, 'whole', false, 'changed_columns', {_EMPTY}),
  (state, change) -> CASE
    WHEN change.mod_type = 'DELETE'
      THEN named_struct('deleted', true, 'whole', true, 'changed_columns', {_EMPTY})
    WHEN change.mod_type = 'INSERT' OR change.is_whole
      THEN named_struct('deleted', false, 'whole', true, 'changed_columns', change.changed_columns)
    ELSE named_struct(
      'deleted', false,
      'whole', state.whole,
      'changed_columns', map_concat(
        map_filter(
          state.changed_columns,
          (name, value) -> NOT map_contains_key(change.changed_columns, name)
        ),
        change.changed_columns
      )
    )
  END
)"""
