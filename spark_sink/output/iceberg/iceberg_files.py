"""The files of an Iceberg table that no commit names yet: beside them, or in the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.file_writer import FileWriter, WrittenFile, schema_text
from slackwater.spark_sink.output.iceberg.iceberg_commits import IcebergCommits
from slackwater.spark_sink.output.table_files import TableFiles, table_files

# Where Iceberg's own writers have them, too.
_DATA: Final = "data/"


class IcebergFiles:
    """The TableFiles of an Iceberg table, whose place may be unknown until it is created.

    Args:
        commits: the table's.
        epochs: those of epochs, if these are a scan's.
    """

    def __init__(self, commits: IcebergCommits, epochs: IcebergFiles | None = None) -> None:
        self.path = commits.path
        self._commits = commits
        self._epochs = epochs
        self._of_location: TableFiles | None = None
        self._made_for: tuple[str, Mapping[str, str]] | None = None

    def for_scan(self) -> IcebergFiles:
        """Return the same owner's for a scan; see TableFiles."""
        return IcebergFiles(self._commits, self)

    def take_over(self, spark: SparkSession) -> None:
        """Find the catalog, and remove former owners' files; see TableFiles."""
        self._commits.connect(spark)
        if self._commits.location is not None:
            self._files().take_over(spark)

    def writer(self, partition_by: Sequence[str]) -> FileWriter:
        """Return a writer of the columns that the table was opened for; see TableFiles."""
        return self._writer(self._commits.columns_of_files, partition_by)

    def writer_of_rows(self, columns: pa.Schema) -> FileWriter:
        """Return a writer of all columns of the table.

        Args:
            columns: by columns_of_files().
        """
        return self._writer(columns, self._commits.partition_columns)

    def plain(self) -> TableFiles:
        """Return the files without the table's columns: any rows can be written there."""
        return self._files()

    def _writer(self, columns: pa.Schema, partition_by: Sequence[str]) -> FileWriter:
        writer = self._files().writer(partition_by)
        return replace(writer, columns=schema_text(columns), keeps_partition_columns=True)

    def place(self, file: WrittenFile) -> str:
        """Give a file its name in the table; see TableFiles."""
        return self._files().place(file)

    def discard(self, files: Iterable[WrittenFile]) -> None:
        """Remove files that were not placed; see TableFiles."""
        self._files().discard(files)

    def _files(self) -> TableFiles:
        if self._epochs is not None:
            return self._epochs._files().for_scan()
        location, options = self._commits.location, self._commits.store_options
        if location is None:
            raise PublishError(f"{self.path}: the table is gone.")
        # Credentials may be others since.
        if self._of_location is None or self._made_for != (location, options):
            self._of_location = table_files(location, options, _DATA)
            self._made_for = (location, options)
        return self._of_location
