"""Typed changelogs: for each table of Spanner's one that has all its changes, in typed columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from multiprocessing.pool import ThreadPool
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark_sink.changelog_table import ChangelogTable
from spark_sink.columns import Column
from spark_sink.compaction import Compaction
from spark_sink.dead_letters import SPARK_ERRORS, DeadLetters, is_bad_record
from spark_sink.filters import Filter
from spark_sink.newest_change import shapes
from spark_sink.own_tables import own_tables
from spark_sink.sink import EpochSummary
from spark_sink.staging import Staging
from spark_sink.table_format import TableFormat
from spark_sink.timestamps import microseconds, rfc3339
from spark_sink.typed_changes import MOD, typed_changes
from spark_sink.watermarks import Watermarks

# Tables that are appended to at the same time.
_TABLES_AT_ONCE: Final = 4


class TypedChangelogs:
    """Appends epochs to one table for each of Spanner's: see Sink.

    Args:
        path: the directory that the tables' directories lie in, each under its full name.
        pipeline: the pipeline's name.
        table_format: of the tables.
        kept: which records are written, and which of their columns.
        properties: of the tables that have to be made.
        keeps_bad_records: what can't be converted is set aside, in the place of a failure.
        compact_every_s: seconds after which the tables' files are compacted; None for never.
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
        self._path = path
        self._format = table_format
        self._compaction = Compaction(table_format, compact_every_s)
        self._dead_letters = DeadLetters(path, are_kept=keeps_bad_records, by=MOD)
        self._application = f"slackwater {pipeline}"
        self._properties = dict(properties or {})
        self._staging = Staging(path, "parquet", kept)
        self._scanned = self._staging.for_scan()
        self._watermarks = Watermarks(path)
        self._scanned_tables: dict[str, Sequence[Column]] = {}
        self._tables: dict[str, ChangelogTable] = {}

    def last_low_watermark(self, spark: SparkSession) -> datetime | None:
        """See Sink."""
        return self._watermarks.last(spark)

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """See Sink."""
        return self._staging.stage(epoch, epoch_id)

    def publish(
        self, spark: SparkSession, epoch_id: int, summary: EpochSummary, low_watermark: datetime
    ) -> None:
        """See Sink; each table gets its part of the epoch in one commit.

        A crash may leave some tables ahead of the others, and the replay leaves those alone. What
        is true of all of them the watermarks say.
        """
        if summary.written:
            changes = self._staging.staged(spark, epoch_id)
            version = microseconds(low_watermark)

            def append(table: str, columns: Sequence[Column]) -> None:
                self._append(changes, table, columns, self._application, version, low_watermark)

            with ThreadPool(_TABLES_AT_ONCE) as pool:
                pool.starmap(append, shapes(changes).items())
        directory = self._staging.directory(spark)
        directory.discard(epoch_id)
        self._watermarks.add(spark, epoch_id, summary, low_watermark)
        if self._compaction.is_due:
            names = own_tables(spark, self._format, self._path, directory)
            self._compaction.run(spark, [f"{self._path}/{name}" for name in names])

    def begin_scan(self, spark: SparkSession, tables: Mapping[str, Sequence[Column]]) -> None:
        """See Sink; tables without rows have a changelog, too."""
        self._scanned_tables = dict(tables)
        for table, columns in tables.items():
            self._table(spark, table).require(columns)

    def add_scanned(self, rows: DataFrame, chunk: int, low_watermark: datetime) -> int:
        """See Sink; a chunk is visible in a table as soon as it is whole there."""
        spark = rows.sparkSession
        found = self._scanned.stage(rows, chunk).records
        staged = self._scanned.staged(spark, chunk)
        scan = f"{self._application} scan {rfc3339(low_watermark)}"
        for row in staged.select("table_name").distinct().collect():
            table = row["table_name"]
            columns = self._scanned_tables[table]
            self._append(staged, table, columns, scan, chunk, low_watermark, chunk=chunk)
        self._scanned.directory(spark).discard(chunk)
        return found

    def end_scan(self, spark: SparkSession, records: int, low_watermark: datetime) -> None:
        """See Sink."""
        self._watermarks.add_scan(spark, records, low_watermark)

    def _append(
        self,
        changes: DataFrame,
        table: str,
        columns: Sequence[Column],
        application: str,
        version: int,
        low_watermark: datetime,
        *,
        chunk: int | None = None,
    ) -> None:
        """Add the changes of one table, which are there once however often it is tried."""
        kept_in = self._table(changes.sparkSession, table)
        kept_in.require(columns)
        try:
            rows = typed_changes(changes, table, columns, kept_in.shape)
            kept_in.append(rows.select("row.*"), application, version)
        except SPARK_ERRORS as error:
            if not is_bad_record(error):
                raise
            checked = typed_changes(changes, table, columns, kept_in.shape, is_checked=True)
            good = self._dead_letters.take(changes, table, checked, low_watermark, chunk=chunk)
            kept_in.append(good.select("row.*"), application, version)

    def _table(self, spark: SparkSession, table: str) -> ChangelogTable:
        if table not in self._tables:
            self._tables[table] = ChangelogTable(
                spark,
                f"{self._path}/{table}",
                table,
                self._format,
                properties=self._properties,
            )
        return self._tables[table]
