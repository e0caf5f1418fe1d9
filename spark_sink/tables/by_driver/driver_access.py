"""A managed table that the driver and tasks write, without Spark's writers.

Tasks write its files, or the driver those of a small epoch; its log has the commits. A process
takes over every existing table. One that appears later has to be its own: another process may have
written to any other.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from slackwater.arrow_schema import arrow_schema_of
from slackwater.spark_sink.errors import ObjectStoreError
from slackwater.spark_sink.output.file_reader import FileReader
from slackwater.spark_sink.output.file_writer import (
    RESULT_SCHEMA,
    FileWriter,
    WrittenFile,
    written_by_tasks,
    written_files,
    written_files_of,
)
from slackwater.spark_sink.output.object_store import is_object_store
from slackwater.spark_sink.output.table_commits import DataFile, TableCommits
from slackwater.spark_sink.output.table_files import TableFiles, data_files
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.row_merges import file_merge
from slackwater.spark_sink.tables.row_merges.changed_rows import ChangedRows
from slackwater.spark_sink.tables.row_merges.file_merge import FileMerge, MergedFile
from slackwater.spark_sink.tables.table_access import (
    TableAccess,
    schema_of_columns,
    schema_of_missing,
)
from slackwater.spark_sink.tables.table_changes import (
    LOW_WATERMARK_PROPERTY,
    SOURCE_TABLE_PROPERTY,
    AppendId,
    MergeId,
    MergePolicy,
    MissingColumn,
)
from slackwater.timestamp import datetime_to_rfc3339

# Makes a merge into the files of a version, whose columns new files have, too.
MakeMerge = Callable[[Sequence[MergedFile], pa.Schema, ChangedRows | None], FileMerge]


class DriverAccess(TableAccess):
    """The TableAccess of a table in files.

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
        """Fence former owners; see TableAccess."""
        self._files.take_over(self._spark)
        self._log.take_over()
        return self._log.last_version(self._log.application)

    def exists(self) -> bool:
        """Return whether this process is the table's owner; see TableAccess."""
        return self._log.is_owner

    def source_table(self) -> str | None:
        """Return its property of that name; see TableAccess."""
        return self._log.property(SOURCE_TABLE_PROPERTY)

    def create(
        self,
        definitions: str,
        properties: Mapping[str, str],
        columns: Sequence[Column],  # noqa: ARG002
    ) -> None:
        """Create the table; see TableAccess."""
        self._files.take_over(self._spark)
        self._log.properties = dict(properties)
        self._log.open(schema_of_columns(definitions), ())

    def add_columns(self, columns: Sequence[MissingColumn]) -> None:
        """Add columns, in one commit; see TableAccess."""
        self._log.add_columns(schema_of_missing(columns))

    def append(self, rows: DataFrame, append_id: AppendId) -> None:
        """Have tasks write rows, and append them; see TableAccess."""
        if not self._has(append_id):
            writer = self._writer(arrow_schema_of(rows.schema))
            self._commit(written_by_tasks(rows, writer), append_id)

    def append_rows(self, rows: pa.Table, append_id: AppendId) -> None:
        """Append rows without a job of Spark's; see TableAccess."""
        if not self._has(append_id):
            self._commit(written_files_of(self._writer(rows.schema), rows), append_id)

    def merge(
        self,
        rows: pa.Table | None,
        columns: Sequence[Column],
        merge_id: MergeId,
        policy: MergePolicy,
    ) -> None:
        """Apply an epoch's changes in one commit; see TableAccess."""
        files_max = file_merge.FILES_MAX
        if is_object_store(self._files.plain().path):
            files_max = file_merge.OBJECTS_MAX

        def make(
            files: Sequence[MergedFile], schema: pa.Schema, changes: ChangedRows | None = None
        ) -> FileMerge:
            return FileMerge(files, schema, rows, columns, policy, files_max, changes)

        self._merge(make, merge_id.application, merge_id.version)
        self._files.discard([])

    def collected(self, rows: DataFrame) -> pa.Table:
        """Return rows that tasks have written; see TableAccess."""
        files = self._files.plain()
        writer = files.writer(())
        written = written_by_tasks(rows, writer)
        try:
            reader = replace(FileReader.of(writer), schema=arrow_schema_of(rows.schema))
            return reader.table(written)
        finally:
            files.discard(written)

    def publish_watermark(self, merge_id: MergeId) -> None:
        """Write the table's low watermark to its properties; see TableAccess."""

        def properties() -> Mapping[str, str]:
            published = self._log.property(LOW_WATERMARK_PROPERTY)
            merged = self._log.last_version(merge_id.application)
            if not merge_id.may_be_published(published, merged):
                return {}
            stated = {LOW_WATERMARK_PROPERTY: datetime_to_rfc3339(merge_id.low_watermark)}
            return {**stated, **self._log.version_properties}

        self._log.set_properties(properties)

    @abstractmethod
    def _merge(self, make: MakeMerge, application: str, version: int) -> None:
        """Commit a merge into the table as it is, and again if another commit comes first."""

    def maintain(self, keep_s: float | None) -> None:
        """Compact the table, and remove old versions; see TableCommits."""
        self._log.maintain(keep_s)

    def _has(self, append_id: AppendId) -> bool:
        return self._log.has_committed(append_id.application, append_id.version)

    def _writer(self, schema: pa.Schema) -> FileWriter:
        # The table may have been altered, or have new demands on its rows.
        self._log.open(schema, ())
        return self._files.writer(self._log.partition_columns)

    def _written(
        self, writer: FileWriter, rows: Iterator[pa.Table], columns: pa.Schema
    ) -> list[DataFile]:
        """Write new files of the table, and give them their names.

        Args:
            writer: writes them.
            rows: theirs.
            columns: those of the rows.
        """
        batches = (batch for table in rows for batch in table.select(columns.names).to_batches())
        try:
            results = pa.Table.from_batches(writer.write(batches), RESULT_SCHEMA)
        except pa.ArrowException as error:
            raise ObjectStoreError(
                f"{self._log.path} can't be merged into: {error}.",
                "Move the table away, so that a new one is made",
            ) from error
        return data_files(self._files, written_files(results))

    def _commit(self, written: Sequence[WrittenFile], append_id: AppendId) -> None:
        files = data_files(self._files, written)
        self._log.append(files, append_id.application, append_id.version)
        self._files.discard([])
