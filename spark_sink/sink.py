"""The protocol of a sink: an epoch is staged, then audited by the pipeline, then made visible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from slackwater.spark_sink.sql.columns import Column
    from slackwater.spark_sink.sql.table_shape import TableShape


@dataclass(frozen=True, slots=True)
class EpochSummary:
    """Counts of an epoch's records.

    Attributes:
        records: data change records that were read.
        written: those that pass the filter.
        transactions: transactions that the records belong to.
        commit_timestamp_min, commit_timestamp_max: UTC; None in an empty epoch.
    """

    records: int
    written: int
    transactions: int
    commit_timestamp_min: datetime | None
    commit_timestamp_max: datetime | None


@dataclass(frozen=True, slots=True)
class OutputPosition:
    """The position of an output; low watermarks in whole microseconds, UTC.

    Attributes:
        complete: every epoch through this low watermark is visible, and so is the initial scan;
            None if nothing is complete.
        begun: the low watermark of a later epoch of which a part is visible; None if there is none.
        pipeline: the pipeline that wrote the last line of the watermark log; None without one.
        has_tables: whether there are tables of the pipeline; None for an output of another kind.
        committed: the low watermark of the last commit, of all of an epoch or of its changes of a
            table; None without one, or if none is known. An epoch without rows may be complete
            without one.
    """

    complete: datetime | None
    begun: datetime | None
    pipeline: str | None
    has_tables: bool | None = None
    committed: datetime | None = None


@dataclass(frozen=True, slots=True)
class RecreatedTables:
    """The tables and columns that were dropped and made again, under the same name.

    Changes up to the times named here belong to the former ones, whose rows and values are gone.

    Attributes:
        tables: a time before the present table got its name, by the full name.
        columns: the same for a column of a table that is not new, by table and column.
    """

    tables: Mapping[str, datetime] = field(default_factory=dict)
    columns: Mapping[tuple[str, str], datetime] = field(default_factory=dict)


class Sink(Protocol):
    """A writer of epochs: each exactly once, however often replayed, unless its class differs."""

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """Write one epoch where no reader sees it yet.

        Args:
            epoch: rows of the contract's columns.
            epoch_id: Spark's number of the micro-batch.
        """

    def publish(
        self, spark: SparkSession, epoch_id: int, summary: EpochSummary, low_watermark: datetime
    ) -> None:
        """Make a staged epoch visible, unless it was visible before a replay.

        Args:
            spark: the session.
            epoch_id: as it was staged.
            summary: its counts; an empty epoch leaves only its low watermark.
            low_watermark: the epoch's, in whole microseconds.

        Raises:
            SinkError: the destination refused, or another process wrote at the same time.
        """

    def begin_scan(self, spark: SparkSession, tables: Mapping[str, Sequence[Column]]) -> None:
        """Prepare for the rows of an initial scan; repeating it changes nothing.

        Args:
            spark: the session.
            tables: the columns of each table, by its full name.
        """

    def add_scanned(self, rows: DataFrame, chunk: int, low_watermark: datetime) -> int:
        """Write a chunk of an initial scan once, however often it is tried; return its row count.

        Args:
            rows: of the contract's columns, one for each row of a table.
            chunk: its number.
            low_watermark: at which the rows are read.
        """

    def end_scan(self, spark: SparkSession, records: int, low_watermark: datetime) -> None:
        """Finish an initial scan after all its chunks.

        Args:
            spark: the session.
            records: the number of rows of all chunks.
            low_watermark: at which they were read.
        """

    def position(self, spark: SparkSession) -> OutputPosition | None:
        """Return the position of the output; None if the destination can't tell.

        Only the pipeline's owner may call it: staged files of former owners are removed first, so
        that a former owner that wakes up makes nothing visible after this.
        """


@dataclass(frozen=True, slots=True)
class Chunk:
    """All rows of a table in a range of its keys, as they stood at a low watermark.

    Attributes:
        table: the table's full name.
        columns: the table's columns at that time, in its order.
        key: the names of the primary key's columns, in the key's order.
        descending: those of them that are in descending order.
        rows: the values as Spanner's JSON has them, by column, in the key's order.
        after: the key behind which the range begins; None for the table's beginning.
        through: the key at which it ends, inclusive; None for the table's end.
        low_watermark: in whole microseconds. The output has all changes up to it, and none later.
    """

    table: str
    columns: Sequence[Column]
    key: Sequence[str]
    descending: frozenset[str]
    rows: Sequence[Mapping[str, Any]]
    after: Sequence[Any] | None
    through: Sequence[Any] | None
    low_watermark: datetime


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """The result of a chunk.

    Attributes:
        is_done: the output has its rows; otherwise the same range has to be read again after the
            next epoch.
        corrected: the number of rows that differed in the output.
    """

    is_done: bool
    corrected: int


@runtime_checkable
class Rescannable(Protocol):
    """A sink that can be given a table's rows again while the changes go on."""

    def warm_up(self, spark: SparkSession, table: str) -> None:
        """Do the slow part of the first take_chunk() early, on another thread than the epochs."""

    def take_chunk(self, spark: SparkSession, chunk: Chunk) -> ChunkResult:
        """Take a chunk between two epochs: the one that ends at its low watermark, and the next.

        Only the pipeline's owner may call it. Nothing that a former owner takes becomes visible
        once its successor has published an epoch that changes the table.
        """

    def leave_unpublished(self, tables: frozenset[str]) -> None:
        """Publish no low watermark of these tables: they are not complete yet."""

    def publish_complete(self, spark: SparkSession, table: str, low_watermark: datetime) -> None:
        """Publish the low watermark of a table that is complete now, between two epochs.

        Args:
            spark: the session.
            table: one that leave_unpublished() named.
            low_watermark: that of the chunk with which it became complete.
        """


@runtime_checkable
class TaskWriting(Protocol):
    """A sink whose files can be written by the tasks that read."""

    def task_writer(
        self, spark: SparkSession, schema: StructType, *, is_scan: bool = False
    ) -> str | None:
        """Return the text of a TaskWriter, with which tasks write epochs; None if Spark has to.

        The rows that tasks hand on then replace the records in stage() and add_scanned(). Only the
        pipeline's owner may call it.

        Args:
            spark: a session.
            schema: of the records.
            is_scan: whether it is for an initial scan.
        """


@runtime_checkable
class KeepsPositions(Protocol):
    """A sink whose commits name the positions from which the source is read on."""

    def keep_positions(self, plan: str, text: str) -> None:
        """Have the next epoch name these positions when it is published, if it has rows.

        Args:
            plan: whose positions they are; no other plan has this name.
            text: the positions.
        """

    def last_positions(self) -> str | None:
        """Return the positions of the last commit, after position(); None if they are gone."""


@runtime_checkable
class CurrentRows(Protocol):
    """A sink that keeps the rows that its tables have, not only their changes."""

    def drop_recreated(self, recreated: RecreatedTables) -> None:
        """Have the next published epoch drop the rows and values of former tables and columns."""


@runtime_checkable
class NeedsShapes(Protocol):
    """A sink whose messages show what data change records lack, as the order of a key's columns."""

    def use_shapes(self, read: Callable[[datetime], Mapping[str, TableShape]]) -> None:
        """Set from where the sink learns the tables' shapes, before it gets anything to write.

        Args:
            read: returns the shape of each table by its full name, as of a time.
        """
