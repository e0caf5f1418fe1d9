"""Mirrors in Delta that Spark neither writes nor reads, of any size.

In S3 Spark's commits would not be safe: its client creates no file only if the name is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from slackwater.arrow_schema import arrow_schema_of
from slackwater.spark_sink.output import delta_maintenance
from slackwater.spark_sink.output.delta_compaction import compact_and_expire
from slackwater.spark_sink.output.delta_errors import refusing
from slackwater.spark_sink.output.file_reader import FileReader
from slackwater.spark_sink.output.file_writer import written_by_tasks
from slackwater.spark_sink.output.table_files import table_files
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.quoting import identifier, literal
from slackwater.spark_sink.tables.by_driver.table_rows import rows_of
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.direct_table import DirectTable
from slackwater.spark_sink.tables.row_merges.delta_merge import (
    forget_rows,
    merge_rows,
    publish_low_watermark,
)
from slackwater.spark_sink.tables.row_merges.row_changes import (
    COMMIT_TIMESTAMP,
    IS_CHANGED,
    IS_DELETED,
    IS_WHOLE,
)
from slackwater.spark_sink.tables.table_format import MergeId, OtherRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class DeltaByDriver(Delta):
    """Delta for mirrors in S3; see Delta.

    Args:
        storage_options: see TableFormat.
    """

    is_by_driver = True

    def __init__(self, storage_options: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__()
        self.storage_options = storage_options
        self._compacted_by_merges: set[str] = set()

    def merges_rows(self, spark: SparkSession, path: str) -> bool:
        """Return True: the driver merges all rows."""
        del spark, path
        return True

    def merge_rows(
        self,
        spark: SparkSession,
        path: str,
        rows: pa.Table,
        columns: Sequence[Column],
        merge_id: MergeId,
        *,
        keeps_deleted: bool,
    ) -> bool:
        """Merge a few rows, into a table of any size; see TableFormat."""
        others = OtherRows(are_kept=keeps_deleted)
        self._merge(self._table(spark, path), path, rows, columns, merge_id, others)
        return True

    def merge(
        self,
        spark: SparkSession,
        path: str,
        latest: DataFrame,
        columns: Sequence[Column],
        merge_id: MergeId,
        others: OtherRows,
    ) -> None:
        """Merge what Spark has made of an epoch, which the driver's memory holds; see TableFormat.

        Raises:
            ObjectStoreError: delta-rs can't write the table.
            PublishError: see TableFormat.
        """
        table = self._table(spark, path)
        with refusing(path), table.translating():
            names = [field.name for field in table.load().schema().fields]
        # Spark and Spanner ignore case, and delta-rs does not.
        own = {name.lower(): name for name in names}
        targets = [replace(column, name=own[column.name.lower()]) for column in columns]
        rows = self._collected(_changed_rows(latest, columns, targets), path)
        self._merge(table, path, rows, targets, merge_id, others)

    def forget(
        self,
        spark: SparkSession,
        path: str,
        columns: Sequence[Column],
        merge_id: MergeId,
        others: OtherRows,
    ) -> None:
        """Drop what former tables and columns left; see TableFormat and merge()."""
        with refusing(path):
            forget_rows(self._table(spark, path), columns, merge_id, others)

    def publish_watermark(self, spark: SparkSession, path: str, merge_id: MergeId) -> None:
        """Write to the table's properties up to when it has all changes; see TableFormat."""
        with refusing(path):
            publish_low_watermark(self._table(spark, path), merge_id)

    def read(self, spark: SparkSession, path: str) -> DataFrame:
        """Read a table as it is now; see TableFormat."""
        with refusing(path):
            return rows_of(spark, path, self.storage_options)

    def _read_version(self, spark: SparkSession, path: str, version: int) -> DataFrame:
        with refusing(path):
            return rows_of(spark, path, self.storage_options, version)

    def maintain(
        self, spark: SparkSession, path: str, application: str, keep_s: float | None
    ) -> None:
        """Remove old versions, and compact what no merge has; see TableFormat."""
        del application
        if not self.exists(spark, path):
            return
        # Those merges would fail if the table's files were compacted meanwhile.
        if path not in self._compacted_by_merges:
            compact_and_expire(path, self.storage_options, keep_s)
        elif keep_s is not None:
            delta_maintenance.expire(path, self.storage_options, keep_s)

    def _merge(
        self,
        table: DirectTable,
        path: str,
        rows: pa.Table,
        columns: Sequence[Column],
        merge_id: MergeId,
        others: OtherRows,
    ) -> None:
        with refusing(path):
            compacts = merge_rows(table, rows, columns, merge_id, others, is_limited=False)
        if compacts:
            self._compacted_by_merges.add(path)
        else:
            self._compacted_by_merges.discard(path)

    def _collected(self, rows: DataFrame, path: str) -> pa.Table:
        """Return rows by way of files of tasks: the JVM's memory need not hold them."""
        files = table_files(path, self.storage_options)
        writer = files.writer(())
        written = written_by_tasks(rows, writer)
        try:
            reader = replace(FileReader.of(writer), schema=arrow_schema_of(rows.schema))
            return reader.table(written)
        finally:
            files.discard(written)

    def _table(self, spark: SparkSession, path: str) -> DirectTable:
        table = self._direct.table(spark, path, self.storage_options)
        assert table is not None  # noqa: S101 - the driver changes all of these
        return table


def _changed_rows(
    latest: DataFrame, columns: Sequence[Column], targets: Sequence[Column]
) -> DataFrame:
    """Return rows of latest_changes() in the columns of latest_rows(), under a table's names."""
    from pyspark.sql import functions as F

    pairs = list(zip(columns, targets, strict=True))
    values = (F.col(f"row.{identifier(c.name)}").alias(target.name) for c, target in pairs)
    changed = (
        F.expr(f"map_contains_key(changed_columns, {literal(c.name)})").alias(
            IS_CHANGED + target.name
        )
        for c, target in pairs
        if not c.is_key
    )
    return latest.select(
        *values,
        F.col("deleted").alias(IS_DELETED),
        F.col("whole").alias(IS_WHOLE),
        F.col("commit_timestamp").alias(COMMIT_TIMESTAMP),
        *changed,
    )
