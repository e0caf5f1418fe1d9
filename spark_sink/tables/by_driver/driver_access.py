"""A managed table that the driver and tasks write, without Spark's writers.

Tasks write its files, or the driver those of a small epoch; its log has the commits. A process
takes each table over that there is. One that it finds later it has to have created itself: another
process may have written to any other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from slackwater.arrow_schema import arrow_schema_of
from slackwater.spark_sink.output.file_writer import (
    FileWriter,
    WrittenFile,
    written_by_tasks,
    written_files_of,
)
from slackwater.spark_sink.output.table_commits import TableCommits
from slackwater.spark_sink.output.table_files import TableFiles, data_files
from slackwater.spark_sink.sql.quoting import identifier
from slackwater.spark_sink.tables.managed_table import (
    SOURCE_TABLE_PROPERTY,
    AppendId,
    MissingColumn,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class DriverAccess(ABC):
    """One table; see TableAccess.

    Args:
        spark: a session.
        commits: the table's.
        files: those of the table that wait for a commit.
    """

    def __init__(self, spark: SparkSession, commits: TableCommits, files: TableFiles) -> None:
        self._spark = spark
        self._log = commits
        self._files = files

    def take_over(self) -> int | None:
        """Fence former owners, and return the last epoch's version; None without a table.

        Raises:
            FileSystemError, ObjectStoreError, PublishError: see TableFiles and TableCommits.
        """
        self._files.take_over(self._spark)
        self._log.take_over()
        return self._log.last_version(self._log.application)

    def exists(self) -> bool:
        """Return whether this process has taken the table over, or created it."""
        return self._log.is_owner

    def source_table(self) -> str | None:
        """Return the name in the table's property; see TableAccess."""
        return self._log.property(SOURCE_TABLE_PROPERTY)

    @abstractmethod
    def schema(self) -> StructType:
        """Return the columns as they are now; see TableAccess."""

    @abstractmethod
    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column, in one commit, for any reader of the format; see TableAccess."""

    def create(self, definitions: str, properties: Mapping[str, str]) -> None:
        """Create the table, unless another process has; see TableAccess.

        Raises:
            FileSystemError, PublishError: see TableFiles.take_over() and TableCommits.open().
        """
        self._files.take_over(self._spark)
        self._log.properties = dict(properties)
        self._log.open(_arrow_schema(definitions), ())

    def add_columns(self, columns: Sequence[MissingColumn]) -> None:
        """Add columns; see TableAccess."""
        by_struct: defaultdict[str, list[str]] = defaultdict(list)
        definitions = []
        for column in columns:
            if column.struct is None:
                definitions.append(f"{identifier(column.name)} {column.kind}")
            else:
                by_struct[column.struct].append(f"{identifier(column.name)}: {column.kind}")
        structs = (f"{name} STRUCT<{', '.join(fields)}>" for name, fields in by_struct.items())
        self._log.add_columns(_arrow_schema(", ".join([*definitions, *structs])))

    def append(self, rows: DataFrame, append_id: AppendId) -> None:
        """Have tasks write rows, and commit them; see TableAccess."""
        if not self._has(append_id):
            writer = self._writer(arrow_schema_of(rows.schema))
            self._commit(written_by_tasks(rows, writer), append_id)

    def append_rows(self, rows: pa.Table, append_id: AppendId) -> None:
        """Append rows in one commit, unless the table has it, without a job of Spark's.

        Raises:
            ObjectStoreError, PublishError: see TableCommits.append().
        """
        if not self._has(append_id):
            self._commit(written_files_of(self._writer(rows.schema), rows), append_id)

    def maintain(self, keep_s: float | None) -> None:
        """Compact the table, and remove old versions; see TableCommits."""
        self._log.maintain(keep_s)

    def _has(self, append_id: AppendId) -> bool:
        return self._log.has_committed(append_id.application, append_id.version)

    def _writer(self, schema: pa.Schema) -> FileWriter:
        # Somebody may have altered the table, or ask for more of its rows.
        self._log.open(schema, ())
        return self._files.writer(self._log.partition_columns)

    def _commit(self, written: Sequence[WrittenFile], append_id: AppendId) -> None:
        files = data_files(self._files, written)
        self._log.append(files, append_id.application, append_id.version)
        self._files.discard([])


def _arrow_schema(definitions: str) -> pa.Schema:
    """Return columns as CREATE TABLE lists them."""
    from pyspark.sql.types import StructType

    columns = StructType.fromDDL(definitions)
    return arrow_schema_of(StructType(list(columns)))  # type: ignore[call-overload]
