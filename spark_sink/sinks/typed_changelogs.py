"""The sink changelogs: one table for each of Spanner's, with all its changes in typed columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING, ClassVar

from slackwater.spark_sink.envelopes.envelope import Origin
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.sink import EpochSummary
from slackwater.spark_sink.sinks.managed_tables import (
    ManagedTables,
    ManagedTableSettings,
)
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.latest_changes import COLUMNS_OF_TABLES, columns_by_table
from slackwater.spark_sink.tables.table_changes import AppendId
from slackwater.timestamp import datetime_to_us

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from slackwater.spark_sink.tables.changelog_table import ChangelogTable


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
            self.tables(origin.pipeline),
            record_filter,
            properties=self.table_properties,
            keeps_bad_records=self.sets_bad_records_aside,
            policy=self.maintenance_policy,
        )


class TypedChangelogs(ManagedTables["ChangelogTable"]):
    """A sink that appends each epoch to the typed changelogs of the tables that it changes."""

    @staticmethod
    def _mod_columns() -> Sequence[str]:
        # With Arrow, which the settings do without.
        from slackwater.spark_sink.typed_rows import MOD_ID

        return MOD_ID

    def publish(
        self, spark: SparkSession, epoch_id: int, summary: EpochSummary, low_watermark: datetime
    ) -> None:
        """Append a staged epoch, with one commit for each table; see Sink.

        A crash may leave some tables ahead of others; the replay leaves those alone. The watermark
        log says up to when all of them are complete.
        """
        if summary.written:
            version = datetime_to_us(low_watermark)
            append_id = AppendId(self._application, version, low_watermark)
            self._append(spark, epoch_id, summary, append_id)
        else:
            with self._format.at_once(low_watermark):
                pass
        self._staging.discard(epoch_id)
        self._watermarks.add(epoch_id, summary, low_watermark)
        self._begin_maintenance(spark)

    def end_scan(self, spark: SparkSession, records: int, low_watermark: datetime) -> None:
        """Have tables that state one low watermark state it; see Sink."""
        with self._format.at_once(low_watermark, is_stated=True):
            pass
        super().end_scan(spark, records, low_watermark)

    def _append(
        self, spark: SparkSession, epoch_id: int, summary: EpochSummary, append_id: AppendId
    ) -> None:
        """Append a staged epoch to the tables that it changes."""
        # A small epoch needs no job of Spark's, unless a record is bad.
        changes = cache(partial(self._staging.read_staged, spark, epoch_id))
        records = self._read_small(epoch_id, summary)

        def ensure_columns(table: str, columns: Sequence[Column]) -> None:
            if self._table(spark, table).ensure_columns(columns):
                # A former owner may create a table that its successor did not find.
                self._staging.require_staged(epoch_id)

        def add(table: str, columns: Sequence[Column]) -> None:
            changelog = self._table(spark, table)
            if records is None or not self._add_small(changelog, records, columns, append_id):
                self._add(changes(), table, columns, append_id)

        if records is None:
            of_tables = self._staging.read_staged(spark, epoch_id, COLUMNS_OF_TABLES)
            by_table = columns_by_table(of_tables)
        else:
            # With Arrow, which the settings do without.
            from slackwater.spark_sink.tables.row_merges.small_epoch import SmallEpoch

            by_table = SmallEpoch(records).columns_by_table()
        self._at_once(ensure_columns, by_table.items())
        with self._format.at_once(append_id.low_watermark):
            self._at_once(add, by_table.items())

    def _add_small(
        self,
        changelog: ChangelogTable,
        records: pa.Table,
        columns: Sequence[Column],
        append_id: AppendId,
    ) -> bool:
        """Append a table's records without a job of Spark's; return False if one is bad."""
        from slackwater.typed_changes import ColumnValueError

        try:
            changelog.add_records(records, columns, append_id)
        except ColumnValueError:
            return False
        return True

    def _make(self, spark: SparkSession, path: str, table: str) -> ChangelogTable:
        from slackwater.spark_sink.tables.changelog_table import ChangelogTable

        access, properties = self._access(spark, table), self._properties
        return ChangelogTable(spark, path, table, self._format, access, properties=properties)
