"""The sink changelogs: for each table of Spanner's one with all its changes, in typed columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from slackwater.spark_sink.envelopes.message import Origin
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.output.dead_letters import DeadLetters
from slackwater.spark_sink.output.maintenance import NO_MAINTENANCE, MaintenancePolicy
from slackwater.spark_sink.sink import EpochSummary
from slackwater.spark_sink.sinks.managed_tables import (
    ManagedTables,
    ManagedTableSettings,
)
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.latest_changes import columns_by_table
from slackwater.spark_sink.tables.changelog_table import ChangelogTable
from slackwater.spark_sink.tables.managed_table import AppendId
from slackwater.spark_sink.tables.table_format import TableFormat
from slackwater.timestamp import datetime_to_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.output.epoch_place import EpochPlace


class TypedChangelogSettings(ManagedTableSettings):
    """The settings of typed changelogs."""

    refused_keys: ClassVar[Mapping[str, str]] = {
        "envelope": "changelogs have typed columns: leave envelope out"
    }

    has_rescans = True

    kind: str = "changelogs"

    def make_sink(self, origin: Origin, record_filter: RecordFilter) -> TypedChangelogs:
        """Return the sink; see SinkSettings."""
        return TypedChangelogs(
            self.make_place(),
            origin.pipeline,
            self.require_table_format(),
            record_filter,
            properties=self.table_properties,
            keeps_bad_records=self.sets_bad_records_aside,
            policy=self.maintenance_policy,
        )


class TypedChangelogs(ManagedTables[ChangelogTable]):
    """Appends each epoch to the typed changelogs of the tables that it changes.

    Args:
        place, pipeline, table_format, record_filter, policy: see ManagedTables.
        properties: of tables that are created.
        keeps_bad_records: records that can't be converted are set aside; otherwise the epoch fails.
    """

    def __init__(
        self,
        place: EpochPlace,
        pipeline: str,
        table_format: TableFormat,
        record_filter: RecordFilter | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        keeps_bad_records: bool = False,
        policy: MaintenancePolicy = NO_MAINTENANCE,
    ) -> None:
        # With Arrow, which the settings do without.
        from slackwater.spark_sink.typed_rows import MOD_ID

        super().__init__(
            place,
            pipeline,
            table_format,
            record_filter,
            dead_letters=DeadLetters(place, is_enabled=keeps_bad_records, mod_columns=MOD_ID),
            policy=policy,
        )
        self._properties = {
            **table_format.retention_properties(policy.keep_s),
            **(properties or {}),
        }

    def publish(
        self, spark: SparkSession, epoch_id: int, summary: EpochSummary, low_watermark: datetime
    ) -> None:
        """Append a staged epoch, with one commit for each table; see Sink.

        A crash may leave some tables ahead of others; the replay leaves those alone. The watermark
        log says up to when all of them are complete.
        """
        if summary.written:
            changes = self._staging.read_staged(spark, epoch_id)
            version = datetime_to_us(low_watermark)
            append_id = AppendId(self._application, version, low_watermark)

            def add(table: str, columns: Sequence[Column]) -> None:
                self._add(changes, table, columns, append_id)

            self._at_once(add, columns_by_table(changes).items())
        self._staging.discard(epoch_id)
        self._watermarks.add(epoch_id, summary, low_watermark)
        self._begin_maintenance(spark)

    def _add(
        self, changes: DataFrame, table: str, columns: Sequence[Column], append_id: AppendId
    ) -> None:
        from slackwater.spark_sink.typed_rows import typed_rows

        changelog = self._table(changes.sparkSession, table)
        changelog.ensure_columns(columns)
        self._dead_letters.write(
            lambda is_checked: typed_rows(
                changes, table, columns, changelog.schema, is_checked=is_checked
            ),
            lambda rows: changelog.add(rows.select("row.*"), append_id),
            changes,
            table,
            append_id.low_watermark,
            chunk=append_id.chunk,
        )

    def _make(self, spark: SparkSession, path: str, table: str) -> ChangelogTable:
        return ChangelogTable(spark, path, table, self._format, properties=self._properties)
