"""Mirrors: for each table of Spanner's one that is kept equal to it, all at one low watermark."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from multiprocessing.pool import ThreadPool
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark_sink.columns import Column
from spark_sink.compaction import Compaction
from spark_sink.dead_letters import SPARK_ERRORS, DeadLetters, is_bad_record
from spark_sink.filters import Filter
from spark_sink.mirror_table import MirrorTable
from spark_sink.newest_change import newest_changes, shapes, whole_rows
from spark_sink.own_tables import own_tables
from spark_sink.sink import EpochSummary
from spark_sink.staging import Staging
from spark_sink.table_format import TableFormat
from spark_sink.timestamps import rfc3339
from spark_sink.watermarks import Watermarks

# Tables that are merged at the same time.
_TABLES_AT_ONCE: Final = 4
_STATE_ALL_S: Final = 60.0


class Mirrors:
    """Merges epochs into one table for each of Spanner's: see Sink.

    Args:
        path: the directory that the tables' directories lie in, each under its full name.
        pipeline: the pipeline's name.
        table_format: of the mirrors.
        kept: which records are applied.
        keeps_deleted: deleted rows stay, marked.
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
        keeps_deleted: bool = False,
        properties: Mapping[str, str] | None = None,
        keeps_bad_records: bool = False,
        compact_every_s: float | None = None,
    ) -> None:
        self._path = path
        self._format = table_format
        self._compaction = Compaction(table_format, compact_every_s)
        self._dead_letters = DeadLetters(path, are_kept=keeps_bad_records)
        self._application = f"slackwater {pipeline}"
        self._keeps_deleted = keeps_deleted
        self._properties = dict(properties or {})
        self._staging = Staging(path, "parquet", kept)
        self._scanned = self._staging.for_scan()
        self._watermarks = Watermarks(path)
        self._scanned_tables: dict[str, Sequence[Column]] = {}
        self._tables: dict[str, MirrorTable] = {}
        self._stated_all_at = float("-inf")

    def last_low_watermark(self, spark: SparkSession) -> datetime | None:
        """See Sink."""
        return self._watermarks.last(spark)

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """See Sink."""
        return self._staging.stage(epoch, epoch_id)

    def publish(
        self, spark: SparkSession, epoch_id: int, summary: EpochSummary, low_watermark: datetime
    ) -> None:
        """See Sink; each table goes from one low watermark to the next at once.

        A crash may leave some tables ahead of the others, and the replay leaves those alone. What
        is true of all of them the watermarks say, and the tables' properties.
        """
        changed: set[str] = set()
        if summary.written:
            changes = self._staging.staged(spark, epoch_id)
            changed = self._merge(spark, changes, low_watermark)
        self._staging.directory(spark).discard(epoch_id)
        self._watermarks.add(spark, epoch_id, summary, low_watermark)
        self._state(spark, changed, low_watermark)
        if self._compaction.is_due:
            self._compaction.run(spark, [f"{self._path}/{name}" for name in self._known(spark)])

    def begin_scan(self, spark: SparkSession, tables: Mapping[str, Sequence[Column]]) -> None:
        """See Sink; tables without rows have a mirror, too."""
        self._scanned_tables = dict(tables)
        for table, columns in tables.items():
            self._mirror(spark, table).require(columns)

    def add_scanned(self, rows: DataFrame, chunk: int, low_watermark: datetime) -> int:
        """See Sink; a mirror is whole when the scan is, and states no low watermark before."""
        spark = rows.sparkSession
        found = self._scanned.stage(rows, chunk).records
        staged = self._scanned.staged(spark, chunk)
        scan = f"{self._application} scan {rfc3339(low_watermark)}"
        for row in staged.select("table_name").distinct().collect():
            table = row["table_name"]
            self._append(staged, table, scan, chunk, low_watermark)
        self._scanned.directory(spark).discard(chunk)
        return found

    def _append(
        self, staged: DataFrame, table: str, scan: str, chunk: int, low_watermark: datetime
    ) -> None:
        columns, mirror = self._scanned_tables[table], self._mirror(staged.sparkSession, table)
        try:
            rows = whole_rows(staged, table, columns)
            mirror.append(rows.select("row.*"), scan, chunk, low_watermark)
        except SPARK_ERRORS as error:
            if not is_bad_record(error):
                raise
            checked = whole_rows(staged, table, columns, is_checked=True)
            good = self._dead_letters.take(staged, table, checked, low_watermark, chunk=chunk)
            mirror.append(good.select("row.*"), scan, chunk, low_watermark)

    def end_scan(self, spark: SparkSession, records: int, low_watermark: datetime) -> None:
        """See Sink."""
        self._watermarks.add_scan(spark, records, low_watermark)
        self._state(spark, self._scanned_tables, low_watermark)

    def _merge(self, spark: SparkSession, changes: DataFrame, low_watermark: datetime) -> set[str]:
        """Bring the tables that an epoch changes to its low watermark; which those are."""
        found = shapes(changes)

        def merge(table: str, columns: Sequence[Column]) -> None:
            mirror = self._mirror(spark, table)
            mirror.require(columns)
            try:
                mirror.merge(newest_changes(changes, table, columns), columns)
            except SPARK_ERRORS as error:
                if not is_bad_record(error):
                    raise
                checked = newest_changes(changes, table, columns, is_checked=True)
                good = self._dead_letters.take(changes, table, checked, low_watermark)
                mirror.merge(good, columns)

        once = self._format.once(spark, self._application, low_watermark)
        with once, ThreadPool(_TABLES_AT_ONCE) as pool:
            pool.starmap(merge, found.items())
        return set(found)

    def _state(self, spark: SparkSession, changed: Collection[str], watermark: datetime) -> None:
        """Let the tables say their low watermark.

        A commit is much for a table that the epoch did not change: that one says it now and then,
        and until then an earlier one, at which it was the same.
        """
        now = time.monotonic()
        if now - self._stated_all_at >= _STATE_ALL_S:
            self._stated_all_at = now
            changed = self._known(spark)
        with ThreadPool(_TABLES_AT_ONCE) as pool:
            pool.map(lambda table: self._mirror(spark, table).state(watermark), changed)

    def _known(self, spark: SparkSession) -> list[str]:
        return own_tables(spark, self._format, self._path, self._staging.directory(spark))

    def _mirror(self, spark: SparkSession, table: str) -> MirrorTable:
        if table not in self._tables:
            self._tables[table] = MirrorTable(
                spark,
                f"{self._path}/{table}",
                table,
                self._format,
                keeps_deleted=self._keeps_deleted,
                properties=self._properties,
            )
        return self._tables[table]
