"""Delta in object stores, where Spark neither writes nor reads it: mirrors of any size.

Spark's commits would not be safe in all of them: for S3 its client replaces a file that is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from slackwater.spark_sink.output import delta_maintenance
from slackwater.spark_sink.output.delta_compaction import compact_and_expire
from slackwater.spark_sink.output.delta_errors import refusing
from slackwater.spark_sink.output.table_files import table_files
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.by_driver.large_epochs import collected
from slackwater.spark_sink.tables.by_driver.table_rows import rows_of
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.row_merges.delta_merge import (
    forget_rows,
    merge_rows,
)
from slackwater.spark_sink.tables.table_format import MergeId, OtherRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class DeltaByDriver(Delta):
    """Delta in object stores; see Delta.

    Args:
        storage_options: see TableFormat.
    """

    is_by_driver = True
    # Only Spark writes mapped columns.
    names_any_column = ("", ())

    def __init__(self, storage_options: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__()
        self.storage_options = storage_options
        self._compacted_by_merges: set[str] = set()

    @contextmanager
    def idempotent_merge(
        self, spark: SparkSession, application: str, low_watermark: datetime
    ) -> Iterator[None]:
        """Do nothing: each merge has its identifier; see TableFormat."""
        del spark, application, low_watermark
        yield

    def merge_rows(
        self,
        spark: SparkSession,  # noqa: ARG002
        path: str,
        rows: pa.Table,
        columns: Sequence[Column],
        merge_id: MergeId,
        *,
        keeps_deleted: bool,
    ) -> bool:
        """Merge a few rows, into a table of any size; see TableFormat."""
        others = OtherRows(are_kept=keeps_deleted)
        self._merge(path, rows, columns, merge_id, others)
        return True

    def merge(
        self,
        spark: SparkSession,  # noqa: ARG002
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
        table = self._table(path)
        with refusing(path), table.translating():
            names = [field.name for field in table.load().schema().fields]
        files = table_files(path, self.storage_options)
        rows, targets = collected(latest, columns, names, files)
        self._merge(path, rows, targets, merge_id, others)

    def forget(
        self,
        spark: SparkSession,  # noqa: ARG002
        path: str,
        columns: Sequence[Column],
        merge_id: MergeId,
        others: OtherRows,
    ) -> None:
        """Drop what former tables and columns left; see TableFormat and merge()."""
        with refusing(path):
            forget_rows(self._table(path), columns, merge_id, others)

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
        path: str,
        rows: pa.Table,
        columns: Sequence[Column],
        merge_id: MergeId,
        others: OtherRows,
    ) -> None:
        with refusing(path):
            table = self._table(path)
            compacts = merge_rows(table, rows, columns, merge_id, others, is_limited=False)
        if compacts:
            self._compacted_by_merges.add(path)
        else:
            self._compacted_by_merges.discard(path)
