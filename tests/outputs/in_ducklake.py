"""Tables in a DuckLake, which a reader sees all at one moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import duckdb

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.timestamp import datetime_to_ns
from tests.outputs.in_database import TABLES, DatabaseChangelogs
from tests.outputs.in_postgresql import with_parts
from tests.outputs.mirror import Mirror
from tests.outputs.output import MakeOutput, Moment, Output, Place
from tests.support import mixed_load
from tests.support.ducklakes import Lake, rows_in
from tests.support.mirror_looks import Looker, Seen
from tests.support.object_stores import ServedStore
from tests.support.postgres import running_server
from tests.support.postgres_door import PostgresDoor, door_before

_MOMENTS: Sequence[Moment] = (("COMMIT", "request"), ("COMMIT", "answer"))


class DuckLakeMirror(Mirror):
    """Mirrors that one snapshot brings to a low watermark; the catalog is in PostgreSQL."""

    moments = _MOMENTS

    def __init__(self, place: Place, lake: Lake, door: PostgresDoor) -> None:
        super().__init__(place)
        # Its requests are held back, as those to an object store are.
        self.store = cast("ServedStore", door)
        self._lake, self._door = lake, door

    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""
        return {**super().sink(), **_sink_at(self._door, self._place)}

    def _new_looker(self, stream: ChangeStream) -> Looker:
        return DuckLakeLooker(self._lake, stream, self._dialect)


class DuckLakeLooker(Looker):
    """Compares mirrors with their tables, all in one snapshot."""

    def __init__(self, lake: Lake, stream: ChangeStream, dialect: Dialect) -> None:
        super().__init__(Path(), stream, dialect)
        self._lake = lake
        self._at = 0

    def look_now(self) -> set[str]:
        """Compare all mirrors, if they have advanced."""
        # DuckDB starts anew at each look.
        time.sleep(1)
        try:
            with self._lake.opened() as reader:
                query = "SELECT MAX(low_watermark) AS at FROM _slackwater"
                [at] = reader.execute(query).to_arrow_table().column("at").to_pylist()
                if at is None or datetime_to_ns(at) <= self._at:
                    return set()
                seen = {name: rows_in(reader, _quoted(name)) for name in mixed_load.TABLES}
        except duckdb.Error as error:
            # Some are not made yet, or the catalog is not.
            if not any(said in str(error) for said in ("does not exist", "unable to open")):
                raise
            return set()
        self._at = datetime_to_ns(at)
        for name, rows in seen.items():
            self._require_equal(name, Seen(rows, self._at))
        return set(seen)

    def _current(self, name: str) -> Seen:
        return Seen(self._lake.rows(_quoted(name)), None)


class DuckLakeChangelogs(DatabaseChangelogs):
    """Typed changelogs, to which one snapshot adds an epoch; the catalog is in PostgreSQL."""

    moments = _MOMENTS

    def __init__(self, place: Place, lake: Lake, door: PostgresDoor) -> None:
        super().__init__(place)
        self.store = cast("ServedStore", door)
        self._lake, self._door = lake, door

    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""
        return {"kind": "changelogs", **_sink_at(self._door, self._place)}

    def _counts(self) -> dict[tuple[str, Any], int]:
        counts: dict[tuple[str, Any], int] = {}
        for table in TABLES:
            # It may not be made yet.
            with suppress(duckdb.Error), self._lake.opened() as reader:
                query = f'SELECT low_watermark, COUNT(*) AS rows FROM "{table}" GROUP BY 1'
                for row in reader.execute(query).to_arrow_table().to_pylist():
                    counts[table, row["low_watermark"]] = row["rows"]
        return counts

    def _rows(self, table: str) -> list[dict[str, Any]]:
        return [with_parts(row) for row in self._lake.rows(f'"{table}"')]


def _sink_at(door: PostgresDoor, place: Place) -> dict[str, Any]:
    checkpoint = str(place.folder / "checkpoint")
    path = str(place.folder / "lake")
    return {"format": "ducklake", "path": path, "catalog": door.url, "checkpoint": checkpoint}


def _quoted(table: str) -> str:
    return ".".join(f'"{part}"' for part in table.split("."))


def _served(output: Callable[[Place, Lake, PostgresDoor], Output]) -> MakeOutput:
    @contextmanager
    def serve(place: Place) -> Iterator[Output]:
        with running_server() as maintenance:
            url = maintenance.replace("+psycopg", "")
            with door_before(url) as door:
                yield output(place, Lake(f"postgres:{url}"), door)

    return serve


ducklake_changelogs = _served(DuckLakeChangelogs)
ducklake_mirror = _served(DuckLakeMirror)
