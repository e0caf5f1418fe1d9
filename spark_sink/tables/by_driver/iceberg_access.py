"""A managed table in Iceberg, in any catalog; pyiceberg commits to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from slackwater.spark_sink.errors import ObjectStoreError
from slackwater.spark_sink.output.file_writer import RESULT_SCHEMA, written_files
from slackwater.spark_sink.output.iceberg.columns import data_file
from slackwater.spark_sink.output.iceberg.file_rows import UnreadableFileError
from slackwater.spark_sink.output.iceberg.iceberg_commits import IcebergCommits
from slackwater.spark_sink.output.iceberg.iceberg_files import IcebergFiles
from slackwater.spark_sink.output.iceberg.snapshots import (
    PUBLISHED_SNAPSHOT,
    last_of,
    version_of,
)
from slackwater.spark_sink.output.object_store import is_object_store
from slackwater.spark_sink.output.table_files import data_files
from slackwater.spark_sink.tables.by_driver.driver_access import DriverAccess
from slackwater.spark_sink.tables.by_driver.large_epochs import collected
from slackwater.spark_sink.tables.row_merges import small_table
from slackwater.spark_sink.tables.row_merges.iceberg_merge import IcebergMerge
from slackwater.spark_sink.tables.table_format import LOW_WATERMARK_PROPERTY, MergeId, OtherRows
from slackwater.timestamp import datetime_to_rfc3339

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from slackwater.spark_sink.output.iceberg.table_place import TablePlace
    from slackwater.spark_sink.sql.columns import Column


class IcebergAccess(DriverAccess):
    """One table; see DriverAccess.

    Args:
        spark: a session.
        place: the table's.
        application: names the pipeline in snapshots.
    """

    def __init__(self, spark: SparkSession, place: TablePlace, application: str) -> None:
        # The watermark log's lines are the sink's.
        self._commits = IcebergCommits(place, application, has_lines=False)
        self._own_files = IcebergFiles(self._commits)
        super().__init__(spark, self._commits, self._own_files)
        self._commits.connect(spark)

    def schema(self) -> StructType:
        """Return the columns as they are now; see TableAccess."""
        from pyspark.sql.pandas.types import from_arrow_schema

        self._commits.refresh()
        return from_arrow_schema(self._commits.schema)

    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column; files stay as they are; see TableAccess."""
        self._commits.rename_column(name, new_name)

    def merge(
        self,
        rows: pa.Table | None,
        columns: Sequence[Column],
        merge_id: MergeId,
        others: OtherRows,
    ) -> None:
        """Apply an epoch's changes in one commit, unless the table has its low watermark.

        Args:
            rows: as latest_rows() makes them; None for no changes.
            columns: the columns of the rows, which the table has.
            merge_id: identifies the merge.
            others: what becomes of other rows.

        Raises:
            ObjectStoreError: a file does not say which columns it has, or Arrow can't hold rows.
            PublishError: see TableCommits.append().
        """

        def changes(table: Table) -> tuple[list[IcebergFile], list[IcebergFile]]:
            in_store = is_object_store(table.location())
            files_max = small_table.OBJECTS_MAX if in_store else small_table.FILES_MAX
            merge = IcebergMerge(table, rows, columns, others, files_max)
            added = self._write(table, merge)
            return merge.removed, [*added, *merge.deletes]

        self._commits.rewrite(changes, merge_id.application, merge_id.version)
        self._files.discard([])

    def merge_large(
        self,
        latest: DataFrame,
        columns: Sequence[Column],
        merge_id: MergeId,
        others: OtherRows,
    ) -> None:
        """Merge what Spark has made of an epoch, which the driver's memory holds; see merge()."""
        names = self._commits.schema.names
        rows, targets = collected(latest, columns, names, self._own_files.plain())
        self.merge(rows, targets, merge_id, others)

    def publish_watermark(self, merge_id: MergeId) -> None:
        """Write to the table's properties up to when it has all changes; see TableFormat."""

        def properties(table: Table) -> dict[str, str]:
            published = table.properties.get(LOW_WATERMARK_PROPERTY)
            merged = version_of(last_of(table.metadata, merge_id.application))
            if not merge_id.may_be_published(published, merged):
                return {}
            made = {LOW_WATERMARK_PROPERTY: datetime_to_rfc3339(merge_id.low_watermark)}
            current = table.metadata.current_snapshot_id
            return made if current is None else {**made, PUBLISHED_SNAPSHOT: str(current)}

        self._commits.set_properties(properties)

    def _write(self, table: Table, merge: IcebergMerge) -> list[IcebergFile]:
        """Write the rows of new files, and give these their names in the table."""
        writer = self._own_files.writer_of_rows(merge.schema)
        batches = (batch for rows in merge.rows() for batch in rows.to_batches())
        try:
            results = list(writer.write(batches))
        except (UnreadableFileError, pa.ArrowInvalid) as error:
            raise ObjectStoreError(
                f"{self._commits.path} can't be merged into: {error}.",
                "Move the table away, so that a new one is made",
            ) from error
        written = written_files(pa.Table.from_batches(results, RESULT_SCHEMA))
        return [data_file(table, file) for file in data_files(self._files, written)]
