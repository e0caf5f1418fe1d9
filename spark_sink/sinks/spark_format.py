"""The sink spark: any format that Spark can write, such as console, JDBC or one that a jar brings.

An epoch is written at once, after its audit. Such formats have no epochs: one that failed, or was
interrupted before its low watermark was written, is written again. A reader can tell by the epoch's
low watermark, which each row has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from slackwater.setting_values import TextMapping
from slackwater.spark_sink.envelopes.envelope import Envelope, Origin
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.formats import write_options
from slackwater.spark_sink.message_rows import messages
from slackwater.spark_sink.output.preparation import Preparation
from slackwater.spark_sink.output.staging import StagedByTasks, Staging
from slackwater.spark_sink.output.watermark_log import LoggedScans, WatermarkLog, output_position
from slackwater.spark_sink.sink import EpochSummary, OutputPosition
from slackwater.spark_sink.sinks.envelope_settings import EnvelopeSettings
from slackwater.spark_sink.sql.columns import Column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.output.epoch_place import EpochPlace


class SparkFormatSettings(EnvelopeSettings):
    """The settings of a sink in a format of Spark's.

    Attributes:
        options: of the format.
    """

    kind: str = "spark"
    options: TextMapping = Field(default_factory=dict)

    @property
    def hadoop_paths(self) -> tuple[str, ...]:
        """The path too, because the format may write beside it; see SinkSettings."""
        return (self.path, *super().hadoop_paths)

    @property
    def is_visible_in_parts(self) -> bool:
        """Whether a part of an epoch may stay: it is not known; see SinkSettings."""
        return True

    def make_sink(self, origin: Origin, record_filter: RecordFilter) -> SparkFormat:
        """Return the sink; see SinkSettings."""
        envelope = self.make_envelope_or_none(origin)
        return SparkFormat(
            self.make_place(), self.format, origin.pipeline, self.options, record_filter, envelope
        )

    @model_validator(mode="after")
    def _format_is_set(self) -> Self:
        if "format" not in self.model_fields_set:
            raise ValueError("kind spark needs format: one that Spark can write")
        return self


class SparkFormat(StagedByTasks, LoggedScans):
    """A sink that appends epochs with one of Spark's formats, at least once.

    Args:
        place: for staged epochs and the watermark log.
        file_format: Spark's name of the format.
        pipeline: the pipeline's name.
        options: of the format.
        record_filter: which records are written.
        envelope: of the messages; None to write records.
    """

    def __init__(
        self,
        place: EpochPlace,
        file_format: str,
        pipeline: str,
        options: Mapping[str, str],
        record_filter: RecordFilter | None = None,
        envelope: Envelope | None = None,
    ) -> None:
        self._format = file_format
        self._options = {**write_options(file_format), **options}
        self._envelope = envelope
        self._staging = Staging(place, Preparation(record_filter or RecordFilter()))
        self._scanned = self._staging.for_scan()
        self._watermarks = WatermarkLog(place, pipeline)

    def position(self, spark: SparkSession) -> OutputPosition:
        """Return the watermark log's last line; see Sink."""
        self._staging.take_over(spark)
        return output_position(self._watermarks.last(), None, is_one_commit=False)

    def publish(
        self, spark: SparkSession, epoch_id: int, summary: EpochSummary, low_watermark: datetime
    ) -> None:
        """Write a staged epoch, unless the watermark log has its low watermark; see Sink."""
        last = self._watermarks.last()
        if summary.written and (last is None or last.low_watermark < low_watermark):
            self._write(self._staging.read_staged(spark, epoch_id))
        self._staging.discard(epoch_id)
        self._watermarks.add(epoch_id, summary, low_watermark)

    def begin_scan(self, spark: SparkSession, tables: Mapping[str, Sequence[Column]]) -> None:
        """Do nothing: the format's destination has to exist."""

    def add_scanned(self, rows: DataFrame, chunk: int, low_watermark: datetime) -> int:  # noqa: ARG002
        """Write a chunk, again if it is tried again; see Sink."""
        spark = rows.sparkSession
        records = self._scanned.stage(rows, chunk).records
        self._write(self._scanned.read_staged(spark, chunk))
        self._scanned.discard(chunk)
        return records

    def _write(self, changes: DataFrame) -> None:
        rows = changes if self._envelope is None else messages(self._envelope).frame(changes)
        rows.write.format(self._format).options(**self._options).mode("append").save()
