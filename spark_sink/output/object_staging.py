"""Epochs on their way into an object store: small ones in memory, files of large ones staged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from slackwater.spark_sink.formats import JSON, ORC, PARQUET, TEXT, write_options
from slackwater.spark_sink.java import map_in_arrow
from slackwater.spark_sink.output.epoch_files import LatestEpoch
from slackwater.spark_sink.output.epoch_objects import EpochObjects
from slackwater.spark_sink.output.file_writer import (
    RESULT,
    FileWriter,
    WrittenFile,
    written_files,
)
from slackwater.spark_sink.output.maintenance import (
    NO_MAINTENANCE,
    Maintenance,
    MaintenancePolicy,
)
from slackwater.spark_sink.output.object_compaction import ObjectCompaction
from slackwater.spark_sink.output.object_store import open_object_store
from slackwater.spark_sink.output.preparation import Preparation
from slackwater.spark_sink.output.task_writer import TaskWriter, handed_on, is_handed_on
from slackwater.spark_sink.sink import EpochSummary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class ObjectStaging:
    """Epochs become visible by a commit; see EpochFiles.

    Args:
        path: the output's URL.
        options: see open_object_store().
        file_format: parquet, orc or json, of which text has the lines.
        preparation: makes what is written.
        partition_by: columns that name the folders of what is written.
        objects: the output's epochs; None to open it.
        policy: when epochs are compacted.
    """

    is_one_commit = True

    def __init__(
        self,
        path: str,
        options: Mapping[str, str],
        file_format: str,
        preparation: Preparation,
        partition_by: Sequence[str] = (),
        *,
        objects: EpochObjects | None = None,
        policy: MaintenancePolicy = NO_MAINTENANCE,
    ) -> None:
        self._path = path
        self._options = dict(options)
        self._format = file_format
        self._preparation = preparation
        self._partition_by = tuple(partition_by)
        # A file of records in JSON is written as lines, too, and named as Spark names it.
        is_text = file_format in (JSON, TEXT)
        self._objects = objects or EpochObjects(
            open_object_store(path, options),
            path,
            TEXT if is_text else file_format,
            "txt" if file_format == TEXT else file_format,
        )
        self._written: dict[int, tuple[str, Sequence[WrittenFile]]] = {}
        self._policy = policy
        self._maintenance = Maintenance(self._maintain, policy.every_s)

    def take_over(
        self,
        spark: SparkSession,  # noqa: ARG002
        logged: Callable[[], datetime | None],
    ) -> LatestEpoch:
        """Add a commit of this process; see EpochFiles."""
        return self._objects.take_over(logged)

    def for_scan(self) -> ObjectStaging:
        """Return the same for an initial scan; see EpochFiles."""
        return ObjectStaging(
            self._path,
            self._options,
            self._format,
            self._preparation.unfiltered(),
            self._partition_by,
            objects=self._objects,
        )

    def task_writer(self, spark: SparkSession, schema: StructType) -> str | None:  # noqa: ARG002
        """Return how tasks write epochs; see TaskWriting."""
        if self._format not in (PARQUET, ORC) or not self._preparation.writes_records:
            return None
        files = self._writer(self._objects.staging_of_tasks, self._format)
        return TaskWriter.of(self._preparation, files).to_text()

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """Write an epoch's files, or take those of its tasks; see EpochFiles."""
        owner = self._objects.owner
        if is_handed_on(epoch):
            handed = handed_on(epoch)
            self._written = {epoch_id: (owner, handed.files)}
            return handed.counts.summary
        prepared = self._preparation.prepare(epoch)
        frame, file_format = prepared.frame, self._format
        if file_format == JSON:
            frame, file_format = self._lines(frame), TEXT
        elif file_format == TEXT:
            frame = frame.select("value", *self._partition_by)
        writer = self._writer(self._objects.staging(epoch_id), file_format)
        result = map_in_arrow(frame, writer.write, RESULT).toArrow()
        self._written = {epoch_id: (owner, written_files(result))}
        return prepared.counts().summary

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
        self._objects.publish(epoch_id, written, low_watermark, owner=owner, line=line, chunk=chunk)
        if chunk is None:
            self._maintenance.begin_if_due(spark, lambda: [self._path])

    def _maintain(self, spark: SparkSession, path: str) -> None:  # noqa: ARG002
        store = open_object_store(path, self._options)
        ObjectCompaction(store, path, self._objects).run(self._policy.keep_s)

    def discard(self, spark: SparkSession, epoch_id: int) -> None:  # noqa: ARG002
        """Remove a staged epoch."""
        _, written = self._written.get(epoch_id, ("", []))
        self._objects.discard(epoch_id, written)

    def _writer(self, staging: str, file_format: str) -> FileWriter:
        """Return what writes files, and stages them below a folder if they are large."""
        return FileWriter(self._path, self._options, f"{staging}/", file_format, self._partition_by)

    def _lines(self, frame: DataFrame) -> DataFrame:
        """Return the rows as Spark's JSON writer has them, in a column."""
        from pyspark.sql import functions as F

        columns = [name for name in frame.columns if name not in self._partition_by]
        line = F.to_json(F.struct(*columns), dict(write_options(JSON)))
        return frame.select(line.alias("value"), *self._partition_by)
