"""The engines of each kind of database, and the settings with which their transactions begin."""

import errno
import logging
import os
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from slackwater.endpoint import EndpointError
from slackwater.sealing import unseal
from slackwater.secrecy import keep_secret
from slackwater.state import spanner_dialect as spanner
from slackwater.state.errors import StoreMissingError, StoreUnreachableError, StoreUrlError
from slackwater.state.spanner_client import spanner_engine

_BUSY_SECONDS: Final = 30
_CONNECT_SECONDS: Final = 5
# A process that freezes in a transaction keeps its locks, and a standby waits for them. The
# program's own transactions are never idle for long.
_IDLE_SECONDS: Final = 10
_IDLE_SETTING: Final = "idle_in_transaction_session_timeout"
# The server's default may differ: under REPEATABLE READ a transaction that waited in
# Transaction.lock_announced would still not see the finished parent that it waited for, and no task
# would claim the child.
_ISOLATION: Final = "READ COMMITTED"
# Each task's process has its own, and a server of PostgreSQL's has 100 by default. Two transactions
# at once are rare, and the second one's connection is closed after it.
_KEPT_CONNECTIONS: Final = 1
_HINT: Final = (
    "Write sqlite:///path/state.db, postgresql+psycopg://user:password@host/database or"
    " spanner+spanner:///projects/P/instances/I/databases/D"
)


def make_engine(url_text: str, *, create: bool) -> Engine:
    """Return an engine; no connection is made yet.

    Args:
        url_text: a SQLAlchemy URL, sealed or not.
        create: create a SQLite file, private to its user, and its folder if they are missing.

    Raises:
        StoreUrlError: the URL is malformed, its driver is not installed, or a SQLite file can't be
            where it says.
        StoreUnreachableError: the SQLite file is missing, or the disk fails.
    """
    try:
        url = make_url(unseal(url_text))
        keep_secret({"url": url.render_as_string(hide_password=False)})
        if url.get_backend_name() == "sqlite":
            return _sqlite(url, create=create)
        if url.get_backend_name() == spanner.NAME:
            if not spanner.names_a_database(url):
                raise StoreUrlError(
                    "the metadata store's URL does not name a Spanner database.", _HINT
                )
            return _on_spanner(url)
        return _server(url)
    except ValueError:
        raise StoreUrlError(
            "the metadata store's URL is malformed: the port is not a number.", _HINT
        ) from None
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        # Another ArgumentError's message has the URL, with its password.
        is_known = isinstance(error, NoSuchModuleError | ModuleNotFoundError)
        reason = str(error).rstrip(".") if is_known else "it is not a URL"
        raise StoreUrlError(f"the metadata store's URL can't be used: {reason}.", _HINT) from error


def snapshot_options(engine: Engine) -> dict[str, Any]:
    """Return execution options with which all of a reading transaction sees one snapshot.

    Partitions and their parents are read by several statements. If a partition ended between two of
    them, a child could be returned without its parents, and would be read as if it had none.
    """
    match engine.url.get_backend_name():
        case "sqlite":
            # SQLite's transactions read a snapshot anyway, and it has no level of this name.
            return {}
        case spanner.NAME:
            # A read-only transaction reads a snapshot, takes no locks, and is never aborted.
            return {"read_only": True}
        case _:
            return {"isolation_level": "REPEATABLE READ"}


def _sqlite(url: URL, *, create: bool) -> Engine:
    if url.database in (None, "", ":memory:"):
        raise StoreUrlError(
            "a metadata store in memory can't be shared with Spark's processes.",
            "Write sqlite:///path/state.db",
        )
    path = Path(str(url.database))
    try:
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
            _make_private(path)
        elif not path.exists():
            raise StoreMissingError(
                f"the metadata store {path} does not exist.",
                "If this is a Spark executor, it needs a store that all executors can reach, such"
                " as PostgreSQL; otherwise run the pipeline once to create it",
            )
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise StoreUrlError(
            f"the metadata store {path} can't be made: {error.strerror}.",
            "Choose another place for state.url, or a folder that this user may write to",
        ) from error
    except OSError as error:
        raise StoreUnreachableError(
            f"the metadata store {path} can't be opened: {error.strerror}.",
            "Check the folder's permissions",
        ) from error
    arguments = {} if "timeout" in url.query else {"timeout": _BUSY_SECONDS}
    engine = sa.create_engine(url, connect_args=arguments)
    event.listen(engine, "connect", _on_sqlite_connect)
    event.listen(engine, "begin", _on_sqlite_begin)
    return engine


def _on_spanner(url: URL) -> Engine:
    try:
        return spanner_engine(url)
    except EndpointError as error:
        raise StoreUrlError(f"the metadata store: {error.message}", error.hint) from error
    except ValueError as error:
        raise StoreUrlError(f"the metadata store's URL can't be used: {error}.", _HINT) from error


def _server(url: URL) -> Engine:
    arguments: dict[str, Any] = {}
    if url.get_driver_name() == "psycopg":
        # A prepared statement is planned without its values: a list of tokens is then compared one
        # by one with every row, and 100 reads of 400 tokens took 16 s.
        arguments["prepare_threshold"] = None
        # It warns of each collision, which the store's next attempt resolves.
        logging.getLogger("psycopg").setLevel(logging.ERROR)
        if "connect_timeout" not in url.query:
            arguments["connect_timeout"] = _CONNECT_SECONDS
    engine = sa.create_engine(
        url,
        pool_pre_ping=True,
        pool_size=_KEPT_CONNECTIONS,
        connect_args=arguments,
        isolation_level=_ISOLATION,
    )
    if url.get_backend_name() == "postgresql" and _IDLE_SETTING not in str(url.query):
        event.listen(engine, "connect", _on_postgres_connect)
    return engine


def _make_private(path: Path) -> None:
    """Create the file before SQLite does, so that only its user can ever read it.

    An existing file is not opened: closing it would drop the locks that this process's other
    connections hold on it (POSIX), and the next process that closes its own connection would delete
    the write-ahead log that they still use.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None


def _on_postgres_connect(connection: Any, _record: Any) -> None:
    # Not set by the connection's options: a connection pooler in between may refuse those.
    cursor = connection.cursor()
    cursor.execute(f"SET {_IDLE_SETTING} = '{_IDLE_SECONDS}s'")
    cursor.close()
    connection.commit()


def _on_sqlite_connect(connection: Any, _record: Any) -> None:
    # The driver must not begin transactions by itself: it would begin them too late, and a
    # transaction that reads before it writes could then fail at once instead of waiting.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    # Anything that a power cut may lose here can be read again from the change stream.
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _on_sqlite_begin(connection: sa.Connection) -> None:
    is_write = connection.get_execution_options().get("slackwater_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")
