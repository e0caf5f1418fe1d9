"""The epochs of one pipeline in a PostgreSQL database."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from slackwater.spark_sink.errors import PostgresqlError
from slackwater.spark_sink.output.epoch_place import EpochPlace
from slackwater.spark_sink.tables.by_transaction.names import TableAddress
from slackwater.spark_sink.tables.by_transaction.sql_database import one
from slackwater.spark_sink.tables.by_transaction.transaction_log import (
    CHUNKS,
    MARKS,
    TransactionLog,
)
from slackwater.spark_sink.tables.database_access import PIPELINE_PROPERTY
from slackwater.spark_sink.tables.in_postgresql.database import Database

# The key of a lock, held while the tables below are made.
_MAKING: Final = 7_356_124_891
_MAKING_MAX: Final = "60s"
# With MERGE, and keys whose NULL is equal to NULL.
_VERSION_MIN: Final = 150_000
_TABLES: Final = (
    f"CREATE TABLE IF NOT EXISTS {MARKS} (pipeline text PRIMARY KEY, owner text,"
    " low_watermark timestamptz, incomplete jsonb)",
    f"CREATE TABLE IF NOT EXISTS {CHUNKS} (pipeline text, low_watermark timestamptz, chunk bigint,"
    " PRIMARY KEY (pipeline, low_watermark, chunk))",
)


class PostgresqlLog(TransactionLog[Database]):
    """The epochs that one process commits to the tables of a pipeline.

    Args:
        path: the database's URL.
        place: where the epochs are staged.
        pipeline: its name.
    """

    locking = " FOR UPDATE"
    json_type = "jsonb"
    error = PostgresqlError

    def __init__(self, path: str, place: EpochPlace, pipeline: str) -> None:
        reader = Database(path, f"reading {pipeline}")
        super().__init__(Database(path, pipeline), reader, place, pipeline)

    def _claim(self) -> datetime | None:
        """Make the log's tables, and end a former owner's transaction; see TransactionLog."""
        _require_utf8(self.database)
        self._end_former()
        with self.making():
            for statement in _TABLES:
                self.database.run(statement)
        # It may have begun another one meanwhile.
        self._end_former()
        latest: datetime | None = one(
            self.database.run(
                f"INSERT INTO {MARKS} (pipeline, owner) VALUES ($1, $2) ON CONFLICT (pipeline)"
                " DO UPDATE SET owner = excluded.owner RETURNING low_watermark",
                self.pipeline,
                self.owner,
            )
        )
        return latest

    def _end_former(self) -> None:
        """End a former owner's transaction: frozen, it would hold the row, or the lock of all."""
        self.database.run(
            "SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity AS a"
            " WHERE a.application_name = current_setting('application_name')"
            " AND a.datname = current_database() AND a.usename = current_user"
            " AND a.pid != pg_backend_pid() AND EXISTS (SELECT 1 FROM pg_locks AS l"
            f" WHERE l.pid = a.pid AND (l.relation = to_regclass('{MARKS}')"
            " OR (l.locktype, l.granted) = ('advisory', true)"
            f" AND (l.classid::bigint << 32) + l.objid::bigint = {_MAKING}))"
        )

    @contextmanager
    def making(self) -> Iterator[None]:
        """Make tables and schemas inside, while no other pipeline does: one of two would fail."""
        with super().making():
            # Frozen, it would hold up the other pipelines.
            self.database.run(f"SET LOCAL idle_in_transaction_session_timeout = '{_MAKING_MAX}'")
            self.database.run(f"SELECT pg_advisory_xact_lock({_MAKING})")
            yield

    def _comments(self) -> list[str | None]:
        """Return the comments of tables that were made for a pipeline."""
        comments = self.reader.run(
            "SELECT obj_description(oid, 'pg_class') FROM pg_class WHERE relkind IN ('r', 'p')"
            " AND obj_description(oid, 'pg_class') LIKE $1",
            f'%"{PIPELINE_PROPERTY}"%',
        )
        return [comment for (comment,) in comments]

    def comment_of(self, table: TableAddress) -> Sequence[str | None]:
        """Return a table's comment; see TransactionLog."""
        rows = self.reader.run(
            "SELECT obj_description(to_regclass($1), 'pg_class') WHERE to_regclass($1) IS NOT NULL",
            table.quoted,
        )
        return [comment for (comment,) in rows]

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
            for table in (MARKS, CHUNKS):
                self.reader.run(f"INSERT INTO {table} (pipeline) SELECT '' LIMIT 0")


def _require_utf8(database: Database) -> None:
    encoding = one(database.run("SELECT current_setting('server_encoding')"))
    if encoding != "UTF8":
        raise PostgresqlError(
            f"the database has the encoding {encoding}.", "Name a database in UTF8"
        )
