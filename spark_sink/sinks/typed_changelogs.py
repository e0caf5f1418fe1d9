"""Typed changelogs: for each table of Spanner's one that has all its changes, in typed columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from multiprocessing.pool import ThreadPool

from pyspark.sql import DataFrame, SparkSession

from slackwater.spark_sink.filters.record_filter import Filter
from slackwater.spark_sink.output.dead_letters import DeadLetters
from slackwater.spark_sink.sink import EpochSummary
from slackwater.spark_sink.sinks.managed_tables import TABLES_AT_ONCE, OwnTables
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.latest_changes import shapes
from slackwater.spark_sink.sql.typed_changes import MOD, typed_changes
from slackwater.spark_sink.tables.changelog_table import ChangelogTable
from slackwater.spark_sink.tables.managed_table import Addition
from slackwater.spark_sink.tables.table_format import TableFormat
from slackwater.timestamp import datetime_to_us


class TypedChangelogs(OwnTables[ChangelogTable]):
    """Appends epochs to one table for each of Spanner's: see Sink.

    Args:
        path, pipeline, table_format, kept, compact_every_s: see OwnTables.
        properties: of the tables that have to be made.
        keeps_bad_records: what can't be converted is set aside, in the place of a failure.
    """

    def __init__(
        self,
        path: str,
        pipeline: str,
        table_format: TableFormat,
        kept: Filter | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        keeps_bad_records: bool = False,
        compact_every_s: float | None = None,
    ) -> None:
        super().__init__(
            path,
            pipeline,
            table_format,
            kept,
            dead_letters=DeadLetters(path, are_kept=keeps_bad_records, by=MOD),
            compact_every_s=compact_every_s,
        )
        self._properties = properties

    def publish(
        self, spark: SparkSession, epoch_id: int, summary: EpochSummary, low_watermark: datetime
    ) -> None:
        """See Sink; each table gets its part of the epoch in one commit.

        A crash may leave some tables ahead of the others, and the replay leaves those alone. What
        is true of all of them the watermarks say.
        """
        if summary.written:
            changes = self._staging.staged(spark, epoch_id)
            version = datetime_to_us(low_watermark)
            addition = Addition(self._application, version, low_watermark)

            def add(table: str, columns: Sequence[Column]) -> None:
                self._add(changes, table, columns, addition)

            with ThreadPool(TABLES_AT_ONCE) as pool:
                pool.starmap(add, shapes(changes).items())
        self._staging.directory(spark).discard(epoch_id)
        self._watermarks.add(spark, epoch_id, summary, low_watermark)
        self._compact(spark)

    def _add(
        self, changes: DataFrame, table: str, columns: Sequence[Column], addition: Addition
    ) -> None:
        kept_in = self._table(changes.sparkSession, table)
        kept_in.require(columns)
        self._dead_letters.write(
            lambda is_checked: typed_changes(
                changes, table, columns, kept_in.shape, is_checked=is_checked
            ),
            lambda rows: kept_in.add(rows.select("row.*"), addition),
            changes,
            table,
            addition.low_watermark,
            chunk=addition.chunk,
        )

    def _make(self, spark: SparkSession, path: str, table: str) -> ChangelogTable:
        return ChangelogTable(spark, path, table, self._format, properties=self._properties)
