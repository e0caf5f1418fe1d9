"""A small epoch on the driver, in Arrow: a job of Spark's would take too long for a few rows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from slackwater.spark_sink.sql.columns import Column, columns_from_records
from slackwater.spark_sink.sql.rebuild_view import WHOLE_ROW_CAPTURE_TYPES
from slackwater.spark_sink.tables.row_merges.row_changes import (
    COMMIT_TIMESTAMP,
    IS_CHANGED,
    IS_DELETED,
    IS_WHOLE,
    Mod,
    RowChange,
    latest_by_key,
)
from slackwater.timestamp import parse_rfc3339
from slackwater.typed_values import arrow_array, arrow_type

_TIME: Final = pa.timestamp("us", tz="UTC")
_AT: Final = "commit_timestamp"
_READ: Final = (
    "table_name",
    _AT,
    "record_sequence",
    "mod_type",
    "value_capture_type",
    "column_types",
    "mods",
)
_ORDER: Final = (_AT, "record_sequence", "mod_number")
# Neither is in a name or in JSON.
_BETWEEN_FIELDS: Final = "\x1f"
_BETWEEN_COLUMNS: Final = "\x1e"


def latest_rows(changes: Mapping[str, RowChange], columns: Sequence[Column]) -> pa.Table:
    """Return the effect of an epoch on a table's rows as Arrow.

    Args:
        changes: by the JSON of the key.
        columns: the mirror's.

    Returns:
        The mirror's columns, IS_DELETED, IS_WHOLE, COMMIT_TIMESTAMP and, if a row is not whole,
        IS_CHANGED with the name of each column that is not the key's.

    Raises:
        ValueTypeError: a value is not of its column's type.
    """
    keys = list(map(orjson.loads, changes))
    rows = list(changes.values())
    arrays: dict[str, pa.Array] = {}
    for column in columns:
        values = keys if column.is_key else [row.values for row in rows]
        source = column.nanoseconds_of or column.name
        arrays[column.name] = _column(column, [row.get(source) for row in values])
    arrays[IS_DELETED] = pa.array([row.is_deleted for row in rows], pa.bool_())
    arrays[IS_WHOLE] = pa.array([row.is_whole for row in rows], pa.bool_())
    times = pa.array([row.committed_us for row in rows], pa.int64())
    arrays[COMMIT_TIMESTAMP] = times.cast(_TIME)
    if not all(row.is_whole for row in rows):
        for column in columns:
            if not column.is_key:
                is_changed = [column.name in row.values for row in rows]
                arrays[IS_CHANGED + column.name] = pa.array(is_changed, pa.bool_())
    return pa.table(arrays)


def _column(column: Column, values: Sequence[Any]) -> pa.Array:
    if column.nanoseconds_of is None:
        return arrow_array(values, arrow_type(column.spanner_type))
    beyond = [None if value is None else parse_rfc3339(value) % 1_000 for value in values]
    return pa.array(beyond, pa.int32())


class SmallEpoch:
    """The records of an epoch, held by the driver.

    Args:
        records: rows of the output's contract; other columns than the rules need may be missing.
    """

    def __init__(self, records: pa.Table) -> None:
        # Spark's Parquet files do not record that times are in UTC.
        times = records.column(_AT).cast(_TIME)
        at = records.schema.get_field_index(_AT)
        self._records = records.set_column(at, _AT, times).select(_READ).combine_chunks()

    @staticmethod
    def columns_read() -> tuple[str, ...]:
        """Return the columns of records that are needed."""
        return _READ

    def columns_by_table(self) -> dict[str, tuple[Column, ...]]:
        """Return the columns of each table that the epoch changes, by the table's full name."""
        if not self._records.num_rows:
            return {}
        texts = _texts(_one(self._records.column("column_types")))
        records = pa.table(
            {
                "table": self._records.column("table_name"),
                "columns": texts,
                "at": self._records.column(_AT),
                "row": pa.array(range(len(texts)), pa.int64()),
            }
        )
        versions = records.group_by(["table", "columns"]).aggregate([("at", "max"), ("row", "min")])
        by_table: dict[str, list[Any]] = {}
        for version in versions.sort_by("at_max").to_pylist():
            columns = self._records.column("column_types")[version["row_min"]].as_py()
            by_table.setdefault(version["table"], []).append(columns)
        return {table: columns_from_records(lists) for table, lists in sorted(by_table.items())}

    def latest(self, table: str) -> dict[str, RowChange]:
        """Return the effect of the epoch on each row of a table, by the JSON of its key."""
        records = self._records.filter(pc.equal(self._records.column("table_name"), table))
        return latest_by_key(_mods(records))


def _mods(records: pa.Table) -> Iterator[Mod]:
    """Yield the mods of records in their order."""
    mods = _one(records.column("mods"))
    parents = pc.list_parent_indices(mods)
    of_mods = records.drop_columns(["mods", "column_types", "table_name"]).take(parents)
    flat = mods.flatten()
    # Mods of one record are in their order already, and sorting keeps it.
    numbers = pa.array(range(len(flat)), pa.int64())
    of_mods = of_mods.append_column("mod_number", numbers)
    of_mods = of_mods.append_column("key", flat.field("keys"))
    of_mods = of_mods.append_column("new_values", flat.field("new_values"))
    in_order = of_mods.sort_by([(name, "ascending") for name in _ORDER])
    is_whole = pc.is_in(
        in_order.column("value_capture_type"), pa.array(sorted(WHOLE_ROW_CAPTURE_TYPES))
    )
    columns = (
        in_order.column("key"),
        in_order.column("mod_type"),
        is_whole,
        in_order.column("new_values"),
        # As a number: to make a datetime of each takes as long as all the rest.
        in_order.column(_AT).cast(pa.int64()),
    )
    # One at a time: see RowChange.
    return map(Mod, *(column.to_pylist() for column in columns))


def _texts(column_types: pa.ListArray) -> pa.Array:
    """Return a text for each list of columns; equal lists have equal texts."""
    fields = [pc.cast(field, pa.string()) for field in column_types.values.flatten()]
    columns = pc.binary_join_element_wise(*fields, _BETWEEN_FIELDS)
    return pc.binary_join(pa.ListArray.from_arrays(column_types.offsets, columns), _BETWEEN_COLUMNS)


def _one(column: pa.ChunkedArray) -> Any:
    """Return a column that is in one chunk, or in none, as an array."""
    return column.combine_chunks()
