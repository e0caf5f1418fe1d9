"""What a sink is: an epoch is staged, audited by others, and then made visible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.sql.columns import Column


@dataclass(frozen=True, slots=True)
class EpochSummary:
    """What an epoch held, or an initial scan.

    Attributes:
        records: data change records that were read.
        written: those of them that the filter keeps.
        transactions: transactions.
        commit_timestamp_min, commit_timestamp_max: UTC; None in an empty epoch.
    """

    records: int
    written: int
    transactions: int
    commit_timestamp_min: datetime | None
    commit_timestamp_max: datetime | None


class Sink(Protocol):
    """Writes epochs, each exactly once however often it is replayed."""

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
            summary: what it holds; an empty epoch leaves nothing but its low watermark.
            low_watermark: the epoch's, in whole microseconds.

        Raises:
            SinkError: what is written to refused, or another process wrote at the same time.
        """

    def begin_scan(self, spark: SparkSession, tables: Mapping[str, Sequence[Column]]) -> None:
        """Make room for the rows of an initial scan; doing it again changes nothing.

        Args:
            spark: the session.
            tables: the columns of each table, by its full name.
        """

    def add_scanned(self, rows: DataFrame, chunk: int, low_watermark: datetime) -> int:
        """Write a chunk of an initial scan, once however often it is tried; how many rows it has.

        Args:
            rows: of the contract's columns, one for each row of a table.
            chunk: its number.
            low_watermark: at which the rows are read.
        """

    def end_scan(self, spark: SparkSession, records: int, low_watermark: datetime) -> None:
        """All chunks were added.

        Args:
            spark: the session.
            records: all rows of the scan.
            low_watermark: at which they were read.
        """

    def last_low_watermark(self, spark: SparkSession) -> datetime | None:
        """That of the newest visible epoch, in whole microseconds; None where there is none."""
