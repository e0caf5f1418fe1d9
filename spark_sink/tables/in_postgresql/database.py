"""A database of PostgreSQL's: statements, bulk copies and its errors as ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from slackwater.spark_sink.errors import PostgresqlError, PublishError
from slackwater.spark_sink.tables.by_transaction.names import TableAddress
from slackwater.spark_sink.tables.by_transaction.sql_database import SqlDatabase
from slackwater.spark_sink.tables.in_postgresql.address import connection_url

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
REFUSED: Final = re.compile(
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


class Database(SqlDatabase):
    """A database of PostgreSQL's; see SqlDatabase.

    Args:
        path: its URL.
        application: names the connection to the server.
    """

    kind = "PostgreSQL"
    snapshot_begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

    def __init__(self, path: str, application: str) -> None:
        super().__init__()
        self._url = connection_url(path, application)

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows; see SqlDatabase."""
        with self._cursor() as cursor:
            cursor.execute(statement, list(values) or None)
            return [] if cursor.description is None else list(cursor.fetchall())

    @contextmanager
    def batches(self, query: str, *values: Any) -> Iterator[pa.RecordBatchReader]:
        """Provide the rows of a query, as they come; see run()."""
        with self._cursor() as cursor:
            cursor.execute(query, list(values) or None)
            yield self._as_they_come(cursor.fetch_record_batch())

    def copy(self, table: TableAddress, rows: pa.RecordBatchReader) -> None:
        """Append rows to a table, by COPY; see run()."""
        with self._cursor() as cursor:
            cursor.adbc_ingest(table.name, rows, mode="append", db_schema_name=table.schema)

    def copy_temporary(self, name: str, rows: pa.RecordBatchReader) -> None:
        """Append rows to a temporary table, by COPY; see run()."""
        with self._cursor() as cursor:
            cursor.adbc_ingest(name, rows, mode="append", temporary=True)

    @contextmanager
    def _cursor(self) -> Iterator[Cursor]:
        with self._connected() as connection, closing(connection.cursor()) as cursor:
            yield cursor

    def _connect(self) -> Connection:
        from adbc_driver_postgresql import dbapi

        connection: Connection = dbapi.connect(self._url, autocommit=True)
        with connection.cursor() as cursor:
            for statement in _SESSION:
                cursor.execute(statement)
        return connection

    def _driver_error(self) -> type[Exception]:
        from adbc_driver_manager import Error

        return Error

    def _translated(self, error: Any) -> PostgresqlError | PublishError:
        message = " ".join(str(error).split())
        state = error.sqlstate
        if state is None:
            self.close()
            is_refused = bool(REFUSED.search(message))
        else:
            is_refused = state[:2] not in _PASSING and state not in _PASSING_TOO
        kind = PostgresqlError if is_refused else PublishError
        return kind(f"{self.kind}: {message.rstrip('.')}.", _ADVICE.get(state or "", ""))
