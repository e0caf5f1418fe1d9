"""Tables in PostgreSQL, which a reader sees all at one moment."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, cast

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.spark_sink.errors import PostgresqlError
from slackwater.spark_sink.tables.in_postgresql.database import Database
from tests.outputs.in_database import TABLES, AtOneTime, DatabaseChangelogs, LookerAtOnce
from tests.outputs.mirror import Mirror
from tests.outputs.output import MakeOutput, Moment, Output, Place
from tests.support.database_places import nested, quoted
from tests.support.mirror_looks import Looker, Seen
from tests.support.object_stores import ServedStore
from tests.support.postgres import rows_in, running_server
from tests.support.postgres_door import PostgresDoor, door_before


class BehindDoor(Output):
    """An output whose requests to PostgreSQL's server are held back, as those to a store are."""

    def __init__(self, place: Place, url: str, door: PostgresDoor) -> None:
        super().__init__(place)
        self.store = cast("ServedStore", door)
        self._url, self._door = url, door


class PostgresqlMirror(BehindDoor, Mirror):
    """Mirrors that one transaction brings to a low watermark."""

    moments: Sequence[Moment] = (
        ("COPY", "request"),
        ("MERGE", "request"),
        ("COMMIT", "request"),
        ("COMMIT", "answer"),
        ("MERGE", "answer"),
    )

    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""
        return {**super().sink(), **_sink_at(self._door, self._place)}

    def _new_looker(self, stream: ChangeStream) -> Looker:
        return PostgresqlLooker(self._url, stream, self._dialect)


class PostgresqlLooker(LookerAtOnce):
    """Compares mirrors with their tables, all as one transaction of a reader sees them."""

    def __init__(self, url: str, stream: ChangeStream, dialect: Dialect) -> None:
        super().__init__(stream, dialect)
        self._url = url

    def _at_one_time(self) -> AtOneTime | None:
        with closing(Database(self._url, "tests")) as database:
            try:
                with database.snapshot():
                    [[at]] = database.run("SELECT MAX(low_watermark) FROM _slackwater")
                    return self.if_later(at, lambda name: _rows(database, name))
            except PostgresqlError:
                # Some are not made yet.
                return None

    def _current(self, name: str) -> Seen:
        with closing(Database(self._url, "tests")) as database:
            return Seen(_rows(database, name), None)


class PostgresqlChangelogs(BehindDoor, DatabaseChangelogs):
    """Typed changelogs, to which one transaction adds an epoch."""

    moments = (("COPY", "request"), ("COMMIT", "request"), ("COMMIT", "answer"))

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
    rows: list[dict[str, Any]] = rows_in(database, f"SELECT * FROM {quoted(table)}").to_pylist()
    return rows


def served_behind_door(output: Callable[[Place, str, PostgresDoor], Output]) -> MakeOutput:
    @contextmanager
    def serve(place: Place) -> Iterator[Output]:
        with running_server() as maintenance:
            url = maintenance.replace("+psycopg", "")
            with door_before(url) as door:
                yield output(place, url, door)

    return serve


postgresql_changelogs = served_behind_door(PostgresqlChangelogs)
postgresql_mirror = served_behind_door(PostgresqlMirror)
