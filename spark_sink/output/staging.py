"""Staged epochs: rows that readers of the output do not see, until the epoch is audited.

Tasks write them as files in Parquet, below a folder of one owner. Its successor removes them: a
former owner that wakes up finds nothing that it could publish.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.errors import missing_files
from slackwater.spark_sink.formats import PARQUET
from slackwater.spark_sink.output.epoch_names import STAGING_FOLDER
from slackwater.spark_sink.output.preparation import Preparation
from slackwater.spark_sink.sink import EpochSummary

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from slackwater.spark_sink.output.epoch_place import EpochPlace
    from slackwater.spark_sink.output.file_reader import FileReader
    from slackwater.spark_sink.output.file_writer import FileWriter
    from slackwater.spark_sink.output.task_writer import HandedOn

_EPOCHS: Final = "epochs"
_CHUNKS: Final = "chunks"


@dataclass(frozen=True, slots=True)
class _StagedEpoch:
    """An epoch that was staged.

    Attributes:
        owner: the process that staged it.
        handed: its counts and files.
        reader: reads them in other tasks.
    """

    owner: str
    handed: HandedOn
    reader: FileReader


class Owner:
    """The owner of staged files: a process since it last took its pipeline over.

    Attributes:
        name: a new one after each take-over: a thread from before it may still be at work, if this
            process had lost the pipeline and got it back.
        is_alone: whether others' staged files were removed.
    """

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self.is_alone = False


class Staging:
    """The staging of epochs by one owner.

    Args:
        place: of the output.
        preparation: the filter and the counts of records; None writes all records.
        epochs: the staging of epochs, if this one is a scan's.
        holds_small: in an object store the driver holds small files, so that a small epoch takes no
            request. It is for outputs that refuse a former owner themselves: a successor can't
            remove files in memory.

    Attributes:
        place: as given.
    """

    def __init__(
        self,
        place: EpochPlace,
        preparation: Preparation | None = None,
        epochs: Staging | None = None,
        *,
        holds_small: bool = False,
    ) -> None:
        self.place = place
        self._preparation = preparation or Preparation()
        self._holds_small = holds_small
        self._owner: Owner = epochs._owner if epochs else Owner()
        self._kind = _CHUNKS if epochs else _EPOCHS
        # The one that was staged last.
        self._staged: dict[int, _StagedEpoch] = {}
        # Kept, because inferring it from the staged files would take a Spark job.
        self._schema: StructType | None = None

    def for_scan(self) -> Staging:
        """Return a staging for an initial scan: unfiltered, as the scan's reads are filtered."""
        unfiltered = self._preparation.unfiltered()
        return Staging(self.place, unfiltered, self, holds_small=self._holds_small)

    def task_writer(self, spark: SparkSession, schema: StructType) -> str:  # noqa: ARG002
        """Return how tasks write epochs.

        Args:
            spark: a session.
            schema: of the records.
        """
        # With Arrow, which the settings do without.
        from slackwater.spark_sink.output.task_writer import TaskWriter

        self._schema = self._preparation.schema_of(schema)
        return TaskWriter(self._writer(self._kind), self._preparation).to_text()

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """Have tasks write one epoch, or take the files that they wrote; return its summary."""
        from slackwater.spark_sink.output.file_reader import FileReader
        from slackwater.spark_sink.output.task_writer import TaskWriter, handed_on, is_handed_on

        self._be_alone(epoch.sparkSession)
        owner, writer = self._owner.name, self._writer(self._kind)
        if not is_handed_on(epoch):
            self._schema = self._preparation.schema_of(epoch.schema)
        handed = handed_on(epoch, TaskWriter(writer, self._preparation))
        self._staged = {epoch_id: _StagedEpoch(owner, handed, FileReader.of(writer))}
        return handed.summary

    def take_over(self, spark: SparkSession) -> None:
        """Remove the staged files of former owners, earlier ones of this process among them.

        Raises:
            FileSystemError, ObjectStoreError: see EpochPlace.prepare().
            PublishError: the place refuses or fails.
        """
        self._owner.name, self._owner.is_alone = uuid.uuid4().hex, False
        self._be_alone(spark)

    def _be_alone(self, spark: SparkSession) -> None:
        """Remove others' staged files, unless that was done."""
        if not self._owner.is_alone:
            with self.place.translating():
                self.place.prepare(spark)
                own = f"{STAGING_FOLDER}/{self._owner.name}"
                # Tasks may have begun.
                names = (name for name in self.place.staged() if not name.startswith(own))
                self.place.remove(list(names))
            self._owner.is_alone = True

    def read_staged(
        self, spark: SparkSession, epoch_id: int, columns: Sequence[str] | None = None
    ) -> DataFrame:
        """Return the rows of a staged epoch; a query fails if some are not there any more.

        A successor may be removing them. Merging a part of the epoch would keep the successor from
        merging all of it, so a missing file fails the query.

        Args:
            spark: the session.
            epoch_id: as it was staged.
            columns: of the rows; None for all.
        """
        from pyspark.sql.types import StructType

        assert self._schema is not None  # noqa: S101 - set by stage()
        staged, schema = self._staged[epoch_id], self._schema
        if columns is not None:
            schema = StructType([schema[name] for name in columns])
        return staged.reader.frame(spark, staged.handed.files, schema)

    def read_small(
        self, epoch_id: int, columns: Sequence[str] | None, max_bytes: int
    ) -> pa.Table | None:
        """Return columns of a staged epoch as Arrow, without a job of Spark's.

        Args:
            epoch_id: as it was staged.
            columns: their names; None for all.
            max_bytes: of its files, before they were compressed.

        Returns:
            None if its files are larger, or there are none.

        Raises:
            PublishError: not all of it is there any more.
        """
        staged = self._staged[epoch_id]
        files = staged.handed.files
        if not files or sum(file.size for file in files) > max_bytes:
            return None
        with self.place.translating():
            contents = [self.place.content(staged.owner, self._kind, file) for file in files]
        records = _read_small(contents, columns, max_bytes)
        written = staged.handed.summary.written
        if records is not None and records.num_rows != written:
            raise missing_files(
                f"{self.place.path} has {records.num_rows} of the {written} rows that were staged."
            )
        return records

    def require_staged(self, epoch_id: int) -> None:
        """Check that no successor has removed a staged epoch, of which files were written.

        A successor removes it before it looks which tables there are.

        Raises:
            PublishError: one has.
        """
        own = f"{STAGING_FOLDER}/{self._staged[epoch_id].owner}"
        with self.place.translating():
            if not any(name.startswith(own) for name in self.place.staged()):
                raise missing_files(f"{self.place.path}: what was staged is not there.")

    def discard(self, epoch_id: int) -> None:
        """Remove a staged epoch, and the files of failed attempts of its tasks."""
        staged = self._staged.pop(epoch_id, None)
        if staged is None:
            return
        if any(file.staged for file in staged.handed.files):
            with self.place.translating():
                self.place.discard(staged.owner, self._kind, ())

    def distinct(self, epoch_id: int, column: str) -> frozenset[str]:
        """Return the values of a column in the records of an epoch, before the filter."""
        return self._staged[epoch_id].handed.distinct[column]

    def message_bytes(self, epoch_id: int) -> int | None:
        """Return an estimate of the bytes of an epoch's messages; see HandedOn."""
        return self._staged[epoch_id].handed.message_bytes

    def _writer(self, kind: str) -> FileWriter:
        """Return the writer of this owner's tasks, under its current name."""
        writer = self.place.writer(self._owner.name, kind, PARQUET, ())
        return replace(writer, hands_on=self._holds_small)


class StagedByTasks:
    """A sink that stages epochs, which the tasks that read may write; see TaskWriting.

    Attributes:
        _staging, _scanned: stage epochs, and the chunks of an initial scan.
    """

    _staging: Staging
    _scanned: Staging

    def task_writer(
        self, spark: SparkSession, schema: StructType, *, is_scan: bool = False
    ) -> str | None:
        """Return the text of the tasks' writer; see TaskWriting."""
        return (self._scanned if is_scan else self._staging).task_writer(spark, schema)

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """Stage an epoch beside the output; see Sink."""
        return self._staging.stage(epoch, epoch_id)


def _read_small(
    contents: Sequence[bytes], columns: Sequence[str] | None, max_bytes: int
) -> pa.Table | None:
    """Return columns of Parquet files; None if they have more bytes, before compression."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = [
        pq.ParquetFile(pa.BufferReader(content), coerce_int96_timestamp_unit="us")
        for content in contents
    ]
    if sum(_uncompressed_size(file.metadata) for file in files) > max_bytes:
        return None
    names = None if columns is None else list(columns)
    return pa.concat_tables(file.read(names) for file in files)


def _uncompressed_size(footer: pq.FileMetaData) -> int:
    return sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
