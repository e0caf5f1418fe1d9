"""The sink changelog: every data change record as Spanner sent it, in files or in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import BeforeValidator

from slackwater.setting_values import listed
from slackwater.spark_sink.envelopes.envelope import Envelope
from slackwater.spark_sink.envelopes.message import TABLE, Origin
from slackwater.spark_sink.errors import UnknownFormatError
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.formats import JSON, ORC, PARQUET
from slackwater.spark_sink.message_rows import messages
from slackwater.spark_sink.output.staging import DATE_COLUMN, Staging
from slackwater.spark_sink.output.watermark_log import WatermarkLog, output_position
from slackwater.spark_sink.sink import EpochSummary, OutputPosition
from slackwater.spark_sink.sinks.sink_settings import EnvelopeSettings, Kind, TableSettings
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.compaction import Compaction
from slackwater.spark_sink.tables.registry import table_formats
from slackwater.spark_sink.tables.table_format import TableFormat
from slackwater.timestamp import datetime_to_rfc3339, datetime_to_us, us_to_datetime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FORMATS: Final = (PARQUET, JSON, ORC, *table_formats())
PartitionColumn = Literal["table_name", "date"]


class ChangelogSettings(EnvelopeSettings, TableSettings):
    """The settings of a changelog.

    Attributes:
        partition_by: folders inside an epoch's, or a table's partitions.
    """

    formats = _FORMATS

    kind: Kind = "changelog"
    partition_by: Annotated[tuple[PartitionColumn, ...], BeforeValidator(listed)] = ()

    def make_envelope(self, origin: Origin) -> Envelope:
        """Return the envelope; a file of JSON has no place for a message's key and table."""
        envelope = super().make_envelope(origin)
        if self.format != JSON:
            return envelope
        options = replace(envelope.options, key_in_value=True, topic=TABLE, is_value_alone=True)
        return replace(envelope, options=options)

    def make_sink(self, origin: Origin, record_filter: RecordFilter) -> Changelog:
        """Return the sink; see SinkSettings."""
        return Changelog(
            self.path,
            self.format,
            origin.pipeline,
            record_filter,
            self.make_envelope_or_none(origin),
            self.table_format(self.partition_by),
            partition_by=self.partition_by,
            compact_every_s=self.compact_every_s,
        )


class Changelog:
    """Writes each epoch as a directory of files, or as a commit to a table.

    Args:
        path: a directory, as Spark accepts it; created if missing.
        file_format: one of ChangelogSettings.formats. In a table an epoch is a commit, otherwise
            a directory.
        pipeline: the pipeline's name.
        record_filter: which records are written.
        envelope: of messages written in place of records; with format json the files then hold
            the messages' values alone, a line each.
        table_format: that of file_format, if it is a table's.
        partition_by: columns that name the folders of files; a table's are its format's.
        compact_every_s: seconds after which a table's files are compacted; None for never.

    Raises:
        UnknownFormatError: the format is not one of ChangelogSettings.formats.
    """

    def __init__(
        self,
        path: str,
        file_format: str,
        pipeline: str,
        record_filter: RecordFilter | None = None,
        envelope: Envelope | None = None,
        table_format: TableFormat | None = None,
        *,
        partition_by: Sequence[str] = (),
        compact_every_s: float | None = None,
    ) -> None:
        if file_format not in _FORMATS:
            raise UnknownFormatError(
                f"the changelog has no format {file_format!r}.", f"Known: {', '.join(_FORMATS)}"
            )
        self._path = path
        self._table = table_format
        self._application = f"slackwater {pipeline}"
        # A table's commit can't be held back until the audit is done, so its rows are staged as
        # files, too.
        staged_format = file_format if table_format is None else "parquet"
        self._compaction = Compaction(table_format, compact_every_s) if table_format else None
        shape: Callable[[DataFrame], DataFrame] | None = None
        if envelope is not None and file_format == "json":
            staged_format = "text"
            shape = partial(_lines, envelope=envelope, partition_by=partition_by)
        elif envelope is not None:
            shape = partial(messages, envelope=envelope)
        of_files = partition_by if table_format is None else ()
        has_date = DATE_COLUMN in partition_by
        self._staging = Staging(
            path, staged_format, record_filter, shape, of_files, has_date=has_date
        )
        self._scanned = self._staging.for_scan()
        self._watermarks = WatermarkLog(path, pipeline)

    def position(self, spark: SparkSession) -> OutputPosition:
        """Return the later of the log's last line and the last commit or directory; see Sink."""
        self._staging.take_over(spark)
        logged = self._watermarks.last(spark)
        if self._table is not None:
            version = self._table.last_version(spark, self._path, self._application)
            committed = None if version is None else us_to_datetime(version)
            return output_position(logged, committed, is_one_commit=True)
        directory = self._staging.epoch_directory(spark)
        return output_position(
            logged, directory.last_low_watermark(), is_one_commit=directory.is_atomic
        )

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """Stage an epoch beside the output; see Sink."""
        return self._staging.stage(epoch, epoch_id)

    def publish(
        self, spark: SparkSession, epoch_id: int, summary: EpochSummary, low_watermark: datetime
    ) -> None:
        """Commit a staged epoch to the table, or rename its directory; see Sink."""
        directory = self._staging.epoch_directory(spark)
        if not summary.written:
            directory.discard(epoch_id)
        elif self._table is not None:
            staged = self._staging.staged_files(spark, epoch_id)
            rows = self._staging.read_staged(spark, epoch_id)
            version = datetime_to_us(low_watermark)
            self._table.append(rows, self._path, self._application, version, staged)
            directory.discard(epoch_id)
        else:
            directory.publish(epoch_id, low_watermark)
        self._watermarks.add(spark, epoch_id, summary, low_watermark)
        if self._compaction is not None and self._compaction.is_due:
            self._compaction.run(spark, [self._path])

    def begin_scan(self, spark: SparkSession, tables: Mapping[str, Sequence[Column]]) -> None:
        """Do nothing: nothing has to be prepared."""

    def add_scanned(self, rows: DataFrame, chunk: int, low_watermark: datetime) -> int:
        """Write a chunk, which is visible as soon as it is whole; see Sink."""
        spark = rows.sparkSession
        records = self._scanned.stage(rows, chunk).records
        directory = self._scanned.epoch_directory(spark)
        if self._table is None:
            directory.publish(chunk, low_watermark, chunk=chunk)
            return records
        scan = f"{self._application} scan {datetime_to_rfc3339(low_watermark)}"
        staged = self._scanned.staged_files(spark, chunk)
        self._table.append(self._scanned.read_staged(spark, chunk), self._path, scan, chunk, staged)
        directory.discard(chunk)
        return records

    def end_scan(self, spark: SparkSession, records: int, low_watermark: datetime) -> None:
        """Write the scan's low watermark; see Sink."""
        self._watermarks.add_scan(spark, records, low_watermark)


def _lines(changes: DataFrame, envelope: Envelope, partition_by: Sequence[str]) -> DataFrame:
    """Return a line for each message, its value, and the columns of its folder."""
    folders = [name for name in partition_by if name != DATE_COLUMN]
    dated = ["commit_timestamp"] if DATE_COLUMN in partition_by else []
    return messages(changes, envelope).select("value", *folders, *dated)
