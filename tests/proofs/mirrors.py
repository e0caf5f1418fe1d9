"""Mirrors under random changes and kills, compared with their tables again and again.

python -m tests.proofs.mirrors --changes 2000 --looks 10
python -m tests.proofs.mirrors --in-catalog: in Iceberg's REST catalog, whose tables are in S3
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
from pyiceberg.table import Table

from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.timestamp import format_rfc3339, parse_rfc3339
from tests.support import mixed_load
from tests.support.emulators import own_database
from tests.support.mixed_load import MixedLoad
from tests.support.read_tables import iceberg_at, rows_in
from tests.support.rest_catalog import ServedCatalog, rest_catalog
from tests.support.services import settings
from tests.support.table_rows import comparable, spanner_rows

LOOK_SECONDS_MAX = 600
# The stream does not watch the first one; the second one has no value yet.
ADDED = "Added"
NOT_MIRRORED = (mixed_load.GENERATED, ADDED)
JSON_COLUMNS = ("Extra",)
# PostgreSQL's numeric is a text in Spark.
DECIMAL_COLUMNS = ("Fee", "Sold")
MARK = ("_is_deleted", "_commit_timestamp")
Kind = tuple[Dialect, str, str, str]
KINDS: list[Kind] = [
    (Dialect.GOOGLE_STANDARD_SQL, "OLD_AND_NEW_VALUES", "apply", "delta"),
    (Dialect.POSTGRESQL, "NEW_ROW", "mark", "iceberg"),
]
MORE_KINDS: list[Kind] = [
    (Dialect.GOOGLE_STANDARD_SQL, "NEW_VALUES", "apply", "iceberg"),
    (Dialect.POSTGRESQL, "NEW_ROW", "mark", "delta"),
]


def mirror_settings(
    stream: ChangeStream,
    folder: Path,
    start_ns: int,
    deletes: str = "apply",
    table_format: str = "delta",
    catalog: ServedCatalog | None = None,
) -> dict[str, Any]:
    pipeline_settings = settings(stream, folder, format_rfc3339(start_ns))
    pipeline_settings["sink"]["format"] = table_format
    pipeline_settings["sink"] |= {
        "kind": "mirror",
        "path": str(folder / "mirrors"),
        "deletes": deletes,
    }
    if catalog is not None:
        pipeline_settings["sink"]["catalog"] = catalog.setting
        pipeline_settings["spark"].setdefault("conf", {}).update(catalog.spark_conf)
    return pipeline_settings


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
        for row in (*rows, *expected):
            for column in NOT_MIRRORED:
                row.pop(column, None)
        assert sorted(rows, key=repr) == sorted(expected, key=repr), (name, seen.watermark_ns)
        return len(rows), marked

    def _expected(self, name: str, at_ns: int | None) -> list[dict[str, Any]]:
        """Return a table's rows, at a time or as they are now."""
        return spanner_rows(self._stream, self._dialect, name, at_ns)


def run(
    stream: ChangeStream,
    dialect: Dialect,
    folder: Path,
    *,
    deletes: str,
    table_format: str,
    changes: int,
    looks: int,
    kills_after: Collection[int],
    before: str = sys.executable,
    catalog: ServedCatalog | None = None,
) -> int:
    """Change, kill and compare; return how many rows the mirrors keep marked as deleted."""
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    pipeline_settings = mirror_settings(stream, folder, start_ns, deletes, table_format, catalog)
    service = Service(pipeline_settings, folder, os.environ)
    # The Python that runs the service up to the first kill.
    service.python = before
    load = MixedLoad(stream, dialect, seed=7)
    has_looked = threading.Event()

    def write() -> None:
        while load.changes < changes or not has_looked.is_set():
            load.transaction()
            time.sleep(0.02 if load.changes < changes else 0.1)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    service.start()
    looker = Looker(folder / "mirrors", stream, dialect, catalog)
    try:
        for number in range(looks):
            looker.look()
            if number in kills_after:
                # In the middle of an epoch: each takes longer than this.
                time.sleep(random.Random(number).uniform(0.2, 1.0))
                service.kill()
                service.python = sys.executable
                service.start()
        has_looked.set()
        writer.join()
        end_ns = connection.strong_read_timestamp_ns()
        service.wait_for_watermark(end_ns, seconds_max=400)
        assert service.drain() == 0, service.log.read_text()[-2_000:]
    finally:
        has_looked.set()
        service.kill()
        connection.close()
    looker.look_at_the_end()
    lines = sorted((folder / "mirrors" / "_watermarks").glob("*.json"))[-1].read_text()
    # Whole microseconds, half of one before the low watermark.
    assert parse_rfc3339(json.loads(lines.splitlines()[-1])["low_watermark"]) + 1_000 > end_ns
    return looker.marked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=2_000)
    parser.add_argument("--looks", type=int, default=10)
    parser.add_argument("--in-catalog", action="store_true")
    options = parser.parse_args()
    for dialect, capture, deletes, table_format in KINDS + MORE_KINDS:
        if options.in_catalog and table_format != "iceberg":
            continue
        with (
            ExitStack() as stack,
            own_database(
                dialect, mixed_load.ddl(dialect, capture), mixed_load.CHANGE_STREAM
            ) as stream,
            tempfile.TemporaryDirectory() as folder,
        ):
            kills_after = range(2, options.looks, 3)
            served = rest_catalog(Path(folder)) if options.in_catalog else None
            run(
                stream,
                dialect,
                Path(folder),
                deletes=deletes,
                table_format=table_format,
                changes=options.changes,
                looks=options.looks,
                kills_after=kills_after,
                catalog=None if served is None else stack.enter_context(served),
            )
            done = f"equal at {options.looks} looks, {len(kills_after)} kills"
            print(f"{dialect}, {table_format}: {done}", flush=True)


if __name__ == "__main__":
    main()
