"""The view over a changelog that rebuilds the table in its current state.

If every change captures the whole row, the latest change per key is the row: ROW_NUMBER over the
key, in descending order of commit timestamp and record sequence. If an update captures only the
columns that it changed, the changes of a key are folded in their order.

Keys are compared by their values: the same key may be another text in a change record than in a
scan's, which has its columns in another order, and floats in another spelling.
"""
# ruff: noqa: S608 - this module builds statements; names and texts in them are quoted

from collections.abc import Collection, Mapping
from typing import Final

from slackwater.spark_sink.sql.columns import columns_from_schema, mirror_columns
from slackwater.spark_sink.sql.quoting import identifier, literal
from slackwater.spark_sink.sql.types import (
    VALUES,
    nanoseconds_expression,
    value_expression,
    values_expression,
)

# The value capture type of a change stream without that option.
DEFAULT_VALUE_CAPTURE_TYPE: Final = "OLD_AND_NEW_VALUES"
# Value capture types whose new_values hold the whole row.
WHOLE_ROW_CAPTURE_TYPES: Final = frozenset({"NEW_ROW", "NEW_ROW_AND_OLD_VALUES"})


def create_view(
    table: str,
    view: str,
    columns: Mapping[str, str],
    key: Collection[str],
    changes: str,
    *,
    is_whole_row: bool,
) -> str:
    """Return the CREATE VIEW statement in Spark SQL.

    The view is complete only if the changelog has every change: it must have started before the
    first row was written.

    Args:
        table: the table's full name.
        view: the view's name.
        columns: Spanner types by the names of the current columns, in the table's order.
        key: the names of the primary key's columns.
        changes: the changelog's name in Spark SQL, such as parquet.`out/changes`.
        is_whole_row: whether every change captures the whole row.
    """
    listed = ",\n  ".join(_column(name, kind, is_key=name in key) for name, kind in columns.items())
    newest = _LATEST_ROW if is_whole_row else _FOLD_UPDATES
    return (
        f"CREATE OR REPLACE VIEW {identifier(view)} AS\n"
        f"WITH changes AS (\n{_changes(table, changes)}\n),\n"
        f"newest AS (\n{newest.format(key=_key(columns, key))}\n)\n"
        f"SELECT\n  {listed}\nFROM newest\nWHERE new_values IS NOT NULL;\n"
    )


def _changes(table: str, changes: str) -> str:
    return (
        f"  SELECT {values_expression('mod.keys')} AS keys, mod_type,\n"
        "    mod.new_values AS new_values,\n"
        "    struct(commit_timestamp, record_sequence, mod_number) AS place\n"
        f"  FROM {changes} LATERAL VIEW posexplode(mods) AS mod_number, mod\n"
        f"  WHERE table_name = {literal(table)}"
    )


def _key(columns: Mapping[str, str], key: Collection[str]) -> str:
    """Return the expressions by whose values rows are told apart."""
    of_key = columns_from_schema({name: columns[name] for name in columns if name in key}, key)
    values = []
    for column in mirror_columns(of_key):
        text = f"keys[{literal(column.nanoseconds_of or column.name)}]"
        is_beyond = column.nanoseconds_of is not None
        values.append(
            nanoseconds_expression(text)
            if is_beyond
            else value_expression(text, column.spanner_type)
        )
    # A table without key columns has one row at most.
    return ", ".join(values) or "true"


_LATEST_ROW: Final = f"""\
  SELECT keys,
    CASE WHEN mod_type != 'DELETE' THEN {values_expression("new_values")} END AS new_values
  FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY {{key}} ORDER BY place DESC) AS number FROM changes
  )
  WHERE number = 1"""

_FOLD_UPDATES: Final = f"""\
  SELECT any_value(keys) AS keys,
    aggregate(
      transform(
        array_sort(collect_list(struct(place, mod_type, new_values))),
        change -> struct(
          change.mod_type, {values_expression("change.new_values")} AS new_values
        )
      ),
      CAST(NULL AS {VALUES}),
      (values, change) -> CASE change.mod_type
        WHEN 'DELETE' THEN NULL
        WHEN 'INSERT' THEN change.new_values
        ELSE map_concat(
          map_filter(
            coalesce(values, CAST(map() AS {VALUES})),
            (name, value) -> NOT map_contains_key(change.new_values, name)
          ),
          change.new_values
        )
      END
    ) AS new_values
  FROM changes
  GROUP BY {{key}}"""


def _column(name: str, spanner_type: str, *, is_key: bool) -> str:
    source = "keys" if is_key else "new_values"
    value = value_expression(f"{source}[{literal(name)}]", spanner_type)
    return f"{value} AS {identifier(name)}"
