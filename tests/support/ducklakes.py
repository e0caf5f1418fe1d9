"""DuckLakes as others read them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from slackwater.spark_sink.tables.in_ducklake.lake import extension_file


@dataclass(frozen=True)
class Lake:
    """A DuckLake that somebody reads.

    Attributes:
        catalog: as DuckDB's ATTACH has it behind ducklake:.
    """

    catalog: str

    @staticmethod
    def in_folder(folder: Path) -> "Lake":
        """Return the one in a sink's folder."""
        return Lake(f"sqlite:{folder}/catalog.sqlite")

    @contextmanager
    def opened(self, *, is_read_only: bool = True) -> Iterator[duckdb.DuckDBPyConnection]:
        """Provide a connection of a reader, in a transaction."""
        with duckdb.connect(config={"allow_unsigned_extensions": True}) as connection:
            connection.execute("LOAD icu; SET TimeZone = 'UTC'")
            for name in ("ducklake", "sqlite_scanner", "postgres_scanner"):
                connection.load_extension(extension_file(name))
            mode = "(READ_ONLY)" if is_read_only else ""
            connection.execute(f"ATTACH 'ducklake:{self.catalog}' AS lake {mode}")
            connection.execute("USE lake")
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table, whose name is quoted."""
        with self.opened() as connection:
            return rows_in(connection, table)

    def run(self, statement: str) -> None:
        """Run a statement of somebody else."""
        with self.opened(is_read_only=False) as connection:
            connection.execute(statement)


def rows_in(connection: duckdb.DuckDBPyConnection, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table, whose name is quoted."""
    rows: list[dict[str, Any]] = connection.execute(f"FROM {table}").to_arrow_table().to_pylist()
    return rows
