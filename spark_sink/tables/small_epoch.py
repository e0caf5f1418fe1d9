"""A small epoch on the driver: what it does to each row of a table, without a job of Spark's.

The rules are those of sql.latest_changes, which says them to Spark: for a table with a few changed
rows a job takes longer than the changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from slackwater.spark_sink.sql.columns import Column, columns_from_records
from slackwater.spark_sink.sql.rebuild_view import WHOLE_ROW_CAPTURE_TYPES
from slackwater.timestamp import parse_rfc3339
from slackwater.typed_values import arrow_array, arrow_type

# The columns of latest_rows() besides the table's. No name in Spanner begins with an underscore.
IS_DELETED: Final = "_latest_is_deleted"
IS_WHOLE: Final = "_latest_is_whole"
COMMIT_TIMESTAMP: Final = "_latest_commit_timestamp"
# Before the name of a column: whether the changes have a value of it.
IS_CHANGED: Final = "_latest_is_changed_"

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


@dataclass(frozen=True, slots=True)
class Mod:
    """A change of one row.

    Attributes:
        key: JSON of the key.
        mod_type: INSERT, UPDATE or DELETE.
        is_whole: whether the value capture type captures whole rows.
        new_values: JSON of the values after the change; None for none.
        commit_timestamp: of the change.
    """

    key: str
    mod_type: str
    is_whole: bool
    new_values: str | None
    commit_timestamp: datetime


@dataclass(frozen=True, slots=True)
class RowChange:
    """What an epoch does to a row.

    Attributes:
        is_deleted: the row is gone.
        is_whole: the changes have the whole row: what is not in values is NULL.
        values: the JSON values that the changes have, by column.
        commit_timestamp: the latest change's.
    """

    is_deleted: bool
    is_whole: bool
    values: Mapping[str, Any]
    commit_timestamp: datetime


def latest_by_key(mods: Iterable[Mod]) -> dict[str, RowChange]:
    """Return what the mods of a table, in their order, do to each row, by the JSON of its key."""
    latest: dict[str, RowChange] = {}
    for mod in mods:
        latest[mod.key] = _after(latest.get(mod.key), mod)
    return latest


def _after(before: RowChange | None, mod: Mod) -> RowChange:
    if mod.mod_type == "DELETE":
        return RowChange(True, True, {}, mod.commit_timestamp)
    values = orjson.loads(mod.new_values) if mod.new_values else {}
    if before is None or mod.mod_type == "INSERT" or mod.is_whole:
        is_whole = mod.mod_type == "INSERT" or mod.is_whole
        return RowChange(False, is_whole, values, mod.commit_timestamp)
    return RowChange(False, before.is_whole, {**before.values, **values}, mod.commit_timestamp)


def latest_rows(changes: Mapping[str, RowChange], columns: Sequence[Column]) -> pa.Table:
    """Return what an epoch does to a table's rows as Arrow.

    Args:
        changes: by the JSON of the key.
        columns: the mirror's.

    Returns:
        The mirror's columns, IS_DELETED, IS_WHOLE, COMMIT_TIMESTAMP and, if a row is not whole,
        IS_CHANGED with the name of each column that is none of the key's.

    Raises:
        ValueTypeError: a value is not of its column's type.
    """
    keys = list(map(orjson.loads, changes))
    rows = list(changes.values())
    arrays: dict[str, pa.Array] = {}
    for column in columns:
        values = keys if column.is_key else [row.values for row in rows]
        arrays[column.name] = _column(column, [row.get(_source(column)) for row in values])
    arrays[IS_DELETED] = pa.array([row.is_deleted for row in rows], pa.bool_())
    arrays[IS_WHOLE] = pa.array([row.is_whole for row in rows], pa.bool_())
    times = [row.commit_timestamp for row in rows]
    arrays[COMMIT_TIMESTAMP] = pa.array(times, _TIME)
    if not all(row.is_whole for row in rows):
        for column in columns:
            if not column.is_key:
                is_changed = [column.name in row.values for row in rows]
                arrays[IS_CHANGED + column.name] = pa.array(is_changed, pa.bool_())
    return pa.table(arrays)


def _source(column: Column) -> str:
    return column.nanoseconds_of or column.name


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
        # Spark's Parquet files do not say that times are in UTC.
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
        """Return what the epoch does to each row of a table, by the JSON of its key."""
        records = self._records.filter(pc.equal(self._records.column("table_name"), table))
        return latest_by_key(_mods(records))


def _mods(records: pa.Table) -> list[Mod]:
    """Return the mods of records in their order."""
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
    columns = (
        in_order.column(name).to_pylist()
        for name in ("key", "mod_type", "value_capture_type", "new_values", _AT)
    )
    return [
        Mod(key, mod_type, capture in WHOLE_ROW_CAPTURE_TYPES, new_values, at)
        for key, mod_type, capture, new_values, at in zip(*columns, strict=True)
    ]


def _texts(column_types: pa.ListArray) -> pa.Array:
    """Return a text for each list of columns; equal lists have equal texts."""
    fields = [pc.cast(field, pa.string()) for field in column_types.values.flatten()]
    columns = pc.binary_join_element_wise(*fields, _BETWEEN_FIELDS)
    return pc.binary_join(pa.ListArray.from_arrays(column_types.offsets, columns), _BETWEEN_COLUMNS)


def _one(column: pa.ChunkedArray) -> Any:
    """Return a column that is in one chunk, or in none, as an array."""
    return column.combine_chunks()
