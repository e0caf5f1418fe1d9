"""Mirrors as a reader sees them, compared with their tables again and again."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
from pyiceberg.table import Table

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.timestamp import parse_rfc3339
from tests.support import mixed_load
from tests.support.read_tables import iceberg_at, rows_in
from tests.support.rest_catalog import ServedCatalog
from tests.support.table_rows import comparable, spanner_rows

LOOK_SECONDS_MAX = 600
# A column that comes and goes.
ADDED = "Added"
JSON_COLUMNS = ("Extra",)
# PostgreSQL's numeric is a text in Spark.
DECIMAL_COLUMNS = ("Fee", "Sold")
MARK = ("_is_deleted", "_commit_timestamp")


@dataclass(frozen=True)
class Seen:
    """A mirror's rows, and its published low watermark; None for its current state."""

    rows: list[dict[str, Any]]
    watermark_ns: int | None


def at_watermark(path: Path) -> Seen | None:
    """Read a mirror at its last published low watermark."""
    if (path / "metadata" / "version-hint.text").exists():
        return iceberg_at_watermark(iceberg_at(path))
    # DeltaTable.history() counts down from the version it has loaded, also over commits made since.
    for commit in sorted((path / "_delta_log").glob("*.json"), reverse=True):
        if '"SET TBLPROPERTIES"' in commit.read_text():
            table = deltalake.DeltaTable(path, version=int(commit.stem))
            stamp = table.metadata().configuration["slackwater.low_watermark"]
            return Seen(table.to_pyarrow_table().to_pylist(), parse_rfc3339(stamp))
    return None


def iceberg_at_watermark(table: Table) -> Seen | None:
    """Read a mirror in Iceberg at its last published low watermark."""
    stamp = table.properties.get("slackwater.low_watermark")
    snapshot = table.properties.get("slackwater.snapshot")
    if stamp is None:
        return None
    if snapshot and table.snapshot_by_id(int(snapshot)) is None:
        # Nessie shows the current one alone, which is published a moment later.
        return None
    rows = table.scan(snapshot_id=int(snapshot)).to_arrow().to_pylist() if snapshot else []
    return Seen(rows, parse_rfc3339(stamp))


def current(path: Path) -> Seen:
    """Read a mirror in its current state."""
    return Seen(rows_in(path), None)


def mirrored_rows(seen: Seen) -> tuple[list[dict[str, Any]], int]:
    """Return the rows not marked as deleted, and how many are marked."""
    there = [row for row in seen.rows if not row.get(MARK[0])]
    for row in there:
        for name in MARK:
            row.pop(name, None)
        for name, value in row.items():
            if name in JSON_COLUMNS and value is not None:
                value = json.loads(value, parse_float=Decimal)
            if name in DECIMAL_COLUMNS and value is not None:
                value = Decimal(value)
            row[name] = comparable(value)
    return there, len(seen.rows) - len(there)


def _nothing(table: str) -> None:
    """Do nothing: the mirrors are where they are read."""


class Looker:
    """Compares the mirrors with their tables, each at its published low watermark.

    Args:
        folder: of the mirrors, unless they are in a catalog.
        stream: of the tables.
        dialect: the database's.
        catalog: of the mirrors.
        fetch: is called before a table's mirror is read.
    """

    def __init__(
        self,
        folder: Path,
        stream: ChangeStream,
        dialect: Dialect,
        catalog: ServedCatalog | None = None,
        *,
        fetch: Callable[[str], None] = _nothing,
    ) -> None:
        self._folder = folder
        self._catalog = catalog
        self._fetch = fetch
        self._stream = stream
        self._dialect = dialect
        self._watermarks: dict[str, int] = {}

    def look(self) -> None:
        """Compare once all mirrors have advanced since the last comparison."""
        until = time.monotonic() + LOOK_SECONDS_MAX
        advanced: set[str] = set()
        while len(advanced) < len(mixed_load.TABLES):
            assert time.monotonic() < until, f"no new low watermark; there is {self._watermarks}"
            time.sleep(0.2)
            advanced |= self.look_now()

    def look_now(self) -> set[str]:
        """Compare the mirrors that have advanced since they were compared; return their names."""
        advanced = set()
        for name in mixed_load.TABLES:
            seen = self._at_watermark(name)
            if seen is None or (seen.watermark_ns or 0) <= self._watermarks.get(name, 0):
                continue
            self._watermarks[name] = seen.watermark_ns or 0
            self._require_equal(name, seen)
            advanced.add(name)
        return advanced

    def look_at_the_end(self, rows_min: int = 10) -> int:
        """Compare the mirrors with the current tables, each of which has so many rows.

        Returns:
            How many rows are equal.
        """
        equal = marked = 0
        for name in mixed_load.TABLES:
            rows, of_it = self._require_equal(name, self._current(name))
            assert rows >= rows_min
            equal += rows
            marked += of_it
        self.marked = marked
        return equal

    def _at_watermark(self, name: str) -> Seen | None:
        self._fetch(name)
        if self._catalog is None:
            return at_watermark(self._folder / name)
        table = self._catalog.table(name)
        return None if table is None else iceberg_at_watermark(table)

    def _current(self, name: str) -> Seen:
        self._fetch(name)
        if self._catalog is None:
            return current(self._folder / name)
        table = self._catalog.table(name)
        assert table is not None
        return Seen(table.scan().to_arrow().to_pylist(), None)

    def _require_equal(self, name: str, seen: Seen) -> tuple[int, int]:
        rows, marked = mirrored_rows(seen)
        expected = self._expected(name, seen.watermark_ns)
        # The change stream does not watch a generated column; a dropped one stays in the mirror,
        # and one without values yet is not in it.
        columns = set().union(*expected) - {mixed_load.GENERATED}
        rows = [{column: row.get(column) for column in sorted(columns)} for row in rows]
        expected = [{column: row[column] for column in sorted(columns)} for row in expected]
        assert sorted(rows, key=repr) == sorted(expected, key=repr), (name, seen.watermark_ns)
        return len(rows), marked

    def _expected(self, name: str, at_ns: int | None) -> list[dict[str, Any]]:
        """Return a table's rows, at a time or as they are now."""
        return spanner_rows(self._stream, self._dialect, name, at_ns)
