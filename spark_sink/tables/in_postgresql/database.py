"""A database of PostgreSQL's: statements, bulk copies and its errors as ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from slackwater.spark_sink.errors import PostgresqlError, PublishError
from slackwater.spark_sink.tables.in_postgresql.address import TableAddress, connection_url

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection, Cursor

# Somebody who reads for a long time keeps a table from being altered: the epoch is tried again.
# A role may have time limits, which a large epoch would exceed at each attempt.
_SESSION: Final = (
    "SET TIME ZONE 'UTC'",
    "SET lock_timeout = '30s'",
    "SET jit = off",
    "SELECT set_config(name, '0', false) FROM pg_settings WHERE name IN ('statement_timeout',"
    " 'idle_in_transaction_session_timeout', 'transaction_timeout')",
)
# Classes of SQLSTATE, and single ones, of what passes: connections, rollbacks, resources, locks,
# operators (PostgreSQL's documentation, "PostgreSQL Error Codes").
_PASSING: Final = ("08", "40", "53", "55", "57", "58", "XX")
# A transaction that another thread's error has ended; a primary that becomes a standby.
_PASSING_TOO: Final = frozenset({"25P02", "25P03", "25P04", "25006"})
# Before there is a session, an error has no SQLSTATE.
_REFUSED: Final = re.compile(
    r"FATAL: .*(password|authentication|pg_hba|does not exist|permission denied|not permitted"
    r"|unrecognized configuration parameter)|no password supplied"
    r"|invalid (connection option|URI|sslmode|port|integer)|certificate verify failed"
    r"|root certificate file .* does not exist",
    re.IGNORECASE,
)
_ADVICE: Final = {
    "22P02": "Its column in Spanner may have another type by now: ALTER the mirror's to TYPE text",
    "22021": "PostgreSQL has no U+0000 in texts: leave the column out with filter.exclude_columns,"
    " or change the value",
    "23503": "Drop the foreign key of the mirror's, or make it DEFERRABLE INITIALLY DEFERRED",
    "25006": "Name the primary server: a standby, or a database that is read-only, takes no rows",
    "42501": "Grant the role CREATE on the database and its schema; it has to own the tables, and"
    " _slackwater",
    "53100": "Make room on the disk of PostgreSQL's server",
    "54000": "Leave the table out with filter.exclude_tables, or shorten its key",
}


class Database:
    """A database, by one connection, which is opened when it is needed, and again after a failure.

    Several threads may use it; a transaction is of all of them.

    Args:
        path: its URL.
        application: names the connection to the server.
    """

    def __init__(self, path: str, application: str) -> None:
        self._url = connection_url(path, application)
        self._lock = RLock()
        self._connection: Connection | None = None
        self._is_begun = False

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows.

        Args:
            statement: its SQL, with $1 for the first value.
            values: texts, numbers, times in UTC, or lists of them.

        Raises:
            PostgresqlError: the server refuses.
            PublishError: it fails or does not answer.
        """
        with self._cursor() as cursor:
            cursor.execute(statement, list(values) or None)
            return [] if cursor.description is None else list(cursor.fetchall())

    @contextmanager
    def batches(self, query: str, *values: Any) -> Iterator[pa.RecordBatchReader]:
        """Provide the rows of a query, as they come; see run()."""
        with self._cursor() as cursor:
            cursor.execute(query, list(values) or None)
            reader = cursor.fetch_record_batch()
            yield pa.RecordBatchReader.from_batches(reader.schema, self._coming(reader))

    def _coming(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        """Yield what comes. The driver's errors are not its own here."""
        try:
            yield from reader
        except (OSError, pa.ArrowException) as error:
            raise PublishError(f"PostgreSQL: {' '.join(str(error).split())}.") from error

    def copy(self, table: TableAddress, rows: pa.RecordBatchReader) -> None:
        """Append rows to a table, by COPY; see run()."""
        with self._cursor() as cursor:
            cursor.adbc_ingest(table.name, rows, mode="append", db_schema_name=table.schema)

    def copy_temporary(self, name: str, rows: pa.RecordBatchReader) -> None:
        """Append rows to a temporary table, by COPY; see run()."""
        with self._cursor() as cursor:
            cursor.adbc_ingest(name, rows, mode="append", temporary=True)

    @contextmanager
    def transaction(self, *, is_alone: bool = False) -> Iterator[None]:
        """Make one transaction of the statements inside, unless there is an error.

        Args:
            is_alone: other threads wait; otherwise their statements are in it, too.

        Raises:
            PostgresqlError, PublishError: see run(). If the answer to the commit is lost, all of it
                is done, or nothing.
        """
        with self._lock if is_alone else nullcontext(), self._begun("BEGIN"):
            yield
            self.run("COMMIT")
            self._is_begun = False

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Have all queries inside see one moment. No other thread may read meanwhile."""
        with self._lock, self._begun("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"):
            yield

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Make a transaction of the statements inside, and undo it."""
        with self._begun("BEGIN"):
            yield

    @contextmanager
    def _begun(self, statement: str) -> Iterator[None]:
        """Begin a transaction, and roll back at the end what is not committed."""
        assert not self._is_begun, statement  # noqa: S101 - the inner one would commit the outer
        self.run(statement)
        self._is_begun = True
        try:
            yield
        finally:
            if self._is_begun and self._connection is not None:
                with suppress(PostgresqlError, PublishError):
                    self.run("ROLLBACK")
            self._is_begun = False

    @contextmanager
    def _cursor(self) -> Iterator[Cursor]:
        from adbc_driver_manager import Error

        with self._lock:
            if self._connection is None and self._is_begun:
                # Another one would commit each statement by itself.
                raise PublishError("PostgreSQL: the transaction's connection was lost.")
            try:
                if self._connection is None:
                    self._connection = self._connect()
                with closing(self._connection.cursor()) as cursor:
                    yield cursor
            except PublishError:
                self.close()
                raise
            except Error as error:
                if error.sqlstate is None:
                    self.close()
                raise _translated(error) from error

    def _connect(self) -> Connection:
        from adbc_driver_postgresql import dbapi

        connection: Connection = dbapi.connect(self._url, autocommit=True)
        with connection.cursor() as cursor:
            for statement in _SESSION:
                cursor.execute(statement)
        return connection

    def close(self) -> None:
        """Close the connection; the next statement opens another one."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()


def _translated(error: Any) -> PostgresqlError | PublishError:
    """Return an error of the driver's as ours."""
    message = " ".join(str(error).split())
    state = error.sqlstate
    if state is None:
        is_refused = bool(_REFUSED.search(message))
    else:
        is_refused = state[:2] not in _PASSING and state not in _PASSING_TOO
    kind = PostgresqlError if is_refused else PublishError
    return kind(f"PostgreSQL: {message.rstrip('.')}.", _ADVICE.get(state or "", ""))


def one(rows: Sequence[tuple[Any, ...]]) -> Any:
    """Return the only value of the only row."""
    [[value]] = rows
    return value
