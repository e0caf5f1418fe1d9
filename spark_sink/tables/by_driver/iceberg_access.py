"""A managed table in Iceberg, in any catalog; pyiceberg commits to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.spark_sink.errors import ObjectStoreError
from slackwater.spark_sink.output.iceberg.columns import data_file
from slackwater.spark_sink.output.iceberg.file_rows import UnreadableFileError
from slackwater.spark_sink.output.iceberg.iceberg_commits import IcebergCommits
from slackwater.spark_sink.output.iceberg.iceberg_files import IcebergFiles
from slackwater.spark_sink.tables.by_driver.driver_access import DriverAccess, MakeMerge
from slackwater.spark_sink.tables.by_driver.iceberg_version import IcebergVersion

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class IcebergAccess(DriverAccess):
    """The DriverAccess of an Iceberg table.

    Args:
        spark: a session.
        commits, files: the table's.
    """

    def __init__(self, spark: SparkSession, commits: IcebergCommits, files: IcebergFiles) -> None:
        super().__init__(spark, commits, files)
        self._commits = commits
        self._own_files = files
        self._commits.connect(spark)

    def schema(self) -> StructType:
        """Return the columns as they are now; see DriverAccess."""
        from pyspark.sql.pandas.types import from_arrow_schema

        self._commits.refresh()
        return from_arrow_schema(self._commits.schema)

    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column; files stay as they are; see DriverAccess."""
        self._commits.rename_column(name, new_name)

    def _merge(self, make: MakeMerge, application: str, version: int) -> None:
        def changes(table: Table) -> tuple[list[IcebergFile], list[IcebergFile]]:
            merged = IcebergVersion(table)
            rows = make(merged.files, merged.schema, None).rows()
            writer = self._own_files.writer_of_rows(merged.schema)
            try:
                written = self._written(writer, rows, merged.schema)
            except UnreadableFileError as error:
                raise ObjectStoreError(
                    f"{self._commits.path} can't be merged into: {error}.",
                    "Move the table away, so that a new one is made",
                ) from error
            added = [data_file(table, file) for file in written]
            return merged.removed, [*added, *merged.deletes]

        self._commits.rewrite(changes, application, version)
