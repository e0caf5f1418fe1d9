"""Epochs on their way into a Delta or Iceberg table, on a disk or in an object store.

Tasks write the table's files, or hand small ones on; the driver commits them, without Spark.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from slackwater.arrow_schema import arrow_schema_of
from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.application import scan_application
from slackwater.spark_sink.output.epoch_files import LatestEpoch
from slackwater.spark_sink.output.file_writer import WrittenFile
from slackwater.spark_sink.output.maintenance import NO_MAINTENANCE, Maintenance, MaintenancePolicy
from slackwater.spark_sink.output.preparation import Preparation
from slackwater.spark_sink.output.table_commits import TableCommits
from slackwater.spark_sink.output.table_files import TableFiles, data_files
from slackwater.spark_sink.output.task_writer import TaskWriter, handed_on
from slackwater.spark_sink.sink import EpochSummary
from slackwater.timestamp import datetime_to_us, us_to_datetime


class TableEpochs:
    """Epochs become visible by a commit to a table; see EpochFiles.

    Args:
        commits: the table's.
        files: those of the table that wait for a commit.
        preparation: makes the rows to write.
        partition_by: the partition columns of a table that is created.
        policy: when the table is maintained.
    """

    def __init__(
        self,
        commits: TableCommits,
        files: TableFiles,
        preparation: Preparation,
        partition_by: Sequence[str] = (),
        policy: MaintenancePolicy = NO_MAINTENANCE,
    ) -> None:
        self._commits = commits
        self._files = files
        self._preparation = preparation
        self._partition_by = tuple(partition_by)
        self._policy = policy
        self.maintenance = Maintenance(self._maintain, policy.every_s)
        # Of all epochs; it costs a call to the JVM.
        self._schema: pa.Schema | None = None
        self._written: dict[int, Sequence[WrittenFile]] = {}

    def take_over(
        self,
        spark: SparkSession,
        logged: Callable[[], datetime | None],  # noqa: ARG002
    ) -> LatestEpoch:
        """Commit this process as the owner; see EpochFiles.

        Raises:
            FileSystemError: see TableFiles.take_over().
            ObjectStoreError, PublishError: see TableCommits.take_over().
        """
        self._files.take_over(spark)
        self._commits.take_over()
        version = self._commits.last_version(self._commits.application)
        if version is None:
            return LatestEpoch()
        last = us_to_datetime(version)
        self.maintenance.take_over(last)
        return LatestEpoch(last, self._commits.last_line())

    def for_scan(self) -> "TableEpochs":
        """Return the same for an initial scan; see EpochFiles."""
        unfiltered = self._preparation.unfiltered()
        return TableEpochs(self._commits, self._files.for_scan(), unfiltered, self._partition_by)

    def task_writer(self, spark: SparkSession, schema: StructType) -> str | None:  # noqa: ARG002
        """Return the text of the tasks' writer; see TaskWriting."""
        self._schema = arrow_schema_of(self._preparation.schema_of(schema))
        return None if self._preparation.messages else self._tasks(self._schema).to_text()

    def _tasks(self, schema: pa.Schema) -> TaskWriter:
        """Return the writer of the table's files; the table is created if it is missing."""
        self._commits.open(schema, self._partition_by)
        files = self._files.writer(self._commits.partition_columns)
        return TaskWriter(files, self._preparation)

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """Have tasks write files, which no commit names yet; see EpochFiles."""
        if self._schema is None:
            self._schema = arrow_schema_of(self._preparation.schema_of(epoch.schema))
        handed = handed_on(epoch, self._tasks(self._schema))
        self._written = {epoch_id: handed.files}
        return handed.summary

    def publish(
        self,
        spark: SparkSession,
        epoch_id: int,
        low_watermark: datetime,
        *,
        line: str | None = None,
        chunk: int | None = None,
    ) -> None:
        """Commit an epoch's files; see EpochFiles."""
        application, version = self._commits.application, datetime_to_us(low_watermark)
        if chunk is not None:
            application, version = scan_application(application, low_watermark), chunk
        if self._commits.has_committed(application, version):
            self.discard(spark, epoch_id)
            return
        # If the commit's answer is lost, these files may be the table's: they are not removed.
        written = self._written.pop(epoch_id, None)
        if written is None:
            raise PublishError("another epoch was staged since this one.")
        files = data_files(self._files, written)
        self._commits.append(files, application, version, line)
        self._files.discard([])
        self.maintenance.begin_if_due(spark, lambda: [self._commits.path])

    def discard(self, spark: SparkSession, epoch_id: int) -> None:  # noqa: ARG002
        """Remove the files of an epoch that is not committed."""
        self._files.discard(self._written.pop(epoch_id, []))

    def _maintain(self, spark: SparkSession, path: str) -> None:  # noqa: ARG002
        self._commits.maintain(self._policy.keep_s)
