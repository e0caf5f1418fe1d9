"""Staged epochs: files that readers of the output ignore until the epoch is audited."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.formats import PARQUET, write_options
from slackwater.spark_sink.output.epoch_directory import EpochDirectory, TaskFile
from slackwater.spark_sink.output.preparation import Counts, Preparation
from slackwater.spark_sink.output.small_files import local_path
from slackwater.spark_sink.sink import EpochSummary

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Whatever the session's settings say: a file that a successor has removed is not one without rows.
ALL_FILES: Final = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}


@dataclass(frozen=True, slots=True)
class _StagedEpoch:
    """An epoch that was staged.

    Attributes:
        owner: the name of the staging directory.
        counts: what it held.
        files: how many files tasks wrote; None if Spark wrote it.
    """

    owner: str
    counts: Counts
    files: int | None


class Owner:
    """Who stages: a process since it last took its pipeline over.

    Attributes:
        name: of the staging directory. Another one after each take-over: a thread from before it
            may still be at work, if this process had lost the pipeline and got it back.
        is_alone: whether what others have staged was removed.
    """

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self.is_alone = False


class Staging:
    """Writes epochs to the staging directory of one owner.

    Args:
        path: the output's directory, a path or URL that Spark accepts.
        preparation: makes what is written; None writes all records as they are.
        owner: this process, if it has another staging of the same output.
    """

    def __init__(
        self,
        path: str,
        preparation: Preparation | None = None,
        owner: Owner | None = None,
    ) -> None:
        self.path = path
        self._preparation = preparation or Preparation()
        self._owner = owner or Owner()
        # The one that was staged last.
        self._staged: dict[int, _StagedEpoch] = {}
        # Kept, because inferring it from the staged files would take a Spark job.
        self._schema: StructType | None = None

    def for_scan(self) -> Staging:
        """Return a staging for an initial scan: unfiltered, as the scan's reads are filtered."""
        unfiltered = self._preparation.unfiltered()
        return Staging(self.path, unfiltered, self._owner)

    @property
    def owner(self) -> str:
        """The name of this process's staging directory, as of its last take-over."""
        return self._owner.name

    def task_writer(self, spark: SparkSession, schema: StructType) -> str | None:
        """Return how tasks write epochs; None if Spark has to write them.

        Args:
            spark: a session.
            schema: of the records.
        """
        folder = self.epoch_directory(spark).of_tasks()
        if folder is None or not self._preparation.writes_records:
            return None
        from slackwater.spark_sink.output.file_writer import FileWriter
        from slackwater.spark_sink.output.task_writer import TaskWriter

        self._schema = self._preparation.schema_of(schema)
        files = FileWriter(folder, {}, "part-", PARQUET, suffix=f".{PARQUET}")
        return TaskWriter.of(self._preparation, files).to_text()

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """Write one epoch, or take what tasks have written, and return what it held."""
        self._be_alone(epoch.sparkSession)
        owner = self.owner
        directory = EpochDirectory(epoch.sparkSession, self.path, owner)
        # With Arrow, which the settings do without.
        from slackwater.spark_sink.output.task_writer import handed_on, is_handed_on

        if is_handed_on(epoch):
            handed = handed_on(epoch)
            directory.take_files(
                epoch_id,
                [TaskFile(file.staged or "", file.size) for file in handed.files],
            )
            return self._noted(epoch_id, handed.counts, owner, len(handed.files))
        return self._noted(epoch_id, self._write(epoch, epoch_id, directory), owner)

    def _noted(
        self, epoch_id: int, counts: Counts, owner: str, files: int | None = None
    ) -> EpochSummary:
        """Note a staged epoch, and forget others."""
        self._staged = {epoch_id: _StagedEpoch(owner, counts, files)}
        return counts.summary

    def _write(self, epoch: DataFrame, epoch_id: int, directory: EpochDirectory) -> Counts:
        """Have Spark write an epoch's records."""
        prepared = self._preparation.prepare(epoch)
        if self._schema is None:
            self._schema = prepared.frame.schema
        writer = prepared.frame.write.mode("overwrite")
        writer.options(**write_options(PARQUET)).parquet(directory.staging(epoch_id))
        return prepared.counts()

    def take_over(self, spark: SparkSession) -> None:
        """Remove what former owners have staged, this process before it among them.

        What a frozen one had staged it can't make visible then.
        """
        self._owner.name, self._owner.is_alone = uuid.uuid4().hex, False
        self._be_alone(spark)

    def _be_alone(self, spark: SparkSession) -> None:
        """Remove what others have staged, unless that was done."""
        if not self._owner.is_alone:
            self.epoch_directory(spark).remove_other_staging()
            self._owner.is_alone = True

    def read_staged(self, spark: SparkSession, epoch_id: int) -> DataFrame:
        """Return the rows of a staged epoch, of which none is missing.

        A successor may be removing it. Whoever merges a part keeps the successor from merging all.

        Raises:
            PublishError: not all of it is there any more.
        """
        assert self._schema is not None  # noqa: S101 - set by stage()
        folder = self.epoch_directory(spark, epoch_id).staging(epoch_id)
        # Lists the files. One that is gone when it is read fails the query.
        frame = spark.read.schema(self._schema).options(**ALL_FILES).parquet(folder)
        staged = self._staged[epoch_id]
        if staged.files is not None:
            require_all(folder, "files", len(frame.inputFiles()), staged.files)
        else:
            # Of an epoch that was removed while Spark wrote it, later files are there.
            require_all(folder, "rows", frame.count(), staged.counts.rows)
        return frame

    def read_small(
        self, spark: SparkSession, epoch_id: int, columns: Sequence[str], max_bytes: int
    ) -> pa.Table | None:
        """Return columns of a staged epoch in Parquet as Arrow, without a job of Spark's.

        Args:
            spark: the session.
            epoch_id: as it was staged.
            columns: their names.
            max_bytes: of its files, before they were compressed.

        Returns:
            None if its files are larger, or are not on a local disk.

        Raises:
            PublishError: not all of it is there any more.
        """
        folder = local_path(spark, self.epoch_directory(spark, epoch_id).staging(epoch_id))
        if folder is None:
            return None
        files = sorted(folder.glob("*.parquet"))
        records = read_small_files(files, columns, max_bytes) if files else None
        if records is not None or not files:
            count = 0 if records is None else records.num_rows
            require_all(str(folder), "rows", count, self._staged[epoch_id].counts.rows)
        return records

    def discard(self, spark: SparkSession, epoch_id: int) -> None:
        """Remove a staged epoch, if there is one."""
        self.epoch_directory(spark, epoch_id).discard(epoch_id)

    def is_small(self, spark: SparkSession, epoch_id: int, max_bytes: int) -> bool:
        """Return whether a staged epoch is on a local disk, and its files have no more bytes."""
        folder = local_path(spark, self.epoch_directory(spark, epoch_id).staging(epoch_id))
        if folder is None:
            return False
        return sum(file.stat().st_size for file in folder.rglob("*.*")) <= max_bytes

    def distinct(self, epoch_id: int, column: str) -> frozenset[str]:
        """Return the values of a column in the records of an epoch, before the filter."""
        return self._staged[epoch_id].counts.distinct[column]

    def message_bytes(self, epoch_id: int) -> int | None:
        """Return an estimate of what the messages of an epoch take; see Counts."""
        return self._staged[epoch_id].counts.message_bytes

    def epoch_directory(self, spark: SparkSession, epoch_id: int | None = None) -> EpochDirectory:
        """Return the output's directory, which contains the staging directory.

        Args:
            spark: a session.
            epoch_id: of the epoch that was staged last: the directory is that of its owner.
        """
        staged = None if epoch_id is None else self._staged.get(epoch_id)
        return EpochDirectory(spark, self.path, staged.owner if staged else self.owner)


class StagedByTasks:
    """A sink that stages in folders, which the tasks that read may write; see TaskWriting.

    Attributes:
        _staging, _scanned: write epochs, and the chunks of an initial scan.
    """

    _staging: Staging
    _scanned: Staging

    def task_writer(
        self, spark: SparkSession, schema: StructType, *, is_scan: bool = False
    ) -> str | None:
        """Return how tasks write epochs; see TaskWriting."""
        return (self._scanned if is_scan else self._staging).task_writer(spark, schema)


def require_all(place: str, things: str, present: int, staged: int) -> None:
    """Check that what was staged is there.

    Raises:
        PublishError: it is not.
    """
    if present != staged:
        raise PublishError(
            f"{place} has {present} of the {staged} {things} that were staged.",
            "Another process may have taken the pipeline over; the epoch is read again",
        )


def read_small_files(
    sources: Sequence[Path | BinaryIO], columns: Sequence[str], max_bytes: int
) -> pa.Table | None:
    """Return columns of Parquet files; None if they have more bytes, before compression."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = [pq.ParquetFile(source, coerce_int96_timestamp_unit="us") for source in sources]
    if sum(_uncompressed_size(file.metadata) for file in files) > max_bytes:
        return None
    return pa.concat_tables(file.read(list(columns)) for file in files)


def _uncompressed_size(footer: pq.FileMetaData) -> int:
    return sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
