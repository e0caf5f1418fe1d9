"""A managed table in Iceberg, in any catalog; pyiceberg commits to it."""

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.table import FileScanTask, Table
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from slackwater.spark_sink.errors import ObjectStoreError
from slackwater.spark_sink.output.iceberg.columns import columns_of_files, data_file
from slackwater.spark_sink.output.iceberg.file_rows import (
    UnreadableFileError,
    deleted_positions,
    opened,
    rows_of_file,
)
from slackwater.spark_sink.output.iceberg.iceberg_commits import IcebergCommits
from slackwater.spark_sink.output.iceberg.iceberg_files import IcebergFiles
from slackwater.spark_sink.output.iceberg.rewrite import data_file_of, write_deletes
from slackwater.spark_sink.output.iceberg.store_io import files_of
from slackwater.spark_sink.tables.by_driver.driver_access import DriverAccess, MakeMerge

# Version 1 has no delete files.
_WITH_DELETES: Final = 2


class IcebergVersion:
    """One snapshot, and the changes to its files.

    Args:
        table: as it was loaded.

    Attributes:
        files: the snapshot's.
        schema: the columns of new files.
        removed: files that are no longer the table's.
        deletes: new delete files.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.schema = columns_of_files(table)
        self.removed: list[IcebergFile] = []
        self.deletes: list[IcebergFile] = []
        self.files = [_File(self, task) for task in table.scan().plan_files()]


class _File:
    """A MergedFile of an Iceberg table."""

    def __init__(self, version: IcebergVersion, task: FileScanTask) -> None:
        self._version = version
        self._file = task.file
        self._deletes = list(task.delete_files)
        self._files = files_of(version.table)
        self.size = task.file.file_size_in_bytes
        self.may_be_marked = version.table.format_version >= _WITH_DELETES and all(
            map(data_file_of, self._deletes)
        )

    @property
    def rows(self) -> int:
        return int(self._file.record_count)

    def deleted_positions(self) -> pa.Array | None:
        deletes = [(d.file_path, d.file_size_in_bytes) for d in self._deletes]
        return deleted_positions(self._files, deletes, self._file.file_path)

    def bounds(self, column: str) -> tuple[int, int] | None:
        field = self._version.table.schema().find_field(column)
        kind: Any = field.field_type
        lower, upper = (
            None if bounds is None else bounds.get(field.field_id)
            for bounds in (self._file.lower_bounds, self._file.upper_bounds)
        )
        if lower is None or upper is None:
            return None
        least: Any = from_bytes(kind, lower)
        greatest: Any = from_bytes(kind, upper)
        return (least, greatest) if type(least) is int and type(greatest) is int else None

    def read(self, columns: pa.Schema) -> Iterator[tuple[int, pa.Table]]:
        first = 0
        with opened(self._files, self._file.file_path, self.size) as source:
            for rows in rows_of_file(source, columns):
                yield first, rows
                first += rows.num_rows

    def replace(self) -> None:
        self._version.removed += [self._file, *filter(data_file_of, self._deletes)]

    def mark(self, deleted: pa.Array) -> None:
        self._version.removed += self._deletes
        self._version.deletes.append(write_deletes(self._version.table, self._file, deleted))


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
