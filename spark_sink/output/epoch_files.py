"""Epochs as files: staged, then made visible in the way of the place where they stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.maintenance import (
    NO_MAINTENANCE,
    Maintenance,
    MaintenancePolicy,
)
from slackwater.spark_sink.output.small_files import local_path
from slackwater.spark_sink.output.staging import Staging
from slackwater.spark_sink.sink import EpochSummary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from slackwater.spark_sink.output.epoch_compaction import EpochCompaction


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
    """The epochs of one output, each with files of its own."""

    @property
    def is_one_commit(self) -> bool:
        """Whether one commit decides on all of an epoch. After take_over()."""

    def take_over(self, spark: SparkSession, logged: Callable[[], datetime | None]) -> LatestEpoch:
        """Let no former owner publish any more; return the latest epoch.

        Args:
            spark: the session.
            logged: returns the watermark log's last low watermark; None without one.
        """

    def for_scan(self) -> EpochFiles:
        """Return the same for an initial scan, whose reads are filtered."""

    def task_writer(self, spark: SparkSession, schema: StructType) -> str | None:
        """Return how tasks write epochs; see TaskWriting."""

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """Write an epoch where no reader sees it, and return what it held."""

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


class EpochFolders:
    """Epochs become visible by a rename; see EpochFiles.

    Args:
        staging: writes them.
        policy: when epochs are compacted, on a local disk.
    """

    is_one_commit = True

    def __init__(self, staging: Staging, policy: MaintenancePolicy = NO_MAINTENANCE) -> None:
        self._staging = staging
        self._policy = policy
        self._maintenance = Maintenance(self._maintain, policy.every_s)
        self._compaction: EpochCompaction | None = None

    def take_over(
        self,
        spark: SparkSession,
        logged: Callable[[], datetime | None],  # noqa: ARG002
    ) -> LatestEpoch:
        """Remove what former owners have staged; see EpochFiles.

        Raises:
            FileSystemError: see EpochDirectory.require_atomic().
        """
        directory = self._staging.epoch_directory(spark)
        directory.require_atomic()
        self._staging.take_over(spark)
        return LatestEpoch(directory.last_low_watermark())

    def for_scan(self) -> EpochFolders:
        """Return the same for an initial scan; see EpochFiles."""
        return EpochFolders(self._staging.for_scan())

    def task_writer(self, spark: SparkSession, schema: StructType) -> str | None:
        """Return how tasks write epochs on a local disk; see TaskWriting."""
        return self._staging.task_writer(spark, schema)

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """Write an epoch below a folder that readers skip; see EpochFiles."""
        return self._staging.stage(epoch, epoch_id)

    def publish(
        self,
        spark: SparkSession,
        epoch_id: int,
        low_watermark: datetime,
        *,
        line: str | None = None,  # noqa: ARG002
        chunk: int | None = None,
    ) -> None:
        """Rename an epoch's folder; see EpochFiles."""
        self._staging.require_whole(spark, epoch_id)
        directory = self._staging.epoch_directory(spark, epoch_id)
        directory.publish(epoch_id, low_watermark, chunk=chunk)
        if chunk is None:
            self._maintenance.begin_if_due(spark, lambda: [self._staging.path])

    def _maintain(self, spark: SparkSession, path: str) -> None:
        # With Arrow, which the settings do without.
        from slackwater.spark_sink.output.epoch_compaction import EpochCompaction

        if self._compaction is None:
            root = local_path(spark, path)
            if root is None:
                raise PublishError(f"{path} is not on a local disk: its epochs are not compacted.")
            self._compaction = EpochCompaction(root, self._staging.owner)
        self._compaction.run(self._policy.keep_s)

    def discard(self, spark: SparkSession, epoch_id: int) -> None:
        """Remove a staged epoch."""
        self._staging.discard(spark, epoch_id)
