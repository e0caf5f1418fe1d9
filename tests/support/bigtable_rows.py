"""Changes of a synthetic Bigtable as the rows that land, and an output held against them."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

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
T = TypeVar("T")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Row(NamedTuple):
    """A change, as the output has it."""

    row_key: bytes
    commit_us: int
    type: str
    cluster: str | None
    tiebreaker: int
    entries: tuple[tuple[Hashable, ...], ...]


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


def require_once(rows: Sequence[Row], changes: Iterable[Change]) -> None:
    """Require each change once, with all that it holds, and those of each row in commit order.

    Args:
        rows: in the order in which they were read.
        changes: what has to be there.

    Raises:
        AssertionError: it is not so.
    """
    require_same(Counter(rows), Counter(map(row_of, changes)))
    require_in_order(((row.row_key, row.cluster), row.commit_us) for row in rows)


def require_same(seen: Counter[T], expected: Counter[T]) -> None:
    """Require that nothing is missing, and nothing there that is not expected."""
    missing, unknown = expected - seen, seen - expected
    assert not missing, f"{missing.total()} are missing: {list(missing)[:3]}"
    assert not unknown, f"{unknown.total()} are there twice or are none: {list(unknown)[:3]}"


def require_in_order(commits: Iterable[tuple[Hashable, int]]) -> None:
    """Require that the commit times of each row and cluster rise."""
    by_key: dict[Hashable, list[int]] = defaultdict(list)
    for key, commit_us in commits:
        by_key[key].append(commit_us)
    unordered = [key for key, times in by_key.items() if times != sorted(times)]
    assert not unordered, f"out of order: {unordered[:3]}"


def row_of(change: Change) -> Row:
    """Return the row of a change."""
    return Row(
        change.row_key,
        change.commit_us,
        "GARBAGE_COLLECTION" if change.is_garbage_collection else "USER",
        change.cluster or None,
        change.tie_breaker,
        tuple(map(_entry, change.entries)),
    )


def as_row(landed: Mapping[str, Any]) -> Row:
    """Return a row of the output without the place where it was read."""
    return Row(
        landed["row_key"],
        (landed["commit_timestamp"] - _EPOCH) // timedelta(microseconds=1),
        landed["type"],
        landed["source_cluster_id"],
        landed["tiebreaker"],
        tuple(tuple(entry.values()) for entry in landed["entries"]),
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
