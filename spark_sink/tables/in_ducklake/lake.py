"""A DuckLake, through DuckDB in this process."""

import importlib.resources
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection

from slackwater.spark_sink.errors import DuckLakeError, PublishError
from slackwater.spark_sink.tables.by_transaction.names import literal
from slackwater.spark_sink.tables.by_transaction.sql_database import SqlDatabase
from slackwater.spark_sink.tables.in_ducklake.address import LakeAddress
from slackwater.spark_sink.tables.in_ducklake.lake_files import ROOT, LakeFiles
from slackwater.spark_sink.tables.in_postgresql.address import connection_url
from slackwater.spark_sink.tables.in_postgresql.database import REFUSED

# What does not fit is written to the folder for temporary files.
_MEMORY_MAX: Final = "1GB"
_THREADS: Final = 2
_EXTENSIONS: Final = ("ducklake", "sqlite_scanner", "postgres_scanner")
# The rows that a statement reads.
ARRIVING: Final = "_slackwater_arriving"
# The name of the lake's catalog in DuckDB.
CATALOG: Final = "__ducklake_metadata_lake"
_INLINED_ROWS_MAX: Final = "ducklake_default_data_inlining_row_limit"
_PROBE: Final = "_slackwater_probe"
_ROWS_AT_ONCE: Final = 50_000
# An epoch waits while a file of that size is made.
_FILE_SIZE: Final = "128MiB"
# In messages of requests to the catalog.
_FAILED: Final = "Failed to "


class Lake(SqlDatabase):
    """A DuckLake; see SqlDatabase.

    Args:
        address: where it is.
        application: names the connection to the catalog.
        is_made: it is made if it is not there.
    """

    kind = "DuckLake"

    def __init__(self, address: LakeAddress, application: str, *, is_made: bool = False) -> None:
        super().__init__()
        self._is_made = is_made
        self._address = address
        self._files = LakeFiles(address.files, address.options)
        self._application = application

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows; see SqlDatabase."""
        with self._connected() as connection:
            rows = connection.execute(statement, list(values) or None).to_arrow_table()
            return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))

    @contextmanager
    def batches(self, query: str, *values: Any) -> Iterator[pa.RecordBatchReader]:
        """Provide the rows of a query, as they come; see SqlDatabase."""
        with self._connected() as connection:
            result = connection.execute(query, list(values) or None)
            yield self._as_they_come(result.to_arrow_reader(_ROWS_AT_ONCE))

    def run_with(
        self, statement: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema
    ) -> list[tuple[Any, ...]]:
        """Run a statement that reads rows, once, from ARRIVING; see run()."""
        failures = list[BaseException]()

        def arriving() -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except BaseException as error:
                # DuckDB makes a text of it.
                failures.append(error)
                raise

        with self._connected() as connection:
            connection.register(ARRIVING, pa.RecordBatchReader.from_batches(schema, arriving()))
            try:
                return self.run(statement)
            except (DuckLakeError, PublishError):
                if failures:
                    raise failures[0] from None
                raise
            finally:
                if self.is_open:
                    connection.unregister(ARRIVING)

    def write_file(
        self, statement: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema
    ) -> None:
        """Run a statement that inserts rows, which become a file even if they are few.

        Of a struct that is in the catalog DuckDB 1.5.5 reads no quote, no timestamp and no bytes.
        """
        # Other tables' statements would run between these.
        with self._lock:
            self.run(f"SET {_INLINED_ROWS_MAX} = 0")
            self.run_with(statement, batches, schema)
            self.run(f"RESET {_INLINED_ROWS_MAX}")

    def removing(self, call: str) -> None:
        """Run a statement that removes files which nobody needs."""
        with self._lock:
            self._files.are_removed = True
            try:
                self.run(call)
            finally:
                self._files.are_removed = False

    def remove_left_uploads(self, older_than_s: float) -> None:
        """Remove files of uploads that were killed; see LakeFiles."""
        self._files.remove_left_uploads(older_than_s)

    def schema(self, table: str) -> pa.Schema:
        """Return the columns of a table."""
        with self._connected() as connection:
            return connection.execute(f"SELECT * FROM {table} LIMIT 0").to_arrow_table().schema

    def _driver_error(self) -> type[Exception]:
        return duckdb.Error

    def _translated(self, error: Any) -> DuckLakeError | PublishError:
        message = f"{self.kind}: {' '.join(str(error).split()).rstrip('.')}."
        if _is_refused(error, message):
            return DuckLakeError(message)
        self.close()
        return PublishError(message)

    def _connect(self) -> DuckDBPyConnection:
        if not self._address.is_in_postgresql:
            file = Path(self._address.catalog_file)
            if self._is_made:
                file.parent.mkdir(parents=True, exist_ok=True)
            elif not file.exists():
                raise DuckLakeError(
                    f"there is no lake with the catalog {file} yet.", "Run the pipeline first"
                )
        connection = self._loaded()
        connection.register_filesystem(self._files)
        connection.execute(self._address.attached(self._application, ROOT, is_made=self._is_made))
        connection.execute("USE lake")
        self._require_files(connection)
        return connection

    def _require_files(self, connection: DuckDBPyConnection) -> None:
        """Have the lake state where its files are, if it is new, and require that it does."""
        root = f"{self._address.files}/"
        metadata = f"{CATALOG}.ducklake_metadata"
        query = f"SELECT value FROM {metadata} WHERE key = 'data_path'"
        [[stated]] = connection.execute(query).fetchall()
        if self._is_made and stated == ROOT:
            if self._files.find("files/"):
                raise DuckLakeError(
                    f"{root} has files, and the catalog is a new one.",
                    "Restore the catalog, or set sink.path to another folder",
                )
            connection.execute(f"CALL lake.set_option('target_file_size', '{_FILE_SIZE}')")
            connection.execute(
                f"UPDATE {metadata} SET value = $1 WHERE key = 'data_path' AND value = $2",
                [root, ROOT],
            )
        elif stated != root:
            raise DuckLakeError(
                f"the lake has its files in {stated}, and by sink.path they are in {root}.",
                "Set sink.path to the folder above them, or sink.catalog to another catalog",
            )

    def _loaded(self) -> DuckDBPyConnection:
        """Return DuckDB with what it needs to reach the lake."""
        self._spilled = tempfile.TemporaryDirectory(prefix="slackwater-")
        connection = duckdb.connect(
            config={
                "memory_limit": _MEMORY_MAX,
                "threads": _THREADS,
                # Of its own: DuckDB's names of files there are always the same.
                "temp_directory": self._spilled.name,
                "autoinstall_known_extensions": False,
                # They come with the packages as this code does, and are loaded by their paths. To
                # verify 110 MB of them takes half a second.
                "allow_unsigned_extensions": True,
            }
        )
        connection.execute("LOAD icu")
        for extension in _EXTENSIONS:
            connection.load_extension(extension_file(extension))
        # Also of the connection to the catalog, in which SQLite has times as texts.
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
        return connection

    def check(self) -> None:
        """Ask whether the catalog can be made; make nothing.

        Raises:
            DuckLakeError, PublishError: it can't, or does not answer.
        """
        if not self._address.is_in_postgresql:
            file = Path(self._address.catalog_file)
            if file.exists():
                self.run("SELECT 1")
            folder = next(parent for parent in file.parents if parent.exists())
            if not os.access(folder, os.W_OK):
                raise DuckLakeError(f"the catalog {file} can't be written to {folder}.")
            return
        url = connection_url(self._address.catalog, self._application)
        try:
            with self._connected(self._loaded) as connection:
                connection.execute(f"ATTACH {literal(url)} AS server (TYPE postgres)")
                connection.execute("BEGIN")
                connection.execute(f"CREATE TABLE server.{_PROBE} (number int)")
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection; the next statement opens another one."""
        with self._lock:
            was_open = self.is_open
            super().close()
            if was_open:
                self._spilled.cleanup()


def _is_refused(error: Exception, message: str) -> bool:
    """Return whether an error stays, as that of a value that a column can't have.

    What the catalog's server or the files' store fails at has any class, and says so.
    """
    staying = (
        duckdb.BinderException,
        duckdb.CatalogException,
        duckdb.ConstraintException,
        duckdb.ConversionException,
        duckdb.InvalidInputException,
        duckdb.NotImplementedException,
    )
    return bool(REFUSED.search(message)) or (isinstance(error, staying) and _FAILED not in message)


def extension_file(name: str) -> str:
    """Return the file of an extension of DuckDB's, which a package of its name brings."""
    root = importlib.resources.files(f"duckdb_extension_{name}") / "extensions"
    [file] = (file for version in root.iterdir() for file in version.iterdir())
    return str(file)
