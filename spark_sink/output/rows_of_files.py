"""Rows as files have them, without deleted ones, in the columns that their table has."""

from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def are_deleted(first: int, size: int, deleted: pa.Array) -> pa.Array:
    """Return for each row from a position on whether it is deleted.

    Args:
        first: the position of the first row.
        size: the number of rows.
        deleted: the positions of deleted rows.
    """
    return pc.is_in(pa.array(np.arange(first, first + size)), deleted)


def without(rows: Rows, first: int, deleted: pa.Array | None) -> Rows:
    """Return the rows that are not deleted.

    Args:
        rows: some of a file's, in their order.
        first: the position of the first of them.
        deleted: the positions of deleted rows; None for none.
    """
    if deleted is None:
        return rows
    return rows.filter(pc.invert(are_deleted(first, rows.num_rows, deleted)))


def in_columns(rows: Rows, columns: pa.Schema) -> Rows:
    """Return rows in some columns; those that they lack are NULL.

    Raises:
        pyarrow.ArrowException: a value is not of its column's type.
    """
    arrays = [
        rows.column(column.name).cast(column.type)
        if column.name in rows.schema.names
        else pa.nulls(rows.num_rows, column.type)
        for column in columns
    ]
    made: Rows = type(rows).from_arrays(arrays, schema=columns)
    return made
