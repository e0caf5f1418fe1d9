"""Epochs on their way into files: written by tasks, and published by a commit."""

from collections.abc import Callable, Sequence
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from slackwater.spark_sink.formats import JSON, TEXT
from slackwater.spark_sink.output.epoch_compaction import EpochCompaction
from slackwater.spark_sink.output.epoch_files import LatestEpoch
from slackwater.spark_sink.output.epoch_place import EpochPlace, Form, Shown
from slackwater.spark_sink.output.file_log import CHUNKS, EPOCHS, FileLog
from slackwater.spark_sink.output.file_writer import WrittenFile
from slackwater.spark_sink.output.maintenance import (
    NO_MAINTENANCE,
    Maintenance,
    MaintenancePolicy,
)
from slackwater.spark_sink.output.preparation import Preparation
from slackwater.spark_sink.output.task_writer import TaskWriter, handed_on
from slackwater.spark_sink.sink import EpochSummary


class FileEpochs:
    """Epochs become visible by a commit; see EpochFiles.

    Args:
        place: where they stand.
        file_format: parquet, orc or json, of which text has the lines.
        preparation: makes the rows to write.
        partition_by: columns that name the folders of the files.
        policy: when epochs are compacted.
        shown: where readers see epochs; None for the place itself.
        log: of which these are the chunks of a scan; None for epochs, and a log of their own.
    """

    def __init__(
        self,
        place: EpochPlace,
        file_format: str,
        preparation: Preparation,
        partition_by: Sequence[str] = (),
        policy: MaintenancePolicy = NO_MAINTENANCE,
        *,
        shown: Shown | None = None,
        log: FileLog | None = None,
    ) -> None:
        self._place = place
        self._format = file_format
        self._preparation = preparation
        self._partition_by = tuple(partition_by)
        # A file of records in JSON is written as lines, too, and named as Spark names it.
        is_text = file_format in (JSON, TEXT)
        suffix = "txt" if file_format == TEXT else file_format
        self._log = log or FileLog(place, Form(TEXT if is_text else file_format, suffix), shown)
        self._kind = EPOCHS if log is None else CHUNKS
        self._written: dict[int, tuple[str, Sequence[WrittenFile]]] = {}
        self._policy = policy
        self._compaction = EpochCompaction(place, self._log)
        self.maintenance = Maintenance(self._maintain, policy.every_s)

    def take_over(self, spark: SparkSession, logged: Callable[[], datetime | None]) -> LatestEpoch:
        """Add a commit of this process; see EpochFiles.

        Raises:
            FileSystemError: see EpochPlace.prepare().
        """
        with self._place.translating():
            self._place.prepare(spark)
            self._place.require_commits()
        latest = self._log.take_over(logged)
        self.maintenance.take_over(latest.low_watermark)
        return latest

    def for_scan(self) -> "FileEpochs":
        """Return the same for an initial scan; see EpochFiles."""
        unfiltered = self._preparation.unfiltered()
        return FileEpochs(self._place, self._format, unfiltered, self._partition_by, log=self._log)

    def task_writer(self, spark: SparkSession, schema: StructType) -> str | None:  # noqa: ARG002
        """Return the text of the tasks' writer; see TaskWriting."""
        return None if self._preparation.messages else self._tasks().to_text()

    def _tasks(self) -> TaskWriter:
        files = self._log.writer(self._kind, self._format, self._partition_by)
        return TaskWriter(files, self._preparation)

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """Have tasks write an epoch's files, or take those that they wrote; see EpochFiles."""
        owner, handed = self._log.owner, handed_on(epoch, self._tasks())
        self._written = {epoch_id: (owner, handed.files)}
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
        """Commit a staged epoch; see EpochFiles."""
        owner, written = self._written[epoch_id]
        self._log.publish(written, low_watermark, owner=owner, line=line, chunk=chunk)
        if chunk is None:
            self.maintenance.begin_if_due(spark, lambda: [self._place.path])

    def discard(self, spark: SparkSession, epoch_id: int) -> None:  # noqa: ARG002
        """Remove a staged epoch."""
        _, written = self._written.get(epoch_id, ("", ()))
        self._log.discard(self._kind, written)

    def _maintain(self, spark: SparkSession, path: str) -> None:  # noqa: ARG002
        self._compaction.run(self._policy.keep_s)
