"""The sink mirror: tables kept equal to Spanner's, all at one low watermark."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal, Self

from pydantic import model_validator

from slackwater.setting_values import Duration
from slackwater.spark_sink.envelopes.envelope import Origin
from slackwater.spark_sink.errors import PartialRowError
from slackwater.spark_sink.filters.globs import joined
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.formats import BIGQUERY
from slackwater.spark_sink.output.delta.features import CHANGE_DATA_FEED
from slackwater.spark_sink.output.maintenance import NO_MAINTENANCE, MaintenancePolicy
from slackwater.spark_sink.sink import Chunk, ChunkResult, EpochSummary, RecreatedTables
from slackwater.spark_sink.sinks.former_rows import (
    DeletePolicy,
    former_columns,
    recreated_error,
    renew,
    without_former,
)
from slackwater.spark_sink.sinks.managed_tables import ManagedTables, ManagedTableSettings
from slackwater.spark_sink.sinks.mirror_epoch import MirrorEpoch
from slackwater.spark_sink.sql.columns import Column, mirror_columns
from slackwater.spark_sink.sql.latest_changes import columns_by_table
from slackwater.spark_sink.sql.rebuild_view import WHOLE_ROW_CAPTURE_TYPES
from slackwater.spark_sink.tables.cut import Cut, TableVersion, incomplete_error, low_watermark_at
from slackwater.spark_sink.tables.in_bigquery.mirroring import (
    Consistency,
    Mirroring,
    require_primary_key,
)
from slackwater.spark_sink.tables.mirror_table import MirrorTable, read_mirror, require_own_names
from slackwater.spark_sink.tables.table_changes import MergeId
from slackwater.spark_sink.tables.table_store import TableStore
from slackwater.timestamp import datetime_to_rfc3339

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.output.epoch_place import EpochPlace
    from slackwater.spark_sink.tables.rescans.mirror_corrections import MirrorCorrections
    from slackwater.spark_sink.tables.row_merges.corrections import Corrections
    from slackwater.spark_sink.tables.row_merges.small_epoch import SmallEpoch

_log = logging.getLogger(__name__)

_APPLIED: Final = DeletePolicy()
_PUBLISH_ALL_EVERY_S: Final = 60.0


class MirrorSettings(ManagedTableSettings):
    """The settings of mirrors.

    Attributes:
        deletes: apply deletes to the rows, or mark the rows as deleted.
        when_recreated: delete the rows of a table that was dropped and made again, or stop.
        consistency: in BigQuery, change all mirrors by one transaction, or each table by itself.
        max_staleness: milliseconds by which queries may be behind, in BigQuery; None to leave it.
    """

    refused_keys: ClassVar = {"envelope": "mirrors have rows: leave envelope out"}
    has_initial_scan = True
    are_streamed = False
    has_rescans = True
    needs_all_changes = True

    kind: str = "mirror"
    deletes: Literal["apply", "mark"] = "apply"
    when_recreated: Literal["clear", "stop"] = "clear"
    consistency: Consistency = "transaction"
    max_staleness: Annotated[int, Duration(1_000)] | None = None

    def check_capture_type(self, capture_type: str) -> None:
        """Refuse parts of rows where whole ones are replaced; see SinkSettings."""
        if self.consistency == "table" and capture_type not in WHOLE_ROW_CAPTURE_TYPES:
            raise PartialRowError(
                f"changes of value capture type {capture_type} have parts of rows, and consistency:"
                " table replaces whole rows.",
                "Let the change stream capture them (value_capture_type = 'NEW_ROW'), or set"
                " sink.consistency to transaction",
            )

    def check_tables(self, tables: Mapping[str, Sequence[Column]]) -> None:
        """Refuse also columns whose names mirrors need, and keys; see ManagedTableSettings.

        Raises:
            BigQueryError: a key can't be that of a mirror with consistency: table.
        """
        super().check_tables(tables)
        for name, columns in tables.items():
            require_own_names(name, mirror_columns(columns), keeps_deleted=self.deletes == "mark")
            if self.consistency == "table":
                key = [column for column in mirror_columns(columns) if column.is_key]
                require_primary_key(name, {column.name: column.spark_type for column in key})

    @model_validator(mode="after")
    def _consistency(self) -> Self:
        if self.consistency == "table" and (self.format != BIGQUERY or self.deletes == "mark"):
            raise ValueError("consistency: table goes with format bigquery and deletes: apply only")
        if self.max_staleness is not None and self.consistency != "table":
            raise ValueError("max_staleness goes with consistency: table only")
        return self

    @property
    def mirroring(self) -> Mirroring:
        """The way to change them; see ManagedTableSettings."""
        return Mirroring(self.consistency, self.max_staleness)

    @model_validator(mode="after")
    def _change_data_feed_without_marks(self) -> Self:
        is_asked = self.table_properties.get(CHANGE_DATA_FEED, "false").lower() == "true"
        if is_asked and self.deletes == "mark":
            raise ValueError(
                f"{CHANGE_DATA_FEED}: with deletes: mark a mirror has a column _commit_timestamp,"
                " as Delta's change data feed has; leave one of them out"
            )
        return self

    def make_sink(self, origin: Origin, record_filter: RecordFilter) -> Mirrors:
        """Return the sink; see SinkSettings."""
        return Mirrors(
            self.make_place(),
            origin.pipeline,
            self.tables(origin.pipeline),
            record_filter,
            DeletePolicy(self.deletes == "mark", self.when_recreated == "clear"),
            properties=self.table_properties,
            keeps_bad_records=self.sets_bad_records_aside,
            policy=self.maintenance_policy,
        )


class Mirrors(ManagedTables[MirrorTable]):
    """A sink that merges each epoch into the mirrors of the tables that it changes.

    Args:
        delete_policy: the treatment of rows that the table no longer has.
        The others: see ManagedTables.
    """

    # A table refuses a merge for a low watermark that it has, or for an earlier one.
    holds_small = True

    def __init__(
        self,
        place: EpochPlace,
        pipeline: str,
        tables: TableStore,
        record_filter: RecordFilter | None = None,
        delete_policy: DeletePolicy = _APPLIED,
        *,
        properties: Mapping[str, str] | None = None,
        keeps_bad_records: bool = False,
        policy: MaintenancePolicy = NO_MAINTENANCE,
    ) -> None:
        super().__init__(
            place,
            pipeline,
            tables,
            record_filter,
            properties=properties,
            keeps_bad_records=keeps_bad_records,
            policy=policy,
        )
        self._delete_policy = delete_policy
        self._recreated = RecreatedTables()
        self._corrections: MirrorCorrections | None = None
        self._unpublished: frozenset[str] = frozenset()
        self._all_published_at = float("-inf")

    def publish(
        self, spark: SparkSession, epoch_id: int, summary: EpochSummary, low_watermark: datetime
    ) -> None:
        """Merge a staged epoch, with one commit for each table; see Sink.

        A crash may leave some tables ahead of others; the replay leaves those alone. The watermark
        log and the tables' properties say up to when all of them are complete.

        Raises:
            TableRecreatedError: a table was made again, and its mirror is not to be cleared.
        """
        recreated = self._own_recreated(spark)
        changes = cache(partial(self._staging.read_staged, spark, epoch_id))
        small = None if recreated.tables or recreated.columns else self._small(epoch_id, summary)
        changed = self._merge(
            spark, changes if summary.written else None, small, recreated, low_watermark
        )
        self._staging.discard(epoch_id)
        self._watermarks.add(epoch_id, summary, low_watermark, self._unpublished)
        # The first epoch of a new checkpoint has no changes, and the output's low watermark. Some
        # mirrors may have merged the next epoch already, which the former owner did not finish.
        is_first = epoch_id == 0 and not summary.written
        last = self._watermarks.last()
        # Otherwise another process owns the pipeline, and has published a later one.
        if not is_first and (last is None or last.low_watermark <= low_watermark):
            self._publish_watermark(spark, changed, low_watermark)
        self._begin_maintenance(spark)

    def as_of(self, spark: SparkSession, time: datetime | None, names: Sequence[str] = ()) -> Cut:
        """Return the version of each mirror at the newest low watermark at or before a time.

        It reads only, and the pipeline may run meanwhile.

        Args:
            spark: a session with the format's jar.
            time: None for the latest low watermark.
            names: globs of full table names; without any, all tables.

        Raises:
            AsOfTimeError: no low watermark is at or before the time, another pipeline has written
                the one that is, commits of that time were removed, or a table lacks rows.
        """
        logged = low_watermark_at(self._watermarks, time)
        low_watermark = logged.low_watermark

        def version_of(table: str) -> TableVersion:
            path, tables = self._place(table), self._format
            version = tables.version_at(spark, path, self._application, low_watermark)
            settings = tables.session_settings(path)
            return TableVersion(
                table,
                tables.name(path),
                version,
                settings,
                tables.version_clause,
                tables.quoted,
                tables.view_statement,
            )

        wanted = re.compile(joined(names) or ".*", re.DOTALL)
        existing = sorted(filter(wanted.fullmatch, self._existing_tables(spark)))
        for name in logged.incomplete.intersection(existing):
            # It may have become complete after the epoch.
            if not self._table(spark, name).states_low_watermark(low_watermark):
                raise incomplete_error(name, low_watermark)
        return Cut(low_watermark, tuple(self._at_once(version_of, [(name,) for name in existing])))

    def warm_up(self, spark: SparkSession, table: str) -> None:
        """Have Spark read a row of a mirror: the driver merges small epochs without it."""
        if self._format.has_one_log:
            # Spark does not read it.
            return
        try:
            path, are_kept = self._place(table), self._delete_policy.are_kept
            stated = read_mirror(spark, path, self._format, keeps_deleted=are_kept)
            if stated is not None:
                stated[0].limit(1).toArrow()
        except Exception as error:  # noqa: BLE001 - the first chunk says what is wrong
            _log.debug("can't warm up: %s", error)

    def take_chunk(self, spark: SparkSession, chunk: Chunk) -> ChunkResult:
        """Compare a chunk with its mirror, and correct rows with the next epoch; see Rescannable.

        The chunk is done when nothing differs any more.
        """
        from slackwater.spark_sink.tables.rescans.mirror_corrections import MirrorCorrections

        if self._corrections is None:
            self._corrections = MirrorCorrections()
        return self._corrections.compare(self._table(spark, chunk.table), chunk)

    def leave_unpublished(self, tables: frozenset[str]) -> None:
        """Publish no low watermark of tables that are not complete; see Rescannable."""
        self._unpublished = tables

    def publish_complete(self, spark: SparkSession, table: str, low_watermark: datetime) -> None:
        """Publish the low watermark of a table that is complete now; see Rescannable."""
        merge_id = MergeId(self._application, low_watermark)
        self._access(spark, table).publish_watermark(merge_id)

    def drop_recreated(self, recreated: RecreatedTables) -> None:
        """Have the next epoch drop the rows and values of former tables; see CurrentRows."""
        self._recreated = recreated

    def begin_scan(self, spark: SparkSession, tables: Mapping[str, Sequence[Column]]) -> None:
        """Create all mirrors; see Sink."""
        super().begin_scan(
            spark, {table: mirror_columns(columns) for table, columns in tables.items()}
        )

    def end_scan(self, spark: SparkSession, records: int, low_watermark: datetime) -> None:
        """Publish the mirrors' first low watermark: they are complete now. See Sink."""
        self._all_published_at = float("-inf")
        self._publish_watermark(spark, self._scanned_tables, low_watermark)
        super().end_scan(spark, records, low_watermark)

    def _small(self, epoch_id: int, summary: EpochSummary) -> SmallEpoch | None:
        """Return a staged epoch that the driver folds; None for one that Spark has to."""
        from slackwater.spark_sink.tables.row_merges.small_epoch import SmallEpoch

        records = self._read_small(epoch_id, summary, SmallEpoch.columns_read())
        return None if records is None else SmallEpoch(records)

    def _merge(
        self,
        spark: SparkSession,
        staged: Callable[[], DataFrame] | None,
        small: SmallEpoch | None,
        recreated: RecreatedTables,
        watermark: datetime,
    ) -> set[str]:
        """Bring the tables that an epoch changes to its low watermark, and return their names."""
        cleared = self._cleared(spark, recreated, watermark)
        changes = None if staged is None else lambda: without_former(staged(), cleared)
        if small is not None:
            present = small.columns_by_table()
        else:
            present = {} if changes is None else columns_by_table(changes())
        renewed = self._renewed(spark, recreated)
        changed = {
            table: mirror_columns(renew(columns, renewed.get(table, ())))
            for table, columns in present.items()
        }
        unchanged = {
            table: renewed.get(table, ()) for table in {*cleared, *renewed} - changed.keys()
        }
        fixes = self._take_corrections(changed, {*cleared, *renewed}, watermark)
        changed |= {table: tuple(fix.columns) for table, fix in fixes.items()}
        epoch = MirrorEpoch(
            changes=changes,
            small=small,
            present=present.keys(),
            cleared=cleared,
            unchanged=unchanged.keys(),
            corrections=fixes,
            merge_id=MergeId(self._application, watermark),
        )

        def ensure_columns(table: str, columns: Sequence[Column]) -> None:
            self._table(spark, table).ensure_columns(columns)

        def merge(table: str, columns: Sequence[Column]) -> None:
            epoch.merge(self._table(spark, table), columns, self._dead_letters)

        # A table that is written again for a new type must not count as the epoch's MERGE.
        self._at_once(ensure_columns, changed.items())
        with self._format.at_once(watermark, incomplete=self._unpublished):
            self._at_once(merge, {**changed, **unchanged}.items())
        return {*changed, *unchanged}

    def _take_corrections(
        self,
        changed: Mapping[str, Sequence[Column]],
        others: Collection[str],
        watermark: datetime,
    ) -> Mapping[str, Corrections]:
        """Return the corrections of a rescan; empty without one, and nothing is loaded for it."""
        if self._corrections is None:
            return {}
        return self._corrections.pop_for_epoch(changed, others, watermark)

    def _own_recreated(self, spark: SparkSession) -> RecreatedTables:
        """Return, and forget, what was made again and has a mirror of this pipeline's.

        A database may have another's table of the name.
        """
        recreated, self._recreated = self._recreated, RecreatedTables()
        if not (recreated.tables or recreated.columns):
            return recreated
        existing = set(self._existing_tables(spark))
        tables, columns = recreated.tables.items(), recreated.columns.items()
        return RecreatedTables(
            {table: at for table, at in tables if table in existing},
            {column: at for column, at in columns if column[0] in existing},
        )

    def _cleared(
        self, spark: SparkSession, recreated: RecreatedTables, watermark: datetime
    ) -> dict[str, datetime]:
        """Return the tables whose mirrors hold rows of a former table, and until when."""
        cleared = dict(recreated.tables)
        if not self._delete_policy.are_cleared:
            for table, at in cleared.items():
                # Otherwise it was created in this epoch, and the epoch is replayed.
                if self._table(spark, table).is_published_before(watermark):
                    raise recreated_error(table, at)
        for table, at in cleared.items():
            _log.warning(
                "table %s is another one since %s: its mirror drops the rows of the former table",
                table,
                datetime_to_rfc3339(at),
            )
        return cleared

    def _renewed(self, spark: SparkSession, recreated: RecreatedTables) -> dict[str, list[Column]]:
        """Return the columns in mirrors that hold values of a former column, by table."""
        renewed = {
            table: former_columns(self._table(spark, table).columns(), table, recreated)
            for table in {table for table, _ in recreated.columns}
        }
        return {table: columns for table, columns in renewed.items() if columns}

    def _publish_watermark(
        self, spark: SparkSession, changed: Collection[str], watermark: datetime
    ) -> None:
        """Write the low watermark to the tables' properties.

        A commit is expensive for a table that the epoch did not change. Such a table gets it once a
        minute; until then it has an earlier one, at which it was the same.
        """
        now = time.monotonic()
        is_due = now - self._all_published_at >= _PUBLISH_ALL_EVERY_S
        if self._format.has_one_log:
            with self._format.at_once(watermark, is_stated=is_due, incomplete=self._unpublished):
                pass
        else:
            if is_due:
                changed = self._existing_tables(spark)
            merge_id = MergeId(self._application, watermark)
            with self._format.at_once(watermark):
                self._at_once(
                    lambda table: self._access(spark, table).publish_watermark(merge_id),
                    [(table,) for table in changed if table not in self._unpublished],
                )
        # Not before: it may have failed, and is tried again.
        if is_due:
            self._all_published_at = now

    def _make(self, spark: SparkSession, path: str, table: str) -> MirrorTable:
        return MirrorTable(
            spark,
            path,
            table,
            self._format,
            self._access(spark, table),
            keeps_deleted=self._delete_policy.are_kept,
            properties=self._properties,
        )
