"""The rescan of tables while the changes go on: a chunk after each epoch, at its low watermark.

Nothing runs beside the epochs. When an epoch is visible, the output has all changes up to its low
watermark and none later. Spanner can read a table as it stood at that time. So the rows of a range
of keys are compared with the output at the same cut, and no change can come in between. A
changelog is given the rows as records of that time.
"""

import shlex
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import structlog
from pyspark.sql import SparkSession

from slackwater.config.filters import filter_of, tables_to_read
from slackwater.config.settings import Settings
from slackwater.errors import RescansLeftError
from slackwater.pipeline.epochs.chunk_size import FIRST_ROWS, next_rows
from slackwater.pipeline.epochs.new_tables import NewTables
from slackwater.pipeline.failures import delay_s, diagnose
from slackwater.pipeline.lease_holder import LeaseHolder
from slackwater.pipeline.source import SourceHandle
from slackwater.pipeline.table_chunk import chunk_of, key_from_json, key_to_json
from slackwater.reader.database.key_range_read import (
    KeyRangeRows,
    ReadLimits,
    read_key_range,
    read_whole_range,
)
from slackwater.reader.database.schema_at import VERSIONS_KEPT_NS
from slackwater.reader.database.watched_tables import Table, watched_tables
from slackwater.reader.decode.arrow import data_columns, to_record_batch
from slackwater.reader.errors import ReaderError
from slackwater.spark_sink.errors import SinkError
from slackwater.spark_sink.output.dead_letters import spark_errors
from slackwater.spark_sink.sink import ChunkResult, Rescannable, Sink
from slackwater.spark_sink.sql.columns import columns_from_schema
from slackwater.state.errors import LeaseLostError, StateError
from slackwater.state.models import Plan
from slackwater.state.rescan_models import OTHER_TABLE, Rescan, RescanState
from slackwater.state.rescans import record_rescan, request_rescans, rescans
from slackwater.state.store import Store
from slackwater.timestamp import floor_to_us, format_rfc3339, ns_to_datetime

_log = structlog.get_logger("slackwater.pipeline.epochs.rescanner")

_BYTES_MAX: Final = 8 << 20
_READ_S_MAX: Final = 0.5
_LOG_EVERY_S: Final = 30.0
# At tables that are new, for changelogs.
_LOOK_EVERY_S: Final = 1.0


class Rescanner:
    """The rescanner of one pipeline, which reads a chunk of one table after each epoch.

    Args:
        spark: a session.
        settings: the pipeline's.
        source: its change stream.
        store: the metadata store.
        lease: the pipeline's.
        sink: takes the chunks.
        caught_up_at_ns: the run ends at this low watermark, when everything has been read again;
            None for a run that goes on. From there on a failure is the run's.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        source: SourceHandle,
        store: Store,
        lease: LeaseHolder,
        sink: Sink,
        caught_up_at_ns: int | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._source = source
        self._store = store
        self._sink = sink
        self._generation = lease.generation
        self._caught_up_at_ns = caught_up_at_ns
        self._new_tables: NewTables | None = None
        if settings.new_tables == "scan":
            # The last epoch of a run is inspected, too.
            is_live = not isinstance(sink, Rescannable) and caught_up_at_ns is None
            every_s = _LOOK_EVERY_S if is_live else 0.0
            self._new_tables = NewTables(
                settings.pipeline, self._tables_at, store, lease.generation, every_s=every_s
            )
        self._last_tables: tuple[int | None, Sequence[Table]] = (None, ())
        self._listed: list[Rescan] | None = None
        self._reassigned: Mapping[str, int] = {}
        self._is_unchanged = False
        # The low watermark of the last chunk of any table.
        self._last_at_ns = 0
        self._rows_max = FIRST_ROWS
        self._warm_up: threading.Thread | None = None
        self._failures = 0
        self._not_before_s = float("-inf")
        self._logged_s = float("-inf")

    def note_schema(self, reassigned: Mapping[str, int], *, is_unchanged: bool) -> None:
        """Make the next inspection request tables that have others' names; see NoteSchema."""
        self._reassigned, self._is_unchanged = reassigned, is_unchanged

    def inspect(self, plan: Plan) -> None:
        """Request new tables, whose output is not complete before they have been read.

        Raises:
            LeaseLostError: another process owns the pipeline.
            StateError: the store can't be reached.
            ReaderError: Spanner can't be read.
        """
        new = []
        if self._new_tables is not None:
            new = self._new_tables.request_new(plan.end_ns, is_unchanged=self._is_unchanged)
        if self._reassigned:
            self._request_reassigned(plan.end_ns, {one.table for one in new})
        if new or self._listed is None:
            self._listed = self._read_requests()
        lacking = frozenset(rescan.table for rescan in self._listed if rescan.lacks_rows)
        if isinstance(self._sink, Rescannable):
            self._sink.leave_unpublished(lacking)

    def _request_reassigned(self, end_ns: int, new: Collection[str]) -> None:
        """Request tables that have others' names now, unless a replayed epoch has done so."""
        reassigned = {name: at_ns for name, at_ns in self._reassigned.items() if name not in new}
        self._reassigned = {}
        try:
            tables = self._tables_at(end_ns)
        except ReaderError:
            # The versions of that time are gone; until they are there again, nothing is read.
            tables = self._tables_at(None)
        pipeline = self._settings.pipeline
        requested_ns = {
            one.table: one.requested_at_ns
            for one in rescans(self._store, pipeline)
            if one.reason == OTHER_TABLE
        }
        requests = [
            Rescan(pipeline, table.name, reassigned[table.name], OTHER_TABLE)
            for table in tables
            if reassigned.get(table.name) != requested_ns.get(table.name)
            and table.name in reassigned
        ]
        if requests:
            request_rescans(self._store, requests, generation=self._generation)
            self._listed = None
        for one in requests:
            at = format_rfc3339(one.requested_at_ns)
            _log.warning(
                "a table is new under its name, and is read from its beginning",
                pipeline=pipeline,
                table=one.table,
                since=at,
            )

    def published(self, end_ns: int) -> None:
        """Read the next chunk at the low watermark of an epoch that has become visible.

        A failure is logged, and the chunk is read after a later epoch; if the run has nothing else
        left to do, it is the run's.

        Raises:
            LeaseLostError: another process owns the pipeline.
            ReaderError, SinkError, StateError: the chunk can't be read, and the run waits for it.
        """
        if time.monotonic() < self._not_before_s:
            return
        try:
            self._read_chunk(end_ns)
            self._failures = 0
        except LeaseLostError:
            raise
        except (ReaderError, SinkError, StateError, *spark_errors()) as error:
            self._failures += 1
            seconds = delay_s(self._failures)
            self._not_before_s = time.monotonic() + seconds
            _log.warning(
                "a chunk of a rescan failed, will try again",
                pipeline=self._settings.pipeline,
                seconds=seconds,
                error=diagnose(error).text,
            )
            if self._caught_up_at_ns is not None and end_ns >= self._caught_up_at_ns:
                raise

    def _read_chunk(self, end_ns: int) -> None:
        self._listed = self._read_requests()
        rescan = next((one for one in self._listed if one.state is RescanState.RUNNING), None)
        if rescan is None:
            return
        self._listed = None
        if isinstance(self._sink, Rescannable) and not self._is_warm(self._sink, rescan):
            return
        begun_s = time.monotonic()
        if isinstance(self._sink, Rescannable):
            self._compare(self._sink, rescan, end_ns)
        else:
            self._append(rescan, end_ns)
        self._rows_max = next_rows(self._rows_max, time.monotonic() - begun_s)

    def _is_warm(self, sink: Rescannable, rescan: Rescan) -> bool:
        """Warm up the sink beside the epochs; return whether that is done.

        A process's first chunk would make its epoch some seconds longer.
        """
        if self._warm_up is None:
            self._warm_up = threading.Thread(
                target=sink.warm_up,
                args=(self._spark, rescan.table),
                name="rescan-warm-up",
                daemon=True,
            )
            self._warm_up.start()
        return not self._warm_up.is_alive()

    def _compare(self, sink: Rescannable, rescan: Rescan, end_ns: int) -> None:
        """Compare the next chunk with the rows of a sink that keeps rows."""
        table = self._table(rescan, end_ns)
        if table is None:
            return
        after, rows = self._read(rescan, table, end_ns)
        result = sink.take_chunk(self._spark, chunk_of(table, after, rows, end_ns))
        after_it = after_chunk(rescan, rows, result, end_ns)
        if after_it.state is RescanState.DONE and rescan.lacks_rows:
            # Before the request is done: a run that dies here, or ends, leaves no mirror without.
            sink.publish_complete(self._spark, table.name, ns_to_datetime(end_ns))
        self._record(after_it)

    def _append(self, rescan: Rescan, end_ns: int) -> None:
        """Write the next chunk to a sink of changes, once.

        The chunk's range is recorded before: after a kill it is read again as it was, and the sink
        recognizes it by its low watermark and number.
        """
        if rescan.pending_at_ns and end_ns - rescan.pending_at_ns > VERSIONS_KEPT_NS:
            # It can't be read again as it was.
            _log.warning("some rows of a rescan may have landed twice", table=rescan.table)
            rescan = replace(rescan, pending_at_ns=None, pending_key=None)
        if rescan.pending_at_ns is None and end_ns <= self._last_at_ns:
            # The epoch is replayed, and the sink would take the chunk for the one that it has.
            return
        table = self._table(rescan, rescan.pending_at_ns or end_ns)
        if table is None:
            return
        _, rows = self._read(rescan, table, end_ns)
        if rescan.pending_at_ns is None:
            rescan = replace(rescan, pending_at_ns=end_ns, pending_key=key_to_json(rows.last_key))
            if not record_rescan(self._store, rescan, generation=self._generation):
                return
        at_ns = rescan.pending_at_ns or end_ns
        if rows.rows:
            columns = columns_from_schema(table.columns, table.key)
            self._sink.begin_scan(self._spark, {table.name: columns})
            records = rows.records(table, floor_to_us(at_ns))
            batch = to_record_batch(
                data_columns(records), [("", len(records))], low_watermark_ns=at_ns
            )
            frame = self._spark.createDataFrame(pa.Table.from_batches([batch]))
            self._sink.add_scanned(frame, rescan.chunks, ns_to_datetime(at_ns))
        result = ChunkResult(is_done=True, corrected=0)
        self._record(after_chunk(rescan, rows, result, at_ns))

    def _read(
        self, rescan: Rescan, table: Table, end_ns: int
    ) -> tuple[Sequence[Any] | None, KeyRangeRows]:
        """Return the key behind which the next chunk begins, and its rows."""
        connection = self._source.connection
        after = key_from_json(rescan.after_key)
        if rescan.pending_at_ns is None:
            limits = ReadLimits(self._rows_max, _BYTES_MAX, _READ_S_MAX)
            return after, read_key_range(connection, table, after, floor_to_us(end_ns), limits)
        through = key_from_json(rescan.pending_key)
        at_ns = floor_to_us(rescan.pending_at_ns)
        return after, read_whole_range(connection, table, after, through, at_ns)

    def _read_requests(self) -> list[Rescan]:
        listed = rescans(self._store, self._settings.pipeline)
        self._last_at_ns = max((one.last_at_ns for one in listed), default=0)
        return listed

    def _table(self, rescan: Rescan, at_ns: int) -> Table | None:
        """Return a table as it was at a time; if the pipeline did not read it, end the rescan."""
        for table in self._tables_at(at_ns):
            if table.name == rescan.table:
                return table
        self._record(replace(rescan, state=RescanState.FAILED, at_ns=at_ns))
        return None

    def _tables_at(self, at_ns: int | None) -> Sequence[Table]:
        """Return the tables that the pipeline reads, as they were at a time; None for now.

        The poll for new tables and the chunk after it ask for the same time.

        Raises:
            ReaderError: Spanner can't be read, or no longer keeps that time's version.
        """
        at_us_ns = None if at_ns is None else floor_to_us(at_ns)
        if at_us_ns is None or self._last_tables[0] != at_us_ns:
            connection, dialect = self._source.connection, self._source.description.dialect
            watched = watched_tables(connection, dialect, at_us_ns)
            self._last_tables = (at_us_ns, tables_to_read(watched, filter_of(self._settings)))
        return self._last_tables[1]

    def _record(self, rescan: Rescan) -> None:
        if not record_rescan(self._store, rescan, generation=self._generation):
            # Stopped, or requested again meanwhile.
            return
        now_s = time.monotonic()
        if rescan.state is RescanState.RUNNING and now_s - self._logged_s < _LOG_EVERY_S:
            return
        self._logged_s = now_s
        log = _log.error if rescan.state is RescanState.FAILED else _log.info
        log(
            _TEXTS[rescan.state],
            pipeline=rescan.pipeline,
            table=rescan.table,
            at=None if rescan.at_ns is None else format_rfc3339(rescan.at_ns),
            records=rescan.records,
            corrected=rescan.corrected,
        )


_TEXTS: Final = {
    RescanState.RUNNING: "rescanning",
    RescanState.DONE: "rescan is complete",
    RescanState.FAILED: "rescan failed: the pipeline does not read this table",
}


def refuse_rescans_left(settings: Settings, store: Store, stop: str) -> None:
    """Refuse to call a pipeline done that has ended before tables were read again.

    Args:
        settings: the pipeline's.
        store: the metadata store.
        stop: the command line that gives rescans up, but for the tables.

    Raises:
        RescansLeftError: no epoch follows, between which they would be.
        StateError: the store can't be reached.
    """
    unfinished = [one.table for one in rescans(store, settings.pipeline, [RescanState.RUNNING])]
    if not unfinished:
        return
    key = "source.end" if settings.initial_scan != "only" else "source.initial_scan: only"
    options = " ".join(f"--table {shlex.quote(name)}" for name in unfinished)
    raise RescansLeftError(
        f"pipeline {settings.pipeline!r} has ended, by {key}, and these tables were not read again"
        f" to their end: {', '.join(unfinished)}.",
        f"Take {key} out and run it again, or give them up: `{stop} {options}`",
    )


def after_chunk(rescan: Rescan, rows: KeyRangeRows, result: ChunkResult, at_ns: int) -> Rescan:
    """Return a request after one more chunk.

    Args:
        rescan: as it was before.
        rows: the chunk's.
        result: of the chunk.
        at_ns: its low watermark.
    """
    corrected = rescan.corrected + result.corrected
    if not result.is_done:
        return replace(rescan, corrected=corrected, at_ns=at_ns)
    return replace(
        rescan,
        state=RescanState.DONE if rows.last_key is None else RescanState.RUNNING,
        after_key=key_to_json(rows.last_key),
        records=rescan.records + len(rows.rows),
        corrected=corrected,
        chunks=rescan.chunks + 1,
        at_ns=at_ns,
        pending_at_ns=None,
        pending_key=None,
    )
