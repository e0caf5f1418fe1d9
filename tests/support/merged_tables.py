"""Tables in memory that epochs are merged into, and epochs made by hand."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.row_merges import file_merge
from slackwater.spark_sink.tables.row_merges.row_changes import RowChange
from slackwater.spark_sink.tables.row_merges.small_epoch import latest_rows
from slackwater.timestamp import datetime_to_us

AT = datetime(2026, 1, 31, 9, tzinfo=UTC)
AT_US = datetime_to_us(AT)
CLEARED = AT + timedelta(days=1)
COLUMNS = (
    Column("Id", "INT64", is_key=True),
    Column("A", "STRING(MAX)", is_key=False),
    Column("B", "STRING(MAX)", is_key=False),
)
SCHEMA = pa.schema({"Id": pa.int64(), "A": pa.string(), "B": pa.string()})
MARKS = {"_is_deleted": pa.bool_(), "_commit_timestamp": pa.timestamp("us", tz="UTC")}


class File:
    """A data file in memory; see MergedFile."""

    def __init__(self, rows: pa.Table, *, is_small: bool, may_be_marked: bool) -> None:
        self.table = rows
        self.size = 0 if is_small else file_merge.SMALL
        self.may_be_marked = may_be_marked
        self.marks: pa.Array | None = None
        self.is_there = True

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    def deleted_positions(self) -> pa.Array | None:
        return self.marks

    def bounds(self, column: str) -> tuple[int, int] | None:
        values = self.table.column(column).to_pylist()
        return (min(values), max(values)) if values and None not in values else None

    def read(self, columns: pa.Schema) -> Iterator[tuple[int, pa.Table]]:
        for first in range(0, self.rows, 2):
            yield first, self.table.select(columns.names).slice(first, 2)

    def replace(self) -> None:
        self.is_there = False

    def mark(self, deleted: pa.Array) -> None:
        assert self.may_be_marked
        self.marks = deleted

    def current(self) -> list[dict[str, Any]]:
        deleted = set() if self.marks is None else set(self.marks.to_pylist())
        there = self.table.to_pylist() if self.is_there else []
        return [row for place, row in enumerate(there) if place not in deleted]


def latest_of(epoch: Mapping[Any, tuple[str, Mapping[str, Any]]]) -> pa.Table:
    """Return an epoch's changes: by key, whether it deletes, has a whole row or some columns."""
    changes = {
        json.dumps({"Id": None if key is None else str(key)}): RowChange(
            kind == "delete", kind != "some", {} if kind == "delete" else values, AT_US
        )
        for key, (kind, values) in epoch.items()
    }
    return latest_rows(changes, COLUMNS)


def rows_of(files: Sequence[File]) -> list[dict[str, Any]]:
    """Return the rows that are in files."""
    return [row for file in files for row in file.current()]


def plain(row: Mapping[str, Any]) -> str:
    """Return a row as it can be compared and sorted, in whatever zone its times are."""
    times = {name: v.timestamp() for name, v in row.items() if isinstance(v, datetime)}
    return repr(sorted({**row, **times}.items()))


def drawn(choose: random.Random) -> dict[int | None, tuple[str, dict[str, Any]]]:
    """Return random changes; a key may be NULL, and one that is new may have some columns only."""
    keys = choose.sample([None, *range(6)], choose.randint(0, 5))

    def values() -> dict[str, Any]:
        names = choose.sample("AB", choose.randint(0, 2))
        return {name: choose.choice([None, "x", "y"]) for name in names}

    return {key: (choose.choice(["delete", "whole", "some"]), values()) for key in keys}
