"""A table's rows after a merge, in Arrow."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.row_merges.row_changes import (
    CHANGED_AT,
    COMMIT_TIMESTAMP,
    IS_CHANGED,
    IS_DELETED,
    IS_MARKED_DELETED,
    IS_WHOLE,
)


def places(keys: pa.Table, latest: pa.Table, key: Sequence[Column]) -> pa.Array:
    """Return for each row of a table the place of its key among the latest rows; NULL without one.

    NULL is equal to NULL, as in Spanner's keys.

    Args:
        keys: the key's columns of the table's rows.
        latest: as latest_rows() makes them.
        key: the columns.
    """
    of_table = pa.repeat(pa.scalar(0, pa.int64()), keys.num_rows)
    of_latest = pa.repeat(pa.scalar(0, pa.int64()), latest.num_rows)
    for column in key:
        values = _comparable(_one(latest, column.name))
        distinct = pc.unique(values)
        size = len(distinct)
        in_table = pc.index_in(_comparable(_one(keys, column.name).cast(values.type)), distinct)
        of_table = pc.add(pc.multiply(of_table, size), in_table)
        of_latest = pc.add(pc.multiply(of_latest, size), pc.index_in(values, distinct))
        # Small again, however many columns there are.
        distinct = pc.unique(of_latest)
        of_table = _index_in(of_table, distinct)
        of_latest = _index_in(of_latest, distinct)
    return pc.index_in(of_table, of_latest, skip_nulls=True)


def updated_rows(
    rows: pa.Table,
    latest: pa.Table,
    columns: Sequence[Column],
    *,
    keeps_deleted: bool,
) -> pa.Table:
    """Return rows that an epoch changes as they are after it.

    Args:
        rows: of the mirror, with all of its columns.
        latest: the epoch's change to each of them, in the same order; as latest_rows() makes them.
        columns: those that the epoch's changes name.
        keeps_deleted: a deleted row stays with its last values, and is marked as deleted.
    """
    is_deleted = _one(latest, IS_DELETED)
    if not keeps_deleted:
        is_there = pc.invert(is_deleted)
        rows, latest = rows.filter(is_there), latest.filter(is_there)
        is_deleted = _one(latest, IS_DELETED)
    for column in columns:
        if not column.is_set_by_update:
            continue
        new, old = _one(latest, column.name), _one(rows, column.name)
        is_new = pc.and_(pc.invert(is_deleted), _is_new(latest, column))
        # if_else() does not support lists.
        both = pa.concat_arrays([new.cast(old.type), old])
        at = pa.array(range(len(old)), pa.int64())
        unchanged = pc.add(at, len(old))
        if column.absent_at is not None:
            unchanged = pc.if_else(is_deleted, unchanged, None)
        chosen = both.take(pc.if_else(is_new, at, unchanged))
        rows = with_column(rows, column.name, chosen)
    return _marked(rows, latest) if keeps_deleted else rows


def inserted_rows(
    latest: pa.Table,
    columns: Sequence[Column],
    schema: pa.Schema,
    *,
    keeps_deleted: bool,
) -> pa.Table:
    """Return the rows that an epoch inserts.

    Args:
        latest: the epoch's changes to rows that the mirror does not have.
        columns: those that the epoch's changes name; the mirror's others are NULL.
        schema: the mirror's.
        keeps_deleted: a deleted row is inserted, too, marked as deleted.
    """
    if not keeps_deleted:
        latest = latest.filter(pc.invert(_one(latest, IS_DELETED)))
    names = {column.name for column in columns}
    arrays = [
        _one(latest, field.name).cast(field.type)
        if field.name in names
        else pa.nulls(latest.num_rows, field.type)
        for field in schema
    ]
    rows = pa.Table.from_arrays(arrays, schema=schema)
    return _marked(rows, latest) if keeps_deleted else rows


def _marked(rows: pa.Table, latest: pa.Table) -> pa.Table:
    rows = with_column(rows, IS_MARKED_DELETED, _one(latest, IS_DELETED))
    return with_column(rows, CHANGED_AT, _one(latest, COMMIT_TIMESTAMP))


def _is_new(latest: pa.Table, column: Column) -> Any:
    """Return whether the changes of each row have a value of a column."""
    is_whole = _one(latest, IS_WHOLE)
    name = IS_CHANGED + column.name
    if name not in latest.column_names:
        return is_whole
    return pc.or_(is_whole, _one(latest, name))


def with_column(rows: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return rows with other values of a column, which keeps its type."""
    at = rows.schema.get_field_index(name)
    field = rows.schema.field(at)
    return rows.set_column(at, field, values.cast(field.type))


def _comparable(values: Any) -> Any:
    """Return values of which equal ones are the same: -0.0 is 0.0, for Spark and for Spanner."""
    return pc.add(values, 0.0) if pa.types.is_floating(values.type) else values


def _index_in(values: Any, distinct: Any) -> Any:
    return pc.index_in(values, distinct, skip_nulls=True).cast(pa.int64())


def _one(rows: pa.Table, name: str) -> Any:
    """Return a column as one array."""
    return rows.column(name).combine_chunks()
