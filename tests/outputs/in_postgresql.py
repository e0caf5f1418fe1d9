"""Tables in PostgreSQL, which a reader sees all at one moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.spark_sink.errors import PostgresqlError
from slackwater.spark_sink.tables.by_transaction.names import identifier
from slackwater.spark_sink.tables.in_postgresql.database import Database
from slackwater.timestamp import datetime_to_ns
from tests.outputs.in_database import TABLES, DatabaseChangelogs
from tests.outputs.mirror import Mirror
from tests.outputs.output import MakeOutput, Moment, Output, Place
from tests.support import mixed_load
from tests.support.database_places import nested
from tests.support.mirror_looks import Looker, Seen
from tests.support.object_stores import ServedStore
from tests.support.postgres import rows_in, running_server
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
        return {**super().sink(), **_sink_at(self._door, self._place)}

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


class PostgresqlChangelogs(DatabaseChangelogs):
    """Typed changelogs, to which one transaction adds an epoch."""

    moments = (("COPY", "request"), ("COMMIT", "request"), ("COMMIT", "answer"))

    def __init__(self, place: Place, url: str, door: PostgresDoor) -> None:
        super().__init__(place)
        self.store = cast("ServedStore", door)
        self._url, self._door = url, door

    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""
        return {"kind": "changelogs", **_sink_at(self._door, self._place)}

    def _counts(self) -> dict[tuple[str, Any], int]:
        counts: dict[tuple[str, Any], int] = {}
        with closing(Database(self._url, "tests")) as database:
            for table in TABLES:
                # It may not be made yet.
                with suppress(PostgresqlError):
                    counts |= {
                        (table, epoch): rows
                        for epoch, rows in database.run(
                            f'SELECT low_watermark, COUNT(*) FROM "{table}" GROUP BY 1'
                        )
                    }
        return counts

    def _rows(self, table: str) -> list[dict[str, Any]]:
        with closing(Database(self._url, "tests")) as database:
            return [with_parts(nested(row)) for row in _rows(database, table)]


def with_parts(row: dict[str, Any]) -> dict[str, Any]:
    """Return a typed change, of which a part that it does not have is None."""
    return row | dict.fromkeys(part for part, names in row["given"].items() if names is None)


def _sink_at(door: PostgresDoor, place: Place) -> dict[str, Any]:
    checkpoint = str(place.folder / "checkpoint")
    return {"format": "postgresql", "path": door.url, "checkpoint": checkpoint}


def _rows(database: Database, table: str) -> list[dict[str, Any]]:
    name = ".".join(map(identifier, table.split(".")))
    rows: list[dict[str, Any]] = rows_in(database, f"SELECT * FROM {name}").to_pylist()
    return rows


def _served(output: Callable[[Place, str, PostgresDoor], Output]) -> MakeOutput:
    @contextmanager
    def serve(place: Place) -> Iterator[Output]:
        with running_server() as maintenance:
            url = maintenance.replace("+psycopg", "")
            with door_before(url) as door:
                yield output(place, url, door)

    return serve


postgresql_changelogs = _served(PostgresqlChangelogs)
postgresql_mirror = _served(PostgresqlMirror)
