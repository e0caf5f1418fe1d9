"""The sink changelog: every data change record as Spanner sent it, in files or in one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import BeforeValidator, model_validator

from slackwater.setting_values import listed
from slackwater.spark_sink.envelopes.envelope import TABLE, Envelope, Origin
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.formats import BIGQUERY, JSON, ORC, PARQUET, TEXT
from slackwater.spark_sink.message_rows import messages
from slackwater.spark_sink.output.application import application_of
from slackwater.spark_sink.output.bigquery.address import parse_address
from slackwater.spark_sink.output.epoch_files import EpochFiles
from slackwater.spark_sink.output.maintenance import NO_MAINTENANCE
from slackwater.spark_sink.output.position_files import PositionFiles
from slackwater.spark_sink.output.preparation import DATE_COLUMN, Preparation
from slackwater.spark_sink.output.watermark_log import WatermarkLog
from slackwater.spark_sink.sink import Sink
from slackwater.spark_sink.sinks.envelope_settings import EnvelopeSettings
from slackwater.spark_sink.sinks.file_changelog import FileChangelog
from slackwater.spark_sink.sinks.table_settings import TableSettings
from slackwater.spark_sink.tables.registry import TABLE_FORMATS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from slackwater.spark_sink.output.bigquery.changes_table import ChangesTable
    from slackwater.spark_sink.output.epoch_place import EpochPlace

_FORMATS: Final = (PARQUET, JSON, ORC, *TABLE_FORMATS, BIGQUERY)
PartitionColumn = Literal["table_name", "date"]


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
        preparation = Preparation(
            record_filter,
            self._shape(self.make_envelope_or_none(origin)),
            has_date=DATE_COLUMN in self.partition_by,
        )
        place = self.make_place()
        watermarks = WatermarkLog(place, origin.pipeline)
        files = self._epoch_files(origin, place, preparation)
        return FileChangelog(files, watermarks, PositionFiles(place))

    def _shape(self, envelope: Envelope | None) -> Callable[[DataFrame], DataFrame] | None:
        if envelope is None:
            return None
        if self.format == JSON:
            return partial(_lines, envelope=envelope, partition_by=self.partition_by)
        return partial(messages, envelope=envelope)

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


def _lines(changes: DataFrame, envelope: Envelope, partition_by: Sequence[str]) -> DataFrame:
    """Return a line for each message, its value, and the columns of its folder."""
    folders = [name for name in partition_by if name != DATE_COLUMN]
    dated = ["commit_timestamp"] if DATE_COLUMN in partition_by else []
    return messages(changes, envelope).select("value", *folders, *dated)
