"""The sink changelog: every data change record as Spanner sent it, in files or in one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import BeforeValidator, model_validator

from slackwater.setting_values import listed
from slackwater.spark_sink.envelopes.envelope import TABLE, Envelope, Origin
from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.formats import BIGQUERY, JSON, ORC, PARQUET, TEXT
from slackwater.spark_sink.message_rows import messages
from slackwater.spark_sink.output.application import application_of
from slackwater.spark_sink.output.bigquery.address import parse_address
from slackwater.spark_sink.output.epoch_files import EpochFiles
from slackwater.spark_sink.output.maintenance import NO_MAINTENANCE
from slackwater.spark_sink.output.position_files import PositionFiles
from slackwater.spark_sink.output.preparation import DATE_COLUMN, Preparation
from slackwater.spark_sink.output.watermark_lines import parse_lines
from slackwater.spark_sink.output.watermark_log import LoggedScans, WatermarkLog, output_position
from slackwater.spark_sink.sink import EpochSummary, OutputPosition, Sink
from slackwater.spark_sink.sinks.envelope_settings import EnvelopeSettings
from slackwater.spark_sink.sinks.table_settings import TableSettings
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.registry import TABLE_FORMATS
from slackwater.timestamp import datetime_to_rfc3339

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from slackwater.spark_sink.output.bigquery.changes_table import ChangesTable
    from slackwater.spark_sink.output.epoch_place import EpochPlace

_FORMATS: Final = (PARQUET, JSON, ORC, *TABLE_FORMATS, BIGQUERY)
PartitionColumn = Literal["table_name", "date"]


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


class ChangelogSettings(EnvelopeSettings, TableSettings):
    """The settings of a changelog.

    Attributes:
        partition_by: folders inside an epoch's, or a table's partitions.
    """

    formats = _FORMATS
    not_in_databases = (*TableSettings.not_in_databases, "partition_by")
    has_rescans = True

    kind: str = "changelog"
    partition_by: Annotated[tuple[PartitionColumn, ...], BeforeValidator(listed)] = ()

    def make_envelope(self, origin: Origin) -> Envelope:
        """Return the envelope; a file of JSON has no place for a message's key and table."""
        envelope = super().make_envelope(origin)
        if self.format != JSON:
            return envelope
        options = replace(envelope.options, key_in_value=True, topic=TABLE, is_value_alone=True)
        return replace(envelope, options=options)

    def make_sink(self, origin: Origin, record_filter: RecordFilter) -> Sink:
        """Return the sink; see SinkSettings."""
        envelope = self.make_envelope_or_none(origin)
        preparation = Preparation(
            record_filter,
            None if envelope is None else messages(envelope),
            has_date=DATE_COLUMN in self.partition_by,
        )
        place = self.make_place()
        watermarks = WatermarkLog(place, origin.pipeline)
        files = self._epoch_files(origin, place, preparation)
        return FileChangelog(files, watermarks, PositionFiles(place))

    def _epoch_files(
        self, origin: Origin, place: EpochPlace, preparation: Preparation
    ) -> EpochFiles:
        if self.format in TABLE_FORMATS:
            return self._table_epochs(origin, preparation)
        from slackwater.spark_sink.output.file_epochs import FileEpochs

        if self.format == BIGQUERY:
            return FileEpochs(place, PARQUET, preparation, shown=self._bigquery_table(place))
        has_lines = self.format == JSON and self.envelope != "record"
        return FileEpochs(
            place,
            TEXT if has_lines else self.format,
            preparation,
            self.partition_by,
            self.maintenance_policy if self.compacts_epochs else NO_MAINTENANCE,
        )

    def _bigquery_table(self, place: EpochPlace) -> ChangesTable:
        from slackwater.spark_sink.output.bigquery.changes_table import ChangesTable
        from slackwater.spark_sink.output.bigquery.dataset import Dataset

        address = parse_address(self.path)
        return ChangesTable(Dataset(address, self.bigquery_options), address.table, place)

    def check(self) -> None:
        """Ask BigQuery, too; see SinkSettings."""
        super().check()
        if self.format == BIGQUERY:
            self._bigquery_table(self.make_place()).check()

    @property
    def takes_any_columns(self) -> bool:
        """Whether the rows may have other columns; see SinkSettings."""
        of_spanner = self.format == BIGQUERY or "table_name" in self.partition_by
        return self.envelope == "record" and not of_spanner

    @property
    def compacts_epochs(self) -> bool:
        """Whether folders of epochs become larger ones, which readers have to expect."""
        is_set = "compact_every" in self.model_fields_set and self.compact_every is not None
        return is_set and self.format in (PARQUET, JSON, ORC)

    def _table_epochs(self, origin: Origin, preparation: Preparation) -> EpochFiles:
        from slackwater.spark_sink.output.table_epochs import TableEpochs

        made, policy = self.table_format, self.maintenance_policy
        retention = made.retention_properties(policy.keep_s)
        commits, files = made.log(self.path, application_of(origin.pipeline), retention)
        return TableEpochs(commits, files, preparation, self.partition_by, policy)

    @model_validator(mode="after")
    def _records_in_bigquery(self) -> Self:
        if self.format == BIGQUERY and self.envelope != "record":
            raise ValueError("format bigquery has the envelope record only")
        return self

    @model_validator(mode="after")
    def _compaction_in_object_store(self) -> Self:
        if self.compacts_epochs and self.is_in_store and self.partition_by:
            raise ValueError(
                "compact_every does not go with partition_by in an object store: many epochs become"
                " one object there, so that they are replaced at one moment"
            )
        return self
