"""The newest change per key: what an epoch does to the rows of one table.

A value capture type with whole rows says it in the last change alone. With the others an update
has only the columns that it changed: an epoch's changes of a row are laid over each other in their
order, and what none of them says stays as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from slackwater.spark_sink.sql.columns import Column, columns_of
from slackwater.spark_sink.sql.rebuild_view import WHOLE_ROW
from slackwater.spark_sink.sql.text import identifier, literal
from slackwater.spark_sink.sql.types import is_bad_value, spark_value

_MAP: Final = "map<string, string>"
_EMPTY: Final = f"CAST(map() AS {_MAP})"


def shapes(changes: DataFrame) -> dict[str, tuple[Column, ...]]:
    """The tables that an epoch changes, and the columns that their records name."""
    found = changes.groupBy("table_name", "column_types").agg(F.max("commit_timestamp").alias("at"))
    by_table: dict[str, list[Any]] = {}
    for row in sorted(found.collect(), key=lambda row: row["at"]):
        by_table.setdefault(row["table_name"], []).append(row["column_types"])
    return {table: columns_of(lists) for table, lists in sorted(by_table.items())}


def newest_changes(
    changes: DataFrame, table: str, columns: Sequence[Column], *, is_checked: bool = False
) -> DataFrame:
    """One row a key that the epoch changes.

    Returns:
        deleted: the row is gone. whole: row has all its columns, those that `given` does not
        name are NULL. given: map of the names that the changes say something about. row: struct
        of the table's columns. commit_timestamp: of the newest change. key: JSON of the key.
        bad_columns: names of the columns whose values are none of their types, if is_checked.

    Args:
        changes: rows of the output's contract.
        table: the table's full name.
        columns: of the table.
        is_checked: a value that is none of its type does not fail but is NULL, and named.
    """
    mods = changes.where(F.col("table_name") == table).selectExpr(
        "commit_timestamp",
        "record_sequence",
        "mod_type",
        "value_capture_type",
        "posexplode(mods) AS (mod_number, mod)",
    )
    state = mods.groupBy("mod.keys").agg(
        F.max("commit_timestamp").alias("commit_timestamp"), F.expr(_LAID_OVER).alias("state")
    )
    mapped = state.selectExpr(
        "commit_timestamp",
        "keys AS key",
        "state.deleted AS deleted",
        "state.whole AS whole",
        f"from_json(keys, '{_MAP}') AS keys",
        "state.given AS given",
    )
    return mapped.selectExpr(
        "commit_timestamp",
        "key",
        "deleted",
        "whole",
        "given",
        *_row(columns, is_checked=is_checked),
    )


def whole_rows(
    inserts: DataFrame, table: str, columns: Sequence[Column], *, is_checked: bool = False
) -> DataFrame:
    """The rows of a table that were inserted once each.

    Returns:
        key, row and bad_columns as newest_changes() has them.

    Args:
        inserts: rows of the output's contract, one of them for each of the table's rows.
        table: the table's full name.
        columns: of the table.
        is_checked: as for newest_changes().
    """
    mods = inserts.where(F.col("table_name") == table).selectExpr("explode(mods) AS mod")
    maps = mods.selectExpr(
        "mod.keys AS key",
        f"from_json(mod.keys, '{_MAP}') AS keys",
        f"from_json(mod.new_values, '{_MAP}') AS given",
    )
    return maps.selectExpr("key", *_row(columns, is_checked=is_checked))


def _row(columns: Sequence[Column], *, is_checked: bool) -> list[str]:
    """Expressions of the row, and of the names of its bad columns."""
    cast = "TRY_CAST" if is_checked else "CAST"
    fields = ", ".join(
        f"{spark_value(_text(column), column.spanner_type, cast=cast)} AS {identifier(column.name)}"
        for column in columns
    )
    names = ", ".join(
        f"CASE WHEN {is_bad_value(_text(column), column.spanner_type)}"
        f" THEN {literal(column.name)} END"
        for column in columns
    )
    bad = [f"array_compact(array({names})) AS bad_columns"] if is_checked else []
    return [f"struct({fields}) AS row", *bad]


def _text(column: Column) -> str:
    source = "keys" if column.is_key else "given"
    return f"{source}[{literal(column.name)}]"


_WHOLE: Final = ", ".join(f"'{name}'" for name in sorted(WHOLE_ROW))
_LAID_OVER: Final = f"""
aggregate(
  transform(
    array_sort(collect_list(struct(
      struct(commit_timestamp, record_sequence, mod_number) AS place,
      mod_type,
      value_capture_type IN ({_WHOLE}) AS is_whole,
      mod.new_values AS new_values
    ))),
    change -> named_struct(
      'mod_type', change.mod_type,
      'is_whole', change.is_whole,
      'given', coalesce(from_json(change.new_values, '{_MAP}'), {_EMPTY})
    )
  ),
  named_struct('deleted', false, 'whole', false, 'given', {_EMPTY}),
  (state, change) -> CASE
    WHEN change.mod_type = 'DELETE'
      THEN named_struct('deleted', true, 'whole', true, 'given', {_EMPTY})
    WHEN change.mod_type = 'INSERT' OR change.is_whole
      THEN named_struct('deleted', false, 'whole', true, 'given', change.given)
    ELSE named_struct(
      'deleted', false,
      'whole', state.whole,
      'given', map_concat(
        map_filter(state.given, (name, value) -> NOT map_contains_key(change.given, name)),
        change.given
      )
    )
  END
)"""
