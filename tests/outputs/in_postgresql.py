"""Mirrors in PostgreSQL, which a reader sees all at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.spark_sink.errors import PostgresqlError
from slackwater.spark_sink.tables.in_postgresql.address import identifier
from slackwater.spark_sink.tables.in_postgresql.database import Database
from slackwater.timestamp import datetime_to_ns
from tests.outputs.mirror import Mirror
from tests.outputs.output import Moment, Output, Place
from tests.proofs.mirrors import Looker, Seen
from tests.support import mixed_load
from tests.support.object_stores import ServedStore
from tests.support.postgres import running_server
from tests.support.postgres_door import PostgresDoor, door_before


class PostgresqlMirror(Mirror):
    """Mirrors that one transaction brings to a low watermark."""

    moments: Sequence[Moment] = (
        ("COPY", "request"),
        ("MERGE", "request"),
        ("COMMIT", "request"),
        ("COMMIT", "answer"),
        ("MERGE", "answer"),
    )

    def __init__(self, place: Place, url: str, door: PostgresDoor) -> None:
        super().__init__(place)
        # Its requests are held back, as those to an object store are.
        self.store = cast("ServedStore", door)
        self._url, self._door = url, door

    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""
        return {
            **super().sink(),
            "format": "postgresql",
            "path": self._door.url,
            "checkpoint": str(self._place.folder / "checkpoint"),
        }

    def _new_looker(self, stream: ChangeStream) -> Looker:
        return PostgresqlLooker(self._url, stream, self._dialect)


class PostgresqlLooker(Looker):
    """Compares mirrors with their tables, all as one transaction of a reader sees them."""

    def __init__(self, url: str, stream: ChangeStream, dialect: Dialect) -> None:
        super().__init__(Path(), stream, dialect)
        self._url = url
        self._at = 0

    def look_now(self) -> set[str]:
        """Compare all mirrors, if they have advanced."""
        with closing(Database(self._url, "tests")) as database:
            try:
                with database.snapshot():
                    [[at]] = database.run("SELECT MAX(low_watermark) FROM _slackwater")
                    if at is None or datetime_to_ns(at) <= self._at:
                        return set()
                    seen = {name: _rows(database, name) for name in mixed_load.TABLES}
            except PostgresqlError:
                # Some are not made yet.
                return set()
        self._at = datetime_to_ns(at)
        for name, rows in seen.items():
            self._require_equal(name, Seen(rows, self._at))
        return set(seen)

    def _current(self, name: str) -> Seen:
        with closing(Database(self._url, "tests")) as database:
            return Seen(_rows(database, name), None)


def _rows(database: Database, table: str) -> list[dict[str, Any]]:
    name = ".".join(map(identifier, table.split(".")))
    rows: list[dict[str, Any]] = database.rows(f"SELECT * FROM {name}").to_pylist()
    return rows


@contextmanager
def postgresql_mirror(place: Place) -> Iterator[Output]:
    """Serve the database of mirrors."""
    with running_server() as maintenance:
        url = maintenance.replace("+psycopg", "")
        with door_before(url) as door:
            yield PostgresqlMirror(place, url, door)
