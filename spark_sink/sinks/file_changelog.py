"""A changelog in files: each epoch has its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.epoch_files import EpochFiles
from slackwater.spark_sink.output.position_files import PositionFiles
from slackwater.spark_sink.output.watermark_lines import parse_lines
from slackwater.spark_sink.output.watermark_log import LoggedScans, WatermarkLog, output_position
from slackwater.spark_sink.sink import EpochSummary, OutputPosition
from slackwater.spark_sink.sql.columns import Column
from slackwater.timestamp import datetime_to_rfc3339

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class FileChangelog(LoggedScans):
    """A sink that writes each epoch as files.

    Args:
        files: writes them and makes them visible.
        watermarks: the output's.
        positions: of the source, beside the output.
    """

    def __init__(
        self, files: EpochFiles, watermarks: WatermarkLog, positions: PositionFiles
    ) -> None:
        self._files = files
        self.maintenance = files.maintenance
        self._scanned = files.for_scan()
        self._watermarks = watermarks
        self._positions = positions
        # Of the last commit: the name of its positions. Of the next one: its plan and positions.
        self._committed: str | None = None
        self._next: tuple[str, str] | None = None

    def position(self, spark: SparkSession) -> OutputPosition:
        """Return the later of the log's last line and the last epoch; see Sink.

        Raises:
            PublishError: the output was restored in parts, without epochs that the log has.
        """
        latest = self._files.take_over(spark, self._watermarks.last_low_watermark)
        if latest.line is not None:
            # Its owner may have died before it added the line.
            [line] = parse_lines(latest.line)
            self._watermarks.add_line(line)
            self._committed = line.fields.get("positions")
            self._require_epochs(latest.low_watermark)
        logged = self._watermarks.last()
        position = output_position(logged, latest.low_watermark, is_one_commit=True)
        return replace(position, committed=latest.low_watermark)

    def _require_epochs(self, last: datetime | None) -> None:
        """Check that no epoch with records in the log is later than the last one."""
        if last is not None and self._watermarks.has_records_after(last):
            raise PublishError(
                f"{self._watermarks.path}: the watermark log has epochs with records after"
                f" {datetime_to_rfc3339(last)}, the last one in the output.",
                "They were restored as of different times: restore the whole path as of one time."
                " Or another process has taken the pipeline over; this is tried again",
            )

    def task_writer(
        self, spark: SparkSession, schema: StructType, *, is_scan: bool = False
    ) -> str | None:
        """Return the text of the tasks' writer; see TaskWriting."""
        return (self._scanned if is_scan else self._files).task_writer(spark, schema)

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """Stage an epoch beside the output; see Sink."""
        return self._files.stage(epoch, epoch_id)

    def keep_positions(self, plan: str, text: str) -> None:
        """Have the next epoch name these positions; see KeepsPositions."""
        self._next = plan, text

    def last_positions(self) -> str | None:
        """Return the positions of the last commit; see KeepsPositions."""
        return None if self._committed is None else self._positions.read(self._committed)

    def publish(
        self, spark: SparkSession, epoch_id: int, summary: EpochSummary, low_watermark: datetime
    ) -> None:
        """Make a staged epoch's files visible; see Sink."""
        line = self._watermarks.line(epoch_id, summary, low_watermark)
        if summary.written:
            name = None if self._next is None else self._positions.add(low_watermark, *self._next)
            if name is not None:
                line = line.with_field("positions", name)
            self._files.publish(spark, epoch_id, low_watermark, line=line.text)
            if name is not None:
                self._positions.remove_before(name)
        else:
            self._files.discard(spark, epoch_id)
        self._watermarks.add_line(line)

    def begin_scan(self, spark: SparkSession, tables: Mapping[str, Sequence[Column]]) -> None:
        """Do nothing: nothing has to be prepared."""

    def add_scanned(self, rows: DataFrame, chunk: int, low_watermark: datetime) -> int:
        """Write a chunk, which is visible as soon as it is whole; see Sink."""
        records = self._scanned.stage(rows, chunk).records
        self._scanned.publish(rows.sparkSession, chunk, low_watermark, chunk=chunk)
        return records
