"""Epochs of a changelog: staged, then made visible by a commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from slackwater.spark_sink.output.maintenance import Maintenance
from slackwater.spark_sink.sink import EpochSummary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class LatestEpoch:
    """The latest epoch that is visible.

    Attributes:
        low_watermark: in whole microseconds, UTC; None without an epoch.
        line: of the watermark log, which may lack it; None if it is not known.
    """

    low_watermark: datetime | None = None
    line: str | None = None


class EpochFiles(Protocol):
    """The epochs of one output, each with files of its own.

    Attributes:
        maintenance: of the output.
    """

    maintenance: Maintenance

    def take_over(self, spark: SparkSession, logged: Callable[[], datetime | None]) -> LatestEpoch:
        """Let no former owner publish any more; return the latest epoch.

        Args:
            spark: the session.
            logged: returns the watermark log's last low watermark; None without one.
        """

    def for_scan(self) -> EpochFiles:
        """Return the same for an initial scan, whose reads are filtered."""

    def task_writer(self, spark: SparkSession, schema: StructType) -> str | None:
        """Return the text of the tasks' writer; see TaskWriting."""

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """Write an epoch where no reader sees it, and return its summary."""

    def publish(
        self,
        spark: SparkSession,
        epoch_id: int,
        low_watermark: datetime,
        *,
        line: str | None = None,
        chunk: int | None = None,
    ) -> None:
        """Make a staged epoch, or a chunk of an initial scan, visible, unless it already is.

        Args:
            spark: the session.
            epoch_id: as it was staged.
            low_watermark: the epoch's, or the scan's.
            line: of the watermark log, to which it is added afterwards; None for a chunk.
            chunk: its number; None for an epoch.
        """

    def discard(self, spark: SparkSession, epoch_id: int) -> None:
        """Remove a staged epoch."""
