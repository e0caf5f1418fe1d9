"""A changelog in one table that Spark writes: each epoch is a commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.output.application import application_of, scan_application
from slackwater.spark_sink.output.maintenance import NO_MAINTENANCE, Maintenance, MaintenancePolicy
from slackwater.spark_sink.output.staging import StagedByTasks, Staging
from slackwater.spark_sink.output.watermark_log import LoggedScans, WatermarkLog, output_position
from slackwater.spark_sink.sink import EpochSummary, OutputPosition
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.table_format import TableFormat
from slackwater.timestamp import datetime_to_us, us_to_datetime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# In bytes, compressed: an epoch becomes one file, since each costs requests in an object store.
_ONE_FILE_MAX: Final = 4 << 20


class TableChangelog(StagedByTasks, LoggedScans):
    """Writes each epoch as a commit to a table.

    Args:
        path: a directory, as Spark accepts it; created if missing.
        table_format: the table's.
        staging: writes an epoch's rows as Parquet files: a commit can't be held back until the
            audit is done.
        watermarks: the output's.
        policy: when the table is maintained.
    """

    def __init__(
        self,
        path: str,
        table_format: TableFormat,
        staging: Staging,
        watermarks: WatermarkLog,
        *,
        policy: MaintenancePolicy = NO_MAINTENANCE,
    ) -> None:
        self._path = path
        self._table = table_format
        self._application = application_of(watermarks.pipeline)
        self._policy = policy
        self._maintenance = Maintenance(self._maintain, policy.every_s)
        self._staging = staging
        self._scanned = staging.for_scan()
        self._watermarks = watermarks

    def position(self, spark: SparkSession) -> OutputPosition:
        """Return the later of the log's last line and the last commit; see Sink."""
        self._staging.take_over(spark)
        logged = self._watermarks.last()
        version = self._table.last_version(spark, self._path, self._application)
        committed = None if version is None else us_to_datetime(version)
        return output_position(logged, committed, is_one_commit=True)

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """Stage an epoch beside the table; see Sink."""
        return self._staging.stage(epoch, epoch_id)

    def publish(
        self, spark: SparkSession, epoch_id: int, summary: EpochSummary, low_watermark: datetime
    ) -> None:
        """Commit a staged epoch to the table; see Sink."""
        if summary.written:
            rows = _staged(self._staging, spark, epoch_id)
            version = datetime_to_us(low_watermark)
            self._table.append(rows, self._path, self._application, version)
            if self._maintenance.is_due:
                # Here, because it would make an append at the same time fail.
                self._table.ensure_retention(spark, self._path, self._policy.keep_s)
        self._staging.discard(epoch_id)
        self._watermarks.add(epoch_id, summary, low_watermark)
        if summary.written:
            self._maintenance.begin_if_due(spark, lambda: [self._path])

    def begin_scan(self, spark: SparkSession, tables: Mapping[str, Sequence[Column]]) -> None:
        """Do nothing: nothing has to be prepared."""

    def add_scanned(self, rows: DataFrame, chunk: int, low_watermark: datetime) -> int:
        """Commit a chunk; see Sink."""
        spark = rows.sparkSession
        records = self._scanned.stage(rows, chunk).records
        scan = scan_application(self._application, low_watermark)
        self._table.append(_staged(self._scanned, spark, chunk), self._path, scan, chunk)
        self._scanned.discard(chunk)
        return records

    def _maintain(self, spark: SparkSession, path: str) -> None:
        self._table.maintain(spark, path, self._application, self._policy.keep_s)


def _staged(staging: Staging, spark: SparkSession, epoch_id: int) -> DataFrame:
    """Return the rows of a staged epoch, of a small one for one file."""
    rows = staging.read_staged(spark, epoch_id)
    return rows.coalesce(1) if staging.is_small(epoch_id, _ONE_FILE_MAX) else rows
