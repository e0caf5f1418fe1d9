"""Arrow record batches of the output's schema, made of data change records."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from slackwater.reader.records import ColumnType, DataChangeRecord
from slackwater.reader.schema import COLUMN_TYPES, DATA_SCHEMA, MODS, SCHEMA
from slackwater.timestamp import NANOSECONDS_PER_MICROSECOND, ns_to_us

_STRING = pa.string()
_JSON_NULL = "null"
_NO_KEY = "{}"


def data_columns(records: Sequence[DataChangeRecord]) -> pa.RecordBatch:
    """Return data change records as the first 13 columns of the output."""
    columns: list[Sequence[Any]] = list(zip(*records, strict=True)) or [()] * len(DATA_SCHEMA)
    timestamp = DATA_SCHEMA.field("commit_timestamp").type
    commit_us = [ns // NANOSECONDS_PER_MICROSECOND for ns in columns[0]]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(commit_us, pa.int64()).cast(timestamp),
            *(pa.array(columns[i], SCHEMA.field(i).type) for i in range(1, 5)),
            _column_types(columns[5]),
            _mods(columns[6]),
            *(pa.array(columns[i], SCHEMA.field(i).type) for i in range(7, 13)),
        ],
        schema=DATA_SCHEMA,
    )


def to_record_batch(
    data: pa.RecordBatch, owners: Sequence[tuple[str, int]], *, low_watermark_ns: int
) -> pa.RecordBatch:
    """Return all columns of the output.

    Args:
        data: the first 13 columns.
        owners: pairs of a partition token and its number of rows, in the rows' order.
        low_watermark_ns: the low watermark of the epoch, nanoseconds. The column has microseconds,
            rounded down: every commit_timestamp of the epoch is still at or below it.
    """
    tokens = pa.DictionaryArray.from_arrays(
        pa.array(np.repeat(np.arange(len(owners), dtype=np.int32), [n for _, n in owners])),
        pa.array([token for token, _ in owners], _STRING),
    )
    timestamp = SCHEMA.field("low_watermark").type
    watermark = pa.scalar(ns_to_us(low_watermark_ns), pa.int64()).cast(timestamp)
    return pa.RecordBatch.from_arrays(
        [*data.columns, tokens.dictionary_decode(), pa.repeat(watermark, data.num_rows)],
        schema=SCHEMA,
    )


def _column_types(columns: Sequence[tuple[ColumnType, ...]]) -> pa.Array:
    """Build each distinct list of column types once, and take it by its index for each row."""
    index: dict[tuple[ColumnType, ...], int] = {}
    # The decoder uses one tuple for equal column types, so its id() makes hashing unnecessary.
    by_identity: dict[int, int] = {}
    indices = []
    for column in columns:
        position = by_identity.get(id(column))
        if position is None:
            position = by_identity[id(column)] = index.setdefault(column, len(index))
        indices.append(position)
    return column_types_array(index, pa.array(indices, pa.int32()))


def _mods(columns: Sequence[Sequence[Any]]) -> pa.Array:
    counts = np.fromiter(map(len, columns), np.int64, len(columns))
    mods = [mod for column in columns for mod in column]
    cells = zip(*mods, strict=True) if mods else ((), (), ())
    return mods_array(counts, [pa.array(texts, _STRING) for texts in cells])


def column_types_array(distinct: Iterable[Sequence[ColumnType]], indices: pa.Array) -> pa.Array:
    """Return the column column_types, whose values repeat from row to row.

    Args:
        distinct: each list of column types once.
        indices: the index of each row's list in distinct.
    """
    lists = pa.array([[c._asdict() for c in column] for column in distinct], COLUMN_TYPES)
    return lists.take(indices)


def mods_array(counts: npt.NDArray[np.int64], texts: Sequence[pa.Array]) -> pa.Array:
    """Return the column mods.

    Args:
        counts: the number of each row's mods.
        texts: keys, new_values and old_values of all mods. A table without key columns has an empty
            object as its keys; in some forms Spanner sends a JSON null, or NULL.
    """
    keys, *values_of = texts
    if keys.null_count or pc.any(pc.equal(keys, _JSON_NULL)).as_py():
        keys = pc.if_else(pc.equal(keys, _JSON_NULL), _NO_KEY, keys).fill_null(_NO_KEY)
    values = pa.StructArray.from_arrays([keys, *values_of], fields=list(MODS.value_type))
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=MODS)
