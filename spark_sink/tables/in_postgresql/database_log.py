"""The epochs of one pipeline in a database: each is a transaction, over all its tables.

The transaction locks the pipeline's row, which names its owner and states the low watermark of all
tables. So a former owner commits nothing more, and an epoch that is there is not written again.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.errors import PostgresqlError
from slackwater.spark_sink.output.commit_log import taken_over_error
from slackwater.spark_sink.output.epoch_place import EpochPlace
from slackwater.spark_sink.output.task_rows import RowsForTasks, rows_by_tasks
from slackwater.spark_sink.tables.database_access import PIPELINE_PROPERTY, properties_in
from slackwater.spark_sink.tables.in_postgresql.address import TableAddress
from slackwater.spark_sink.tables.in_postgresql.database import Database, one
from slackwater.timestamp import datetime_to_rfc3339

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

MARKS: Final = "_slackwater"
_CHUNKS: Final = "_slackwater_chunks"
# The key of a lock, held while the tables below are made.
_MAKING: Final = 7_356_124_891
# With MERGE, and keys whose NULL is equal to NULL.
_VERSION_MIN: Final = 150_000
_TABLES: Final = (
    f"CREATE TABLE IF NOT EXISTS {MARKS} (pipeline text PRIMARY KEY, owner text,"
    " low_watermark timestamptz, incomplete jsonb)",
    f"CREATE TABLE IF NOT EXISTS {_CHUNKS} (pipeline text, low_watermark timestamptz, chunk bigint,"
    " PRIMARY KEY (pipeline, low_watermark, chunk))",
)


class DatabaseLog:
    """The epochs that one process commits to the tables of a pipeline.

    Args:
        path: the database's URL.
        place: where the epochs are staged.
        pipeline: its name.

    Attributes:
        database: with the statements of epochs.
        reader: for those who look at the tables meanwhile, and see no epoch that is not committed.
        place, pipeline: as given.
        owner: this process, by a name that no other has.
        for_tasks: writes rows of tables for tasks.
        is_open: what is written now belongs to an epoch or chunk that is new. Inside of
            committing().
    """

    def __init__(self, path: str, place: EpochPlace, pipeline: str) -> None:
        self.database = Database(path, pipeline)
        self.reader = Database(path, f"reading {pipeline}")
        self.place = place
        self.pipeline = pipeline
        self.owner = uuid.uuid4().hex
        self.for_tasks = RowsForTasks(place)
        self.is_open = False
        # The last epoch that this process knows of.
        self._latest: datetime | None = None

    def take_over(self, logged: Callable[[], datetime | None]) -> datetime | None:
        """Let no former owner commit any more; return the last epoch's low watermark.

        Args:
            logged: returns the watermark log's last low watermark; None without one.

        Raises:
            PostgresqlError: the database lacks epochs; see also Database.run().
            PublishError: see Database.run().
        """
        _require_utf8(self.database)
        with self._making():
            for statement in _TABLES:
                self.database.run(statement)
        # A former owner that is frozen may hold the pipeline's row.
        self.database.run(
            "SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity AS a"
            " WHERE a.application_name = current_setting('application_name')"
            " AND a.datname = current_database() AND a.usename = current_user"
            " AND a.pid != pg_backend_pid() AND EXISTS (SELECT 1 FROM pg_locks AS l"
            f" WHERE l.pid = a.pid AND l.relation = to_regclass('{MARKS}'))"
        )
        latest: datetime | None = one(
            self.database.run(
                f"INSERT INTO {MARKS} (pipeline, owner) VALUES ($1, $2) ON CONFLICT (pipeline)"
                " DO UPDATE SET owner = excluded.owner RETURNING low_watermark",
                self.pipeline,
                self.owner,
            )
        )
        expected = logged()
        if expected is not None and (latest is None or latest < expected):
            raise self._lacks(expected)
        self._latest = latest
        return latest

    def _lacks(self, epoch: datetime) -> PostgresqlError:
        return PostgresqlError(
            f"the database does not have the epoch of {datetime_to_rfc3339(epoch)}, which"
            f" {self.place.path} has.",
            "They are of different times: restore both as of one time",
        )

    @contextmanager
    def committing(
        self,
        low_watermark: datetime,
        chunk: int | None,
        *,
        is_stated: bool,  # noqa: ARG002 - it always is
        incomplete: Sequence[str],
    ) -> Iterator[None]:
        """Commit what is written inside, unless the database has the epoch or chunk.

        Args:
            low_watermark: the epoch's, or the scan's.
            chunk: the chunk's number; None for an epoch.
            is_stated: the low watermark is to be stated though there are no rows.
            incomplete: the full names of tables that lack rows.

        Raises:
            PostgresqlError, PublishError: see Database.run(); or another process has taken the
                pipeline over, and nothing is committed.
        """
        if chunk is None and self._latest is not None and low_watermark <= self._latest:
            # Its low watermark is stated.
            yield
            return
        with self.database.transaction():
            latest = self._locked()
            if latest not in (self._latest, low_watermark):
                # As after a failover, which a connection pooler may hide.
                raise self._lacks(self._latest or low_watermark)
            if chunk is None:
                self.is_open = latest is None or latest < low_watermark
            else:
                self.is_open = self._add_chunk(low_watermark, chunk)
            try:
                yield
                if self.is_open and chunk is None:
                    self._state(low_watermark, incomplete)
            finally:
                self.is_open = False
        if chunk is None:
            self._latest = low_watermark

    @contextmanager
    def altering(self) -> Iterator[None]:
        """Alter tables inside by one transaction, as the pipeline's owner; see committing()."""
        with self._making():
            self._locked()
            yield

    @contextmanager
    def _making(self) -> Iterator[None]:
        """Make tables and schemas inside, while no other pipeline does: one of two would fail."""
        with self.database.transaction(is_alone=True):
            self.database.run(f"SELECT pg_advisory_xact_lock({_MAKING})")
            yield

    def _locked(self) -> datetime | None:
        """Lock the pipeline's row, and return the low watermark.

        Raises:
            PublishError: another process has taken the pipeline over.
        """
        marks = self.database.run(
            f"SELECT owner, low_watermark FROM {MARKS} WHERE pipeline = $1 FOR UPDATE",
            self.pipeline,
        )
        if [owner for owner, _ in marks] != [self.owner]:
            raise taken_over_error()
        [(_, latest)] = marks
        low_watermark: datetime | None = latest
        return low_watermark

    def _add_chunk(self, low_watermark: datetime, chunk: int) -> bool:
        """Note a chunk; return False if the database has it."""
        added = self.database.run(
            f"INSERT INTO {_CHUNKS} VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING chunk",
            self.pipeline,
            low_watermark,
            chunk,
        )
        return bool(added)

    def _state(self, low_watermark: datetime, incomplete: Sequence[str]) -> None:
        self.database.run(
            f"UPDATE {MARKS} SET low_watermark = $1, incomplete = $2::text::jsonb"
            " WHERE pipeline = $3",
            low_watermark,
            json.dumps(incomplete),
            self.pipeline,
        )

    def written(self, rows: DataFrame) -> Iterator[pa.RecordBatch]:
        """Have tasks write rows, and yield them; see rows_by_tasks()."""
        return rows_by_tasks(rows, self.place, self.owner)

    def own_properties(self) -> list[Mapping[str, str]]:
        """Return the properties of each of the pipeline's tables."""
        comments = self.reader.run(
            "SELECT obj_description(oid, 'pg_class') FROM pg_class WHERE relkind IN ('r', 'p')"
            " AND obj_description(oid, 'pg_class') LIKE $1",
            f'%"{PIPELINE_PROPERTY}"%',
        )
        properties = (properties_in(comment) for (comment,) in comments)
        return [of for of in properties if of.get(PIPELINE_PROPERTY) == self.pipeline]

    def properties_of(self, table: TableAddress) -> Mapping[str, str] | None:
        """Return the properties in a table's comment, none for others' tables; None without it."""
        rows = self.reader.run(
            "SELECT obj_description(to_regclass($1), 'pg_class') WHERE to_regclass($1) IS NOT NULL",
            table.quoted,
        )
        return properties_in(one(rows)) if rows else None

    def check(self) -> None:
        """Ask whether tables can be made; make none.

        Raises:
            PostgresqlError: the server is too old or a standby, the database has another encoding
                than UTF-8, or a right is missing.
            PublishError: the server does not answer.
        """
        version = int(one(self.reader.run("SELECT current_setting('server_version_num')")))
        if version < _VERSION_MIN:
            raise PostgresqlError(
                f"the server is PostgreSQL {version // 10_000}, which has no MERGE.",
                "Name a server of PostgreSQL 15 or later",
            )
        if one(self.reader.run("SELECT current_setting('transaction_read_only')")) == "on":
            raise PostgresqlError(
                "the server is a standby, or the database is read-only.", "Name the primary server"
            )
        _require_utf8(self.reader)
        with self.reader.trial():
            for statement in _TABLES:
                self.reader.run(statement)
            for table in (MARKS, _CHUNKS):
                self.reader.run(f"INSERT INTO {table} (pipeline) SELECT '' LIMIT 0")


def _require_utf8(database: Database) -> None:
    encoding = one(database.run("SELECT current_setting('server_encoding')"))
    if encoding != "UTF8":
        raise PostgresqlError(
            f"the database has the encoding {encoding}.", "Name a database in UTF8"
        )
