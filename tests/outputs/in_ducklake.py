"""Tables in a DuckLake, which a reader sees all at one moment."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import duckdb

from slackwater.reader.change_stream import ChangeStream, Dialect
from tests.outputs.in_database import TABLES, AtOneTime, DatabaseChangelogs, LookerAtOnce
from tests.outputs.in_postgresql import BehindDoor, served_behind_door, with_parts
from tests.outputs.mirror import Mirror
from tests.outputs.output import Moment, Place
from tests.support.database_places import quoted
from tests.support.ducklakes import Lake, rows_in
from tests.support.mirror_looks import Looker, Seen
from tests.support.postgres_door import PostgresDoor


class _InLake(BehindDoor):
    """An output in a lake whose catalog is in PostgreSQL."""

    moments: Sequence[Moment] = (("COMMIT", "request"), ("COMMIT", "answer"))

    @property
    def _lake(self) -> Lake:
        return Lake(f"postgres:{self._url}")


class DuckLakeMirror(_InLake, Mirror):
    """Mirrors that one snapshot brings to a low watermark; the catalog is in PostgreSQL."""

    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""
        return {**super().sink(), **_sink_at(self._door, self._place)}

    def _new_looker(self, stream: ChangeStream) -> Looker:
        return DuckLakeLooker(self._lake, stream, self._dialect)


class DuckLakeLooker(LookerAtOnce):
    """Compares mirrors with their tables, all in one snapshot."""

    def __init__(self, lake: Lake, stream: ChangeStream, dialect: Dialect) -> None:
        super().__init__(stream, dialect)
        self._lake = lake

    def _at_one_time(self) -> AtOneTime | None:
        # DuckDB starts anew at each look.
        time.sleep(1)
        try:
            with self._lake.opened() as reader:
                query = "SELECT MAX(low_watermark) AS at FROM _slackwater"
                [at] = reader.execute(query).to_arrow_table().column("at").to_pylist()
                return self.if_later(at, lambda name: rows_in(reader, quoted(name)))
        except duckdb.Error as error:
            # Some are not made yet, or the catalog is not.
            if not any(said in str(error) for said in ("does not exist", "unable to open")):
                raise
            return None

    def _current(self, name: str) -> Seen:
        return Seen(self._lake.rows(quoted(name)), None)


class DuckLakeChangelogs(_InLake, DatabaseChangelogs):
    """Typed changelogs, to which one snapshot adds an epoch; the catalog is in PostgreSQL."""

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


ducklake_changelogs = served_behind_door(DuckLakeChangelogs)
ducklake_mirror = served_behind_door(DuckLakeMirror)
