"""The sink changelog: every data change record as Spanner sent it, in files or in one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import BeforeValidator, model_validator

from slackwater.setting_values import listed
from slackwater.spark_sink.envelopes.envelope import Envelope
from slackwater.spark_sink.envelopes.message import TABLE, Origin
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.formats import JSON, ORC, PARQUET, TEXT
from slackwater.spark_sink.message_rows import messages
from slackwater.spark_sink.output.application import application_of
from slackwater.spark_sink.output.delta.features import retention_properties
from slackwater.spark_sink.output.epoch_files import EpochFiles
from slackwater.spark_sink.output.maintenance import NO_MAINTENANCE
from slackwater.spark_sink.output.preparation import DATE_COLUMN, Preparation
from slackwater.spark_sink.output.watermark_log import WatermarkLog
from slackwater.spark_sink.sink import Sink
from slackwater.spark_sink.sinks.envelope_settings import EnvelopeSettings
from slackwater.spark_sink.sinks.file_changelog import FileChangelog
from slackwater.spark_sink.sinks.table_settings import TableSettings
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.iceberg import Iceberg
from slackwater.spark_sink.tables.registry import table_formats

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from slackwater.spark_sink.output.epoch_place import EpochPlace
    from slackwater.spark_sink.output.table_commits import TableCommits
    from slackwater.spark_sink.output.table_files import TableFiles

_FORMATS: Final = (PARQUET, JSON, ORC, *table_formats())
PartitionColumn = Literal["table_name", "date"]


class ChangelogSettings(EnvelopeSettings, TableSettings):
    """The settings of a changelog.

    Attributes:
        partition_by: folders inside an epoch's, or a table's partitions.
    """

    formats = _FORMATS
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
        return FileChangelog(self._epoch_files(origin, place, preparation), watermarks)

    def _shape(self, envelope: Envelope | None) -> Callable[[DataFrame], DataFrame] | None:
        if envelope is None:
            return None
        if self.format == JSON:
            return partial(_lines, envelope=envelope, partition_by=self.partition_by)
        return partial(messages, envelope=envelope)

    def _epoch_files(
        self, origin: Origin, place: EpochPlace, preparation: Preparation
    ) -> EpochFiles:
        if self.format in table_formats():
            return self._table_epochs(origin, preparation)
        from slackwater.spark_sink.output.file_epochs import FileEpochs

        has_lines = self.format == JSON and self.envelope != "record"
        return FileEpochs(
            place,
            TEXT if has_lines else self.format,
            preparation,
            self.partition_by,
            self.maintenance_policy if self.compacts_epochs else NO_MAINTENANCE,
        )

    @property
    def compacts_epochs(self) -> bool:
        """Whether folders of epochs become larger ones, of which readers have to know."""
        is_set = "compact_every" in self.model_fields_set and self.compact_every is not None
        return is_set and self.format not in table_formats()

    def _table_epochs(self, origin: Origin, preparation: Preparation) -> EpochFiles:
        from slackwater.spark_sink.output.table_epochs import TableEpochs

        make = self._delta_log if self.format == Delta.using else self._iceberg_log
        commits, files = make(application_of(origin.pipeline))
        policy = self.maintenance_policy
        return TableEpochs(commits, files, preparation, self.partition_by, policy)

    def _delta_log(self, application: str) -> tuple[TableCommits, TableFiles]:
        from slackwater.spark_sink.output.delta.delta_commits import DeltaCommits
        from slackwater.spark_sink.output.table_files import table_files

        options = self.storage_options
        files = table_files(self.path, options)
        retention = retention_properties(self.maintenance_policy.keep_s)
        return DeltaCommits(files.path, options, application, retention), files

    def _iceberg_log(self, application: str) -> tuple[TableCommits, TableFiles]:
        from slackwater.spark_sink.output.iceberg.iceberg_commits import IcebergCommits
        from slackwater.spark_sink.output.iceberg.iceberg_files import IcebergFiles

        table = Iceberg(self.catalog, self.storage_options)
        retention = table.retention_properties(self.maintenance_policy.keep_s)
        commits = IcebergCommits(table.place(self.path), application, retention)
        return commits, IcebergFiles(commits)

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
