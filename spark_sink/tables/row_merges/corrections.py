"""The corrections that make a mirror equal to its table in a range of keys."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.row_merges.merged_rows import places
from slackwater.spark_sink.tables.row_merges.row_changes import (
    COMMIT_TIMESTAMP,
    IS_CHANGED,
    IS_DELETED,
    IS_WHOLE,
    RowChange,
)
from slackwater.spark_sink.tables.row_merges.small_epoch import latest_rows
from slackwater.timestamp import datetime_to_us
from slackwater.typed_values import ValueTypeError

_US: Final = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Corrections:
    """Rows of one table that differ from its mirror, as of a low watermark.

    Attributes:
        columns: the mirror's, as it should have them.
        low_watermark: the mirror has all changes up to it, and none later.
        rows: as latest_rows() makes them; all are whole or deleted.
    """

    columns: Sequence[Column]
    low_watermark: datetime
    rows: pa.Table

    def fit(self, columns: Sequence[Column]) -> bool:
        """Return whether an epoch's columns are among these, with the same types."""
        own = {column.name: (column.spark_type, column.is_key) for column in self.columns}
        return all(
            own.get(column.name) == (column.spark_type, column.is_key)
            and not column.former_types
            and column.absent_at is None
            for column in columns
        )


@dataclass(frozen=True, slots=True)
class TypedRows:
    """A table's rows in the types of its mirror.

    Attributes:
        rows: as latest_rows() makes them.
        unconverted: the same of rows with a value that is not of its column's type: their keys.
    """

    rows: pa.Table
    unconverted: pa.Table


def typed_rows(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[Column], at: datetime
) -> TypedRows:
    """Return a table's rows in the types of its mirror.

    Args:
        rows: values as Spanner's JSON has them, by column.
        columns: the mirror's.
        at: as of when the rows were read.
    """
    names = [column.name for column in columns if column.is_key and not column.nanoseconds_of]
    at_us = datetime_to_us(at)
    changes = {
        orjson.dumps({n: row[n] for n in names}).decode(): RowChange(False, True, row, at_us)
        for row in rows
    }
    try:
        return TypedRows(latest_rows(changes, columns), latest_rows({}, columns))
    except ValueTypeError:
        good = {key: row for key, row in changes.items() if _is_typed(key, row, columns)}
        nothing = RowChange(False, True, {}, at_us)
        # A key that can't be converted is in no mirror.
        bad = dict.fromkeys(changes.keys() - good.keys(), nothing)
        bad = {key: row for key, row in bad.items() if _is_typed(key, row, columns)}
        return TypedRows(latest_rows(good, columns), latest_rows(bad, columns))


def differences(
    expected: TypedRows, actual: pa.Table, columns: Sequence[Column], at: datetime
) -> pa.Table:
    """Return the changes that make actual rows equal to expected ones, as latest_rows() has them.

    Args:
        expected: the table's rows. The mirror keeps its versions of those that can't be converted.
        actual: the rows of the mirror, in the same columns.
        columns: the mirror's.
        at: as of when the expected rows were read.
    """
    names = [column.name for column in columns]
    key = _key(columns)
    of_mirror = dict(zip(_tuples(actual, key), _tuples(actual, names), strict=True))
    rows = zip(_tuples(expected.rows, key), _tuples(expected.rows, names), strict=True)
    wrong = [place for place, (one, row) in enumerate(rows) if of_mirror.get(one) != row]
    rest = expected.rows.take(pa.array(wrong, pa.int64()))
    return pa.concat_tables([rest, vanished(expected, actual, columns, at)])


def vanished(
    expected: TypedRows, actual: pa.Table, columns: Sequence[Column], at: datetime
) -> pa.Table:
    """Return the actual rows that are not expected, as deleted, like differences().

    Args:
        expected, columns, at: see differences().
        actual: rows of the mirror, of which the key's columns are enough.
    """
    key = _key(columns)
    there = {*_tuples(expected.rows, key), *_tuples(expected.unconverted, key)}
    unexpected = [place for place, one in enumerate(_tuples(actual, key)) if one not in there]
    rows = actual.take(pa.array(unexpected, pa.int64()))
    return _deleted(rows, columns, expected.rows.schema, at)


def with_corrections(
    latest: pa.Table, corrections: pa.Table, columns: Sequence[Column]
) -> pa.Table:
    """Return the changes of an epoch to a table's rows after they were corrected.

    Args:
        latest: as latest_rows() makes them, or Spark, whose types may differ in names.
        corrections: the same, of before the epoch.
        columns: the mirror's.
    """
    types = {field.name: field.type for field in latest.schema}
    by_name = {
        field.name: corrections.column(field.name).cast(types.get(field.name, field.type))
        for field in corrections.schema
    }
    corrections = pa.table(by_name)
    in_epoch = places(corrections, latest, [column for column in columns if column.is_key])
    alone: list[int] = []
    whole = dict.fromkeys(range(latest.num_rows))
    completed: list[dict[str, Any]] = []
    for place, changed in enumerate(in_epoch.to_pylist()):
        if changed is None:
            alone.append(place)
        elif not latest.column(IS_WHOLE)[changed].as_py():
            before = corrections.slice(place, 1).to_pylist()[0]
            if not before[IS_DELETED]:
                del whole[changed]
                after = latest.slice(changed, 1).to_pylist()[0]
                completed.append(_completed(before, after, columns))
    parts = [
        latest.take(pa.array(list(whole), pa.int64())),
        corrections.take(pa.array(alone, pa.int64())),
        pa.Table.from_pylist(completed, latest.schema),
    ]
    joined = pa.concat_tables(parts, promote_options="default").combine_chunks()
    for place, name in enumerate(joined.column_names):
        if name.startswith(IS_CHANGED):
            joined = joined.set_column(place, name, pc.fill_null(joined.column(name), False))
    return joined


def _completed(
    before: Mapping[str, Any], after: Mapping[str, Any], columns: Sequence[Column]
) -> dict[str, Any]:
    """Return a corrected row after an update of some of its columns."""
    return {
        **after,
        **{
            column.name: before[column.name]
            for column in columns
            if not column.is_key and not after[IS_CHANGED + column.name]
        },
        IS_WHOLE: True,
    }


def _is_typed(key: str, row: RowChange, columns: Sequence[Column]) -> bool:
    try:
        latest_rows({key: row}, columns)
    except ValueTypeError:
        return False
    return True


def _deleted(
    rows: pa.Table, columns: Sequence[Column], schema: pa.Schema, at: datetime
) -> pa.Table:
    """Return rows of the mirror as deleted, in a schema of latest_rows()."""
    count = rows.num_rows
    arrays: dict[str, Any] = {
        column.name: (
            rows.column(column.name).cast(schema.field(column.name).type)
            if column.is_key
            else pa.nulls(count, schema.field(column.name).type)
        )
        for column in columns
    }
    arrays[IS_DELETED] = pa.array([True] * count, pa.bool_())
    arrays[IS_WHOLE] = pa.array([True] * count, pa.bool_())
    arrays[COMMIT_TIMESTAMP] = pa.array([at] * count, _US)
    return pa.table(arrays, schema=schema)


def _key(columns: Sequence[Column]) -> list[str]:
    return [column.name for column in columns if column.is_key]


def _tuples(rows: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the values of some columns, row by row, so that equal values are equal in Python."""
    if not names:
        return [()] * rows.num_rows
    return list(zip(*(_values(rows.column(name)) for name in names), strict=True))


def _values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        # Python's times end with the year 9999 in their time zone.
        column = column.cast(_US).cast(pa.int64())
    return list(map(_hashable, column.to_pylist()))


def _hashable(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    # NaN is not equal to itself.
    return "NaN" if value != value else value
