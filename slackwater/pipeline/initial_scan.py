"""The initial scan: every row as it stood at one time, before the changes after it.

Spanner divides the read of each table into parts, whose tokens outlive this process. The metadata
store records which parts are in the output: a scan that was killed resumes with its next chunk of
parts.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Final, TypeVar

import structlog
from pyspark.sql import SparkSession

from slackwater.config.filters import filter_of, tables_to_read
from slackwater.config.settings import Settings
from slackwater.pipeline.catch_up import readable_duration
from slackwater.pipeline.failures import diagnose
from slackwater.pipeline.lease_holder import LeaseHolder
from slackwater.pipeline.observer import Observer
from slackwater.pipeline.progress import Progress
from slackwater.pipeline.retries import Retries
from slackwater.pipeline.source import SourceHandle
from slackwater.pipeline.spark.session import register_source
from slackwater.pipeline.spark.task_writing import TaskWritingScanSource, task_writer_options
from slackwater.pipeline.transitions import Action, may_begin
from slackwater.reader.database.snapshot_read import select
from slackwater.reader.database.watched_tables import watched_tables
from slackwater.reader.errors import ReaderError, ReadTooOldError
from slackwater.reader.transport.connection import PartitionedRead
from slackwater.scheduler.spark.scan_options import ScanOptions
from slackwater.scheduler.spark.scan_reader import tables_from_json, tables_to_json
from slackwater.scheduler.spark.scan_source import FORMAT
from slackwater.scheduler.start_position import first_watermark_ns
from slackwater.spark_sink.errors import SinkError
from slackwater.spark_sink.output.dead_letters import spark_errors
from slackwater.spark_sink.sink import Sink
from slackwater.spark_sink.sql.columns import Column, columns_from_schema
from slackwater.state.errors import LeaseLostError, StateError
from slackwater.state.models import Scan, ScanPart
from slackwater.state.scans import (
    begin_scan,
    finish_chunk,
    finish_scan,
    read_scan,
    refuse_incomplete,
)
from slackwater.state.store import Store
from slackwater.timestamp import (
    NANOSECONDS_PER_MICROSECOND,
    floor_to_us,
    format_rfc3339,
    ns_to_datetime,
)

T = TypeVar("T")
_log = structlog.get_logger("slackwater.pipeline.initial_scan")

# Parts of a chunk, for each task that runs at once: a kill costs no more than the chunk.
_PARTS_A_TASK: Final = 4
_BEGIN_AGAIN: Final = (
    "The database's version_retention_period has passed: begin the initial scan again with another"
    " pipeline name, path and checkpoint"
)


class _InterruptedError(Exception):
    """The scan stops at this point, because another action is due."""

    def __init__(self, action: Action) -> None:
        super().__init__(action.name)
        self.action = action


class InitialScan:
    """The initial scan of a pipeline's tables into its sink.

    Args:
        spark: a session.
        settings: the pipeline's.
        source: its change stream.
        store: the metadata store.
        sink: the pipeline's.
        lease: the pipeline's.
        observer: is told the progress after each chunk.
        retries: handles a failure; when its pipeline is not to run, the running chunk is finished
            first.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        source: SourceHandle,
        store: Store,
        sink: Sink,
        lease: LeaseHolder,
        observer: Observer,
        retries: Retries,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._source = source
        self._store = store
        self._sink = sink
        self._lease = lease
        self._observer = observer
        self._retries = retries
        self._lifecycle = retries.lifecycle

    def run(self) -> Action | None:
        """Begin the scan or continue it; return what to do instead, or None when it is complete.

        Raises:
            PipelineFailedError: it was given up; what was scanned is kept.
            LeaseLostError: another process took the pipeline over.
        """
        try:
            self._run()
        except _InterruptedError as interruption:
            return interruption.action
        return None

    def _run(self) -> None:
        scan, parts = self._retried(self._begun)
        if scan.is_done:
            return
        register_source(self._spark, TaskWritingScanSource)
        tables = tables_from_json(scan.tables)
        columns = {name: columns_from_schema(t.columns, t.key) for name, t in tables.items()}
        self._retried(partial(self._prepare, columns))
        undone = [part for part in parts if not part.is_done]
        begun_s, before = time.monotonic(), len(parts) - len(undone)
        done = before
        for chunk, grouped in groupby(undone, lambda part: part.chunk):
            of_chunk = list(grouped)
            records = self._retried(partial(self._add, scan, chunk, of_chunk), _BEGIN_AGAIN)
            done += len(of_chunk)
            progress = Progress(len(parts), done, before, time.monotonic() - begun_s)
            self._observer.scanned(scan.pipeline, progress)
            _log.info(
                "scanned",
                pipeline=scan.pipeline,
                parts=len(of_chunk),
                records=records,
                percent=progress.percent,
                time_left=None
                if progress.remaining_s is None
                else readable_duration(progress.remaining_s),
            )
        self._retried(partial(self._end, scan))

    def _prepare(self, columns: Mapping[str, Sequence[Column]]) -> None:
        try:
            self._sink.begin_scan(self._spark, columns)
        except SinkError:
            # This attempt, whose answer was lost, or a former owner may have created a table.
            self._sink.position(self._spark)
            raise

    def _begun(self) -> tuple[Scan, list[ScanPart]]:
        if begun := read_scan(self._store, self._settings.pipeline):
            return begun
        scan, parts = self._cut()
        self._lease.check()
        begin_scan(self._store, scan, parts)
        _log.info(
            "initial scan",
            pipeline=scan.pipeline,
            at=format_rfc3339(scan.at_ns),
            tables=len(tables_from_json(scan.tables)),
            parts=len(parts),
        )
        return scan, parts

    def _cut(self) -> tuple[Scan, list[ScanPart]]:
        """Return a new scan, with its time, and Spanner's parts of each table."""
        connection, description = self._source.connection, self._source.description
        # As of the start itself: the stream may have been created just then.
        at_ns = (
            first_watermark_ns(self._source.options.start, self._source.changes())
            + NANOSECONDS_PER_MICROSECOND
        )
        # A commit timestamp has whole microseconds.
        at_us_ns = floor_to_us(at_ns)
        watched = watched_tables(connection, description.dialect, at_us_ns)
        tables = tables_to_read(watched, filter_of(self._settings))
        if generated := {table.name: list(table.generated) for table in tables if table.generated}:
            _log.warning(
                "generated columns are left out: a change stream does not watch them",
                pipeline=self._settings.pipeline,
                columns=generated,
            )
        read: PartitionedRead | None = None
        cut: list[tuple[str, bytes]] = []
        for table in tables:
            sql = select(description.dialect, table)
            read, tokens = connection.partitioned_read(sql, at_us_ns, read)
            cut += [(table.name, token) for token in tokens]
        at_once = _PARTS_A_TASK * self._spark.sparkContext.defaultParallelism
        parts = [
            ScanPart(number, number // at_once, name, token)
            for number, (name, token) in enumerate(cut)
        ]
        session, transaction_id = (read.session, read.transaction_id) if read else ("", b"")
        scan = Scan(self._settings.pipeline, at_ns, session, transaction_id, tables_to_json(tables))
        return scan, parts

    def _add(self, scan: Scan, chunk: int, parts: Sequence[ScanPart]) -> int:
        """Read a chunk into the output, and return the number of its rows."""
        options = ScanOptions(
            self._source.options.change_stream,
            self._source.description.dialect,
            scan,
            parts,
            self._settings.spanner().data_boost,
        ).hand_over()
        self._lease.check()
        options |= task_writer_options(self._spark, self._sink, is_scan=True)
        rows = self._spark.read.format(FORMAT).options(**options).load()
        records = self._sink.add_scanned(rows, chunk, ns_to_datetime(scan.at_ns))
        finish_chunk(self._store, scan.pipeline, chunk, records=records)
        return records

    def _end(self, scan: Scan) -> None:
        begun = read_scan(self._store, scan.pipeline)
        assert begun is not None  # noqa: S101 - it was begun
        records = begun[0].records
        # Before the sink says that the scan is complete.
        refuse_incomplete(scan.pipeline, sum(not part.is_done for part in begun[1]))
        self._lease.check()
        self._sink.end_scan(self._spark, records, ns_to_datetime(scan.at_ns))
        finish_scan(self._store, scan.pipeline)
        _log.info("initial scan is complete", pipeline=scan.pipeline, records=records)

    def _retried(self, work: Callable[[], T], if_too_old: str = "") -> T:
        """Return the result of work(); after a failure it is tried again, with growing delays.

        Args:
            work: a step of the scan.
            if_too_old: what to do when Spanner has no more rows of the scan's time.

        Raises:
            _InterruptedError: the pipeline is not to run any more.
            PipelineFailedError: only an operator can help, or it has failed too often.
            LeaseLostError: another process took the pipeline over.
        """
        failures = 0
        while may_begin(self._lifecycle.desired_state()):
            try:
                return work()
            except LeaseLostError:
                raise
            except (ReaderError, SinkError, StateError, *spark_errors()) as error:
                failures += 1
                failure = diagnose(error)
                if if_too_old and failure.error_class == ReadTooOldError.__name__:
                    failure = replace(failure, hint=if_too_old)
                action = self._retries.wait(failure, failures)
                if action is not Action.START:
                    raise _InterruptedError(action) from error
        raise _InterruptedError(self._lifecycle.without_query())
