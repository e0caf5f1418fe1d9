"""The reading of a task: its partitions side by side, and the seal of the positions they leave.

Without Spark. The task waits until the epoch's end has passed before it opens a read, so every read
ends soon. Sealing is for one attempt: another one's rows end elsewhere. If the rows of an attempt
that was sealed are lost, the task fails, and with it the epoch, which is planned again.
"""

import logging
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from slackwater.reader.bigtable.change_rows import batches_of
from slackwater.reader.bigtable.changes import Changes
from slackwater.reader.bigtable.partition_read import PartitionRead, ReadOutcome
from slackwater.reader.bigtable.positions import (
    Position,
    Read,
    alone,
    whole_reads,
)
from slackwater.reader.bigtable.row_range import RowRange
from slackwater.reader.bigtable.service import BigtableService
from slackwater.scheduler.bigtable.planner import TabletTask, task_positions
from slackwater.scheduler.epoch_lead import wait_until_past
from slackwater.scheduler.read_options import ReadOptions
from slackwater.scheduler.tasks.byte_queue import ByteQueue, ClosedError
from slackwater.scheduler.tasks.metrics_collector import MetricsCollector
from slackwater.scheduler.tasks.open_query_reporter import OpenQueryReporter
from slackwater.scheduler.tasks.threads import PYTHON_THREADS, Pool
from slackwater.state.errors import StateError
from slackwater.state.models import OpenQuery, TaskCounts
from slackwater.state.plans import plan_by_id
from slackwater.state.positions import seal_attempt
from slackwater.state.store import Store
from slackwater.state.task_metrics import record_task_metrics
from slackwater.timestamp import ns_to_us

_log = logging.getLogger(__name__)

_AT_END: Final = 16
_HANDOFF_BYTES_MAX: Final = 8 * 1024 * 1024


def read_tablets(
    task: TabletTask,
    *,
    store: Store,
    service: BigtableService,
    heartbeat_ms: int,
    options: ReadOptions,
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a task, in batches of the output's schema; then seal the task.

    The changes of each row key come in commit order; those of different partitions are mixed.

    Args:
        task: a part of a plan that is in the store.
        store: the metadata store of the plan.
        service: Bigtable's API.
        heartbeat_ms: the heartbeat interval asked of Bigtable.
        options: how to read.

    Raises:
        PlanMissingError: the plan is not in the store, so this is not the planner's store.
        AlreadySealedError: another attempt at the task was sealed.
        ReaderError, StateError: a read or the store failed.
    """
    plan_by_id(store, task.plan.plan_id)
    run = _Run(task, store, service, heartbeat_ms, options)
    wait_until_past(task.plan.end_ns)
    # The last reads wait for a heartbeat each.
    threads = options.concurrent_queries * (_AT_END if task.is_last else 1)
    with PYTHON_THREADS.pool(threads) as pool:
        run.start(pool)
        try:
            for batch in run.batches():
                run.collector.add_batch(batch, changes_in(batch, service.table.table))
                yield batch
        finally:
            run.stop()
    run.seal()
    if (metrics := run.collector.metrics()) is not None:
        # Metrics are for monitoring only, so a store that fails here does not fail the task.
        with suppress(StateError):
            record_task_metrics(store, task.plan.plan_id, task.index, metrics)


def changes_in(batch: pa.RecordBatch, table: str) -> dict[tuple[str, str], int]:
    """Return the number of changes in rows, by table and type."""
    return {(table, kind): count for kind, count in _counts(batch, "type").items()}


def _counts(batch: pa.RecordBatch, column: str) -> dict[str, int]:
    counted = pc.value_counts(batch.column(column)).to_pylist()
    return {each["values"]: each["counts"] for each in counted}


class _Run:
    """One attempt at a task."""

    def __init__(
        self,
        task: TabletTask,
        store: Store,
        service: BigtableService,
        heartbeat_ms: int,
        options: ReadOptions,
    ) -> None:
        self.queue: ByteQueue[Changes] = ByteQueue(_HANDOFF_BYTES_MAX)
        self.collector = MetricsCollector(task.plan, traces=options.traces)
        self._task = task
        self._store = store
        self._service = service
        self._heartbeat_ms = heartbeat_ms
        self._end_us = ns_to_us(task.plan.end_ns)
        self._attempt = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._running: dict[PartitionRead, Read] = {}
        self._changes: Counter[str] = Counter()
        # Of partitions that have reached the end, and of those that were split or merged before.
        self._ended: list[Position] = []
        self._parts: list[Position] = []
        self._read_alone: set[RowRange] = set()
        self._unfinished = len(task.reads)
        self._is_stopped = False
        self._reporter = OpenQueryReporter(
            store, task.plan.plan_id, task.index, self._open_queries, PYTHON_THREADS
        )

    def start(self, pool: Pool) -> None:
        self._pool = pool
        self._reporter.start()
        for read in self._task.reads:
            pool.submit(self._read, read)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes of all reads as they come."""
        for batch in batches_of(self.queue, self._end_us):
            self._changes.update(_counts(batch, "partition"))
            yield batch

    def stop(self) -> None:
        """Cancel all reads: the receiver is done, or gone."""
        self.queue.close()
        with self._lock:
            self._is_stopped = True
            running = list(self._running)
        for read in running:
            read.cancel()
        self._reporter.stop()

    def seal(self) -> None:
        """Seal the task with what all its reads have left."""
        counts = TaskCounts(
            records=sum(self._changes.values()),
            partition_load=tuple((label, count) for label, count in self._changes.items() if count),
        )
        positions = task_positions(self._ended)
        seal_attempt(
            self._store, self._task.plan, self._task.index, self._attempt, counts, positions
        )

    def _read(self, read: Read) -> None:
        try:
            partition = PartitionRead(
                self._service,
                read,
                self._end_us,
                self._heartbeat_ms,
                lambda changes: self.queue.put(changes, changes.size_bytes),
                is_last=self._task.is_last,
            )
            with self._lock:
                if self._is_stopped:
                    return
                self._running[partition] = read
            outcome = partition.run()
            if outcome.is_stalled:
                _log.warning(
                    "partition %s has not reached the end of the epoch: its replication may be"
                    " behind. It is read on in the next one",
                    read.label,
                )
            stalls = partition.stalls + outcome.is_stalled
            open_ms = partition.open_ms
            self.collector.add_query(read.label, partition.retried, stalls, open_ms=open_ms)
            self._go_on(partition, outcome)
        except ClosedError:
            return
        except BaseException as error:  # noqa: BLE001 - raised again by the receiver
            self.queue.fail(error)

    def _go_on(self, partition: PartitionRead, outcome: ReadOutcome) -> None:
        """Read the partitions that a read leaves, as far as their parts are here."""
        with self._lock:
            del self._running[partition]
            (self._parts if outcome.is_closed else self._ended).extend(outcome.positions)
            reads, self._parts = whole_reads(self._parts)
            self._unfinished += len(reads) - 1
            if not self._unfinished:
                # The other parts are another task's, or will never come: once more by themselves.
                reads = [alone(part) for part in self._parts if part.keys not in self._read_alone]
                self._read_alone.update(read.partition for read in reads)
                self._ended += [part for part in self._parts if alone(part) not in reads]
                self._parts, self._unfinished = [], len(reads)
            for following in reads if not self._is_stopped else ():
                self._pool.submit(self._read, following)
            is_over = not self._unfinished
        if is_over:
            self.queue.end()

    def _open_queries(self) -> list[OpenQuery]:
        with self._lock:
            running = list(self._running.items())
        return [
            OpenQuery(read.label, r.watermark_ns, r.open_ms, r.silent_ms, r.stalls)
            for r, read in running
        ]
