"""The sink mirror: for each table of Spanner's one kept equal to it, all at one low watermark."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Final, Literal

from slackwater.spark_sink.envelopes.message import Origin
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.output.dead_letters import DeadLetters
from slackwater.spark_sink.sink import EpochSummary
from slackwater.spark_sink.sinks.managed_tables import (
    ManagedTables,
    ManagedTableSettings,
)
from slackwater.spark_sink.sinks.sink_settings import Kind
from slackwater.spark_sink.sql.columns import Column, mirror_columns
from slackwater.spark_sink.sql.latest_changes import columns_by_table, latest_changes, whole_rows
from slackwater.spark_sink.tables.managed_table import AppendId
from slackwater.spark_sink.tables.mirror_table import MirrorTable
from slackwater.spark_sink.tables.table_format import TableFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PUBLISH_ALL_EVERY_S: Final = 60.0


class MirrorSettings(ManagedTableSettings):
    """The settings of mirrors.

    Attributes:
        deletes: apply deletes to the rows, or mark the rows as deleted.
    """

    refused_keys: ClassVar[Mapping[str, str]] = {
        "envelope": "mirrors have rows: leave envelope out"
    }
    has_initial_scan = True

    kind: Kind = "mirror"
    deletes: Literal["apply", "mark"] = "apply"

    def make_sink(self, origin: Origin, record_filter: RecordFilter) -> Mirrors:
        """Return the sink; see SinkSettings."""
        return Mirrors(
            self.path,
            origin.pipeline,
            self.require_table_format(),
            record_filter,
            keeps_deleted=self.deletes == "mark",
            properties=self.table_properties,
            keeps_bad_records=self.sets_bad_records_aside,
            compact_every_s=self.compact_every_s,
        )


class Mirrors(ManagedTables[MirrorTable]):
    """Merges each epoch into the mirrors of the tables that it changes.

    Args:
        path, pipeline, table_format, compact_every_s: see ManagedTables.
        record_filter: which records are applied.
        keeps_deleted: deleted rows stay, marked.
        properties: of tables that are created.
        keeps_bad_records: records that can't be converted are set aside; otherwise the epoch fails.
    """

    def __init__(
        self,
        path: str,
        pipeline: str,
        table_format: TableFormat,
        record_filter: RecordFilter | None = None,
        *,
        keeps_deleted: bool = False,
        properties: Mapping[str, str] | None = None,
        keeps_bad_records: bool = False,
        compact_every_s: float | None = None,
    ) -> None:
        super().__init__(
            path,
            pipeline,
            table_format,
            record_filter,
            dead_letters=DeadLetters(path, is_enabled=keeps_bad_records),
            compact_every_s=compact_every_s,
        )
        self._keeps_deleted = keeps_deleted
        self._properties = properties
        self._all_published_at = float("-inf")

    def publish(
        self, spark: SparkSession, epoch_id: int, summary: EpochSummary, low_watermark: datetime
    ) -> None:
        """Merge a staged epoch, with one commit for each table; see Sink.

        A crash may leave some tables ahead of others; the replay leaves those alone. The watermark
        log and the tables' properties say up to when all of them are complete.
        """
        changed: set[str] = set()
        if summary.written:
            changes = self._staging.read_staged(spark, epoch_id)
            changed = self._merge(spark, changes, low_watermark)
        self._staging.epoch_directory(spark).discard(epoch_id)
        self._watermarks.add(spark, epoch_id, summary, low_watermark)
        self._publish_watermark(spark, changed, low_watermark)
        self._compact(spark)

    def begin_scan(self, spark: SparkSession, tables: Mapping[str, Sequence[Column]]) -> None:
        """Create all mirrors; see Sink."""
        super().begin_scan(
            spark, {table: mirror_columns(columns) for table, columns in tables.items()}
        )

    def end_scan(self, spark: SparkSession, records: int, low_watermark: datetime) -> None:
        """Publish the mirrors' first low watermark: they are complete now. See Sink."""
        super().end_scan(spark, records, low_watermark)
        self._publish_watermark(spark, self._scanned_tables, low_watermark)

    def _add(
        self, changes: DataFrame, table: str, columns: Sequence[Column], append_id: AppendId
    ) -> None:
        mirror = self._table(changes.sparkSession, table)
        self._dead_letters.write(
            lambda is_checked: whole_rows(changes, table, columns, is_checked=is_checked),
            lambda rows: mirror.add(rows.select("row.*"), append_id),
            changes,
            table,
            append_id.low_watermark,
            chunk=append_id.chunk,
        )

    def _merge(self, spark: SparkSession, changes: DataFrame, low_watermark: datetime) -> set[str]:
        """Bring the tables that an epoch changes to its low watermark, and return their names."""
        changed = {
            table: mirror_columns(columns) for table, columns in columns_by_table(changes).items()
        }

        def ensure_columns(table: str, columns: Sequence[Column]) -> None:
            self._table(spark, table).ensure_columns(columns)

        def merge(table: str, columns: Sequence[Column]) -> None:
            mirror = self._table(spark, table)
            self._dead_letters.write(
                lambda is_checked: latest_changes(changes, table, columns, is_checked=is_checked),
                lambda newest: mirror.merge(newest, columns),
                changes,
                table,
                low_watermark,
            )

        # A table that is written again for a new type must not count as the epoch's MERGE.
        self._at_once(ensure_columns, changed.items())
        with self._format.idempotent_merge(spark, self._application, low_watermark):
            self._at_once(merge, changed.items())
        return set(changed)

    def _publish_watermark(
        self, spark: SparkSession, changed: Collection[str], watermark: datetime
    ) -> None:
        """Write the low watermark to the tables' properties.

        A commit is expensive for a table that the epoch did not change. Such a table gets it once a
        minute; until then it has an earlier one, at which it was the same.
        """
        now = time.monotonic()
        if now - self._all_published_at >= _PUBLISH_ALL_EVERY_S:
            self._all_published_at = now
            changed = self._existing_tables(spark)
        self._at_once(
            lambda table: self._table(spark, table).publish_watermark(watermark),
            [(table,) for table in changed],
        )

    def _make(self, spark: SparkSession, path: str, table: str) -> MirrorTable:
        return MirrorTable(
            spark,
            path,
            table,
            self._format,
            keeps_deleted=self._keeps_deleted,
            properties=self._properties,
        )
