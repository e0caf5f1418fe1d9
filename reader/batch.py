"""Data change records to Arrow record batches of the output's schema."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from reader.records import ColumnType, DataChangeRecord
from reader.schema import COLUMN_TYPES, MODS, SCHEMA

_STRING = pa.string()


def to_record_batch(
    groups: Sequence[tuple[str, Sequence[DataChangeRecord]]], *, low_watermark_ns: int
) -> pa.RecordBatch:
    """One batch of the records of several partitions.

    Args:
        groups: pairs of a partition token and its records.
        low_watermark_ns: the low watermark of the epoch, nanoseconds; the column has microseconds,
            and rounding down keeps every commit_timestamp of the epoch at or below it.
    """
    records = [record for _, group in groups for record in group]
    columns: list[Sequence[Any]] = list(zip(*records, strict=True)) or [()] * 13
    tokens = pa.DictionaryArray.from_arrays(
        pa.array([i for i, (_, group) in enumerate(groups) for _ in group], pa.int32()),
        pa.array([token for token, _ in groups], _STRING),
    )
    timestamp = SCHEMA.field("commit_timestamp").type
    watermark = pa.scalar(low_watermark_ns // 1000, pa.int64()).cast(timestamp)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([ns // 1000 for ns in columns[0]], pa.int64()).cast(timestamp),
            *(pa.array(columns[i], SCHEMA.field(i).type) for i in range(1, 5)),
            _column_types(columns[5]),
            _mods(columns[6]),
            *(pa.array(columns[i], SCHEMA.field(i).type) for i in range(7, 13)),
            tokens.dictionary_decode(),
            pa.repeat(watermark, len(records)),
        ],
        schema=SCHEMA,
    )


def _column_types(columns: Sequence[tuple[ColumnType, ...]]) -> pa.Array:
    """Each distinct list of column types is built once and then taken by its index."""
    index: dict[tuple[ColumnType, ...], int] = {}
    # The decoder hands out one tuple for equal column types: its identity spares the hashing.
    by_identity: dict[int, int] = {}
    indices = []
    for column in columns:
        position = by_identity.get(id(column))
        if position is None:
            position = by_identity[id(column)] = index.setdefault(column, len(index))
        indices.append(position)
    distinct = pa.array([[c._asdict() for c in column] for column in index], COLUMN_TYPES)
    return distinct.take(pa.array(indices, pa.int32()))


def _mods(columns: Sequence[Sequence[Any]]) -> pa.Array:
    offsets = pa.array([0, *accumulate(map(len, columns))], pa.int32())
    mods = [mod for column in columns for mod in column]
    keys, new_values, old_values = zip(*mods, strict=True) if mods else ((), (), ())
    values = pa.StructArray.from_arrays(
        [pa.array(texts, _STRING) for texts in (keys, new_values, old_values)],
        fields=list(MODS.value_type),
    )
    return pa.ListArray.from_arrays(offsets, values, type=MODS)
