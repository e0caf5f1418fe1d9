"""Changes of a synthetic Bigtable as the rows that land, and an output held against them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds

from tests.support.read_tables import rows_at
from tests.synthetic.bigtable.history import (
    AddToCell,
    Change,
    DeleteCells,
    DeleteFamily,
    Entry,
    MergeToCell,
    SetCell,
)

TABLES: Final = ("delta", "iceberg")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Landed:
    """The size of an output.

    Attributes:
        changes: its rows.
        partitions: how many have rows.
        epochs: how many have rows.
    """

    changes: int
    partitions: int
    epochs: int


def rows_in_order(file_format: str, path: Path) -> list[dict[str, Any]]:
    """Return the rows of an output by epoch, and within one as its files have them.

    A row key is in one partition at a time, and an epoch has a partition's rows in one file.
    """
    table = (
        rows_at(file_format, path)
        if file_format in TABLES
        else ds.dataset(path, format=file_format, partitioning="hive").to_table()
    )
    return sorted(table.to_pylist(), key=lambda row: row["low_watermark"])


def require_once(rows: Sequence[Mapping[str, Any]], changes: Iterable[Change]) -> Landed:
    """Require each change once, with all that it holds, and those of each row in order.

    Args:
        rows: in the output's order.
        changes: what has to be there.

    Raises:
        AssertionError: it is not so.
    """
    seen: Counter[Hashable] = Counter(map(_identity, rows))
    expected: Counter[Hashable] = Counter(map(row_of, changes))
    missing, unknown = expected - seen, seen - expected
    assert not missing, f"{missing.total()} are missing: {list(missing)[:3]}"
    assert not unknown, f"{unknown.total()} are there twice or are none: {list(unknown)[:3]}"
    commits = defaultdict(list)
    for row in rows:
        commits[row["row_key"], row["source_cluster_id"]].append(row["commit_timestamp"])
    unordered = [key for key, times in commits.items() if times != sorted(times)]
    assert not unordered, f"out of order: {unordered[:3]}"
    partitions = {row["partition"] for row in rows}
    return Landed(len(rows), len(partitions), len({row["low_watermark"] for row in rows}))


def row_of(change: Change) -> tuple[Hashable, ...]:
    """Return what the row of a change holds, without the place where it was read."""
    return (
        change.row_key,
        change.commit_us,
        "GARBAGE_COLLECTION" if change.is_garbage_collection else "USER",
        change.cluster or None,
        change.tie_breaker,
        tuple(map(_entry, change.entries)),
    )


def _identity(row: Mapping[str, Any]) -> tuple[Hashable, ...]:
    return (
        row["row_key"],
        (row["commit_timestamp"] - _EPOCH) // timedelta(microseconds=1),
        row["type"],
        row["source_cluster_id"],
        row["tiebreaker"],
        tuple(tuple(entry.values()) for entry in row["entries"]),
    )


def _entry(entry: Entry) -> tuple[Hashable, ...]:
    match entry:
        case SetCell(family, qualifier, timestamp_us, value):
            return ("SET_CELL", family, qualifier, timestamp_us, None, value)
        case DeleteCells(family, qualifier, start_us, end_us):
            return ("DELETE_CELLS", family, qualifier, start_us, end_us or None, None)
        case DeleteFamily(family):
            return ("DELETE_FAMILY", family, None, None, None, None)
        case AddToCell(family, qualifier, timestamp_us, number):
            value = number.to_bytes(8, "big", signed=True)
            return ("ADD_TO_CELL", family, qualifier, timestamp_us, None, value)
        case MergeToCell(family, qualifier, timestamp_us, state):
            return ("MERGE_TO_CELL", family, qualifier, timestamp_us, None, state)
