"""Any format that Spark can write: console, JDBC, BigQuery, what a jar brings.

An epoch is handed to the format in one write, after its audit. Formats know nothing of epochs: one
that failed, or was killed before its low watermark was noted, is written again. Rows have the
epoch's low watermark, by which a reader can tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Self

from pydantic import Field, model_validator
from pyspark.sql import DataFrame, SparkSession

from slackwater.setting_values import TextMapping
from slackwater.spark_sink.envelopes.envelope import Envelope
from slackwater.spark_sink.envelopes.message import Origin
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.formats import write_options
from slackwater.spark_sink.message_rows import messages
from slackwater.spark_sink.output.staging import Staging
from slackwater.spark_sink.output.watermark_log import WatermarkLog
from slackwater.spark_sink.sink import EpochSummary
from slackwater.spark_sink.sinks.sink_settings import EnvelopeSettings, Kind
from slackwater.spark_sink.sql.columns import Column


class SparkFormatSettings(EnvelopeSettings):
    """The settings of a sink in a format of Spark's.

    Attributes:
        options: of the format.
    """

    kind: Kind = "spark"
    options: TextMapping = Field(default_factory=dict)

    def make_sink(self, origin: Origin, record_filter: RecordFilter) -> SparkFormat:
        """Return the sink; see SinkSettings."""
        envelope = self.make_envelope_or_none(origin)
        return SparkFormat(self.path, self.format, self.options, record_filter, envelope)

    @model_validator(mode="after")
    def _format_is_set(self) -> Self:
        if "format" not in self.model_fields_set:
            raise ValueError("kind spark needs format: one that Spark can write")
        return self


class SparkFormat:
    """Appends epochs by a format of Spark's, at least once: see Sink.

    Args:
        path: a directory in which epochs wait for their audit, and low watermarks are noted.
        file_format: Spark's name of it.
        options: of the format.
        record_filter: which records are written.
        envelope: of what is written; None for records.
    """

    def __init__(
        self,
        path: str,
        file_format: str,
        options: Mapping[str, str],
        record_filter: RecordFilter | None = None,
        envelope: Envelope | None = None,
    ) -> None:
        self._format = file_format
        self._options = {**write_options(file_format), **options}
        self._envelope = envelope
        self._staging = Staging(path, "parquet", record_filter)
        self._scanned = self._staging.for_scan()
        self._watermarks = WatermarkLog(path)

    def last_low_watermark(self, spark: SparkSession) -> datetime | None:
        """See Sink."""
        return self._watermarks.last(spark)

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """See Sink."""
        return self._staging.stage(epoch, epoch_id)

    def publish(
        self, spark: SparkSession, epoch_id: int, summary: EpochSummary, low_watermark: datetime
    ) -> None:
        """See Sink; an epoch whose low watermark is noted is not written again."""
        noted = self._watermarks.last(spark)
        if summary.written and (noted is None or noted < low_watermark):
            self._write(self._staging.read_staged(spark, epoch_id))
        self._staging.epoch_directory(spark).discard(epoch_id)
        self._watermarks.add(spark, epoch_id, summary, low_watermark)

    def begin_scan(self, spark: SparkSession, tables: Mapping[str, Sequence[Column]]) -> None:
        """See Sink; what the format needs has to be there."""

    def add_scanned(self, rows: DataFrame, chunk: int, low_watermark: datetime) -> int:  # noqa: ARG002
        """See Sink; a chunk that is tried again is written again."""
        spark = rows.sparkSession
        found = self._scanned.stage(rows, chunk).records
        self._write(self._scanned.read_staged(spark, chunk))
        self._scanned.epoch_directory(spark).discard(chunk)
        return found

    def end_scan(self, spark: SparkSession, records: int, low_watermark: datetime) -> None:
        """See Sink."""
        self._watermarks.add_scan(spark, records, low_watermark)

    def _write(self, changes: DataFrame) -> None:
        rows = changes if self._envelope is None else messages(changes, self._envelope)
        rows.write.format(self._format).options(**self._options).mode("append").save()
