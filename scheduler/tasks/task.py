"""The reading of a plan's task: Arrow batches of its partitions, children after all their parents.

read_task is a plain generator without Spark. Partition queries run at the same time, each bounded
by the epoch's end. The task waits until that time has passed before it opens any, so every query
ends soon, no query waits for another, and a bounded number at once is enough for any number of
partitions.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from slackwater.reader.decode.arrow import to_record_batch
from slackwater.reader.query.batch_decoder import BatchDecoder, Owners
from slackwater.scheduler.audit import PartialTransactions, PartitionAudit, task_counts
from slackwater.scheduler.change_source import PartitionQueries, Query
from slackwater.scheduler.epoch import cut_of
from slackwater.scheduler.epoch_lead import wait_until_past
from slackwater.scheduler.errors import AuditError
from slackwater.scheduler.lineage import query_start_ns
from slackwater.scheduler.plan import Task
from slackwater.scheduler.read_options import AuditMode, Proof, ReadOptions
from slackwater.scheduler.tasks.byte_queue import ByteQueue, ClosedError
from slackwater.scheduler.tasks.metrics_collector import MetricsCollector, mods_in
from slackwater.scheduler.tasks.open_query_reporter import OpenQueryReporter
from slackwater.scheduler.tasks.partition_reader import PartitionFacts, PartitionReader
from slackwater.scheduler.tasks.task_attempt import TaskAttempt
from slackwater.scheduler.tasks.threads import PYTHON_THREADS, Pool, Threads
from slackwater.state.errors import StateError
from slackwater.state.models import OpenQuery, Partition
from slackwater.state.open_queries import count_stalls
from slackwater.state.plans import note_failed_audit, plan_by_id
from slackwater.state.store import Store
from slackwater.state.task_metrics import record_task_metrics

HANDOFF_BYTES_MAX: Final = 8 * 1024 * 1024
BATCH_ROWS_MAX: Final = 8_192
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
# While more partitions than this are unfinished for each concurrent query, ends are recorded in
# groups.
_MANY: Final = 2
_LINGER_S: Final = 0.02
# So many that wait for the decoding bring it, if not earlier: two for each query that was received,
# of the query and of its partition's reader. A decoding costs as much as that of a thousand rows.
_WAITING_MAX: Final = 256


def read_task(
    task: Task,
    *,
    store: Store,
    source: PartitionQueries,
    options: ReadOptions,
    threads: Threads = PYTHON_THREADS,
) -> Iterator[pa.RecordBatch]:
    """Yield the data change records of a task, in batches of the output's schema.

    Each partition's records come in commit order, and a child partition's after those of all its
    parents; records of different partitions are mixed. When all partitions are read, the task is
    sealed, as scheduler.tasks.task_attempt explains.

    Args:
        task: a part of a plan that is in the store.
        store: the metadata store of the plan.
        source: opens partition queries.
        options: how to read.
        threads: starts threads and waits for them.

    Raises:
        PlanMissingError: the plan is not in the store, so this is not the planner's store.
        AuditError: the records break what the change stream promises.
        ReaderError, StateError, SchedulerError: a query or the store failed.
    """
    plan_by_id(store, task.plan.plan_id)
    run = _TaskRun(task, store, source, options, threads)
    wait_until_past(task.plan.end_ns)
    if task.index == 0:
        source.require_same_functions()
    with threads.pool(options.concurrent_queries) as pool:
        run.start(pool)
        try:
            for batch in _batches(run.queue, low_watermark_ns=task.plan.end_ns):
                run.collector.add_batch(batch, mods_in(batch))
                yield batch
        finally:
            run.stop()
    if (metrics := run.collector.metrics()) is not None:
        # Metrics are for monitoring only, so a store that fails here does not fail the task.
        with suppress(StateError):
            record_task_metrics(store, task.plan.plan_id, task.index, metrics)


Group = tuple[pa.RecordBatch, Owners]


def _batches(groups: Iterable[Group], *, low_watermark_ns: int) -> Iterator[pa.RecordBatch]:
    """Join small groups into batches with all columns of the output."""
    pending: list[Group] = []
    rows = size_bytes = 0
    for batch, owners in groups:
        pending.append((batch, owners))
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= BATCH_ROWS_MAX or size_bytes >= BATCH_BYTES_MAX:
            yield _joined(pending, low_watermark_ns)
            pending, rows, size_bytes = [], 0, 0
    if pending:
        yield _joined(pending, low_watermark_ns)


def _joined(groups: Sequence[Group], low_watermark_ns: int) -> pa.RecordBatch:
    batches = [batch for batch, _ in groups]
    data = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    owners = [owner for _, of_group in groups for owner in of_group]
    return to_record_batch(data, owners, low_watermark_ns=low_watermark_ns)


@dataclass(frozen=True, slots=True)
class _Start:
    """A partition that is ready to be read.

    Attributes:
        partition: the partition.
        since_s: when the end of its last parent was seen, in seconds of the monotonic clock; None
            if it waited for no parent in this attempt.
    """

    partition: Partition
    since_s: float | None = None


def _proof(task: Task, options: ReadOptions) -> Proof:
    """Return the evidence required that a partition was read through the epoch's end."""
    return Proof.RECORD if task.plan.follows_failed_audit else options.proof


class _TaskRun:
    """One attempt at a task: runs its queries on a pool, and puts their records into a queue."""

    def __init__(
        self,
        task: Task,
        store: Store,
        source: PartitionQueries,
        options: ReadOptions,
        threads: Threads,
    ) -> None:
        self.queue: ByteQueue[Group] = ByteQueue(HANDOFF_BYTES_MAX, threads)
        self.collector = MetricsCollector(task.plan, traces=options.traces)
        self._task = task
        self._store = store
        self._options = options
        self._threads = threads
        self._attempt = TaskAttempt(task, store, threads)
        self._reader = PartitionReader(
            task.plan, source, _proof(task, options), self._running, pause=threads.sleep
        )
        self._reporter = OpenQueryReporter(
            store, task.plan.plan_id, task.index, self._open_queries, threads
        )
        self._cut = cut_of(task.plan)
        self._lock = threads.lock()
        self._queries: dict[Query, Partition] = {}
        self._audits: list[PartitionAudit] = []
        self._partial_transactions = PartialTransactions()
        self._decoder = BatchDecoder(self._deliver, threads.lock())
        self._ended: dict[Partition, tuple[PartitionFacts, float]] = {}
        self._is_recording = False
        self._stopped = False
        self._ready: deque[_Start] = deque()
        # The threads of the pool that read partitions.
        self._busy = 0
        self._unfinished = 0
        # Partitions of which not all messages have come; the rest of those unfinished are decoded.
        self._unreceived = 0

    def start(self, pool: Pool) -> None:
        self._pool = pool
        self._reporter.start()
        self._submit([_Start(root) for root in self._task.roots])
        if not self._task.roots:
            self._seal()

    def stop(self) -> None:
        """Cancel all queries: the receiver is done, or gone."""
        self.queue.close()
        with self._lock:
            self._stopped = True
            running = list(self._queries)
        for query in running:
            query.cancel()
        self._reporter.stop()

    def _submit(self, starts: Sequence[_Start]) -> None:
        """Have partitions read.

        Raises:
            ClosedError: the task was stopped, and they stay unread.
        """
        with self._lock:
            if self._stopped:
                # They must not count as done: the task must not be sealed without them.
                raise ClosedError
            self._unfinished += len(starts)
            self._unreceived += len(starts)
            self._ready.extend(starts)
            idle = self._options.concurrent_queries - self._busy
            for _ in range(min(idle, len(starts))):
                self._busy += 1
                self._pool.submit(self._run_ready)

    def _run_ready(self) -> None:
        """Read partitions, one after the other, until none is ready."""
        while True:
            with self._lock:
                if not self._ready:
                    self._busy -= 1
                    return
                start = self._ready.popleft()
            self._run(start)

    def _run(self, start: _Start) -> None:
        if start.since_s is not None:
            self.collector.add_child_delay(time.monotonic() - start.since_s)
        with self._failing():
            self._read(start.partition)
            with self._lock:
                self._unreceived -= 1
                unreceived = self._unreceived
            self._decoder.flush(waiting_min=min(_WAITING_MAX, unreceived))
            self._record_ended()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Let the receiver raise what is raised in here."""
        try:
            yield
        except ClosedError:
            return
        except BaseException as error:  # noqa: BLE001 - raised again by the receiver
            self.queue.fail(error)

    def _done(self, count: int) -> None:
        """Count partitions as done, after their children were submitted; seal after the last."""
        with self._lock:
            self._unfinished -= count
            is_last = self._unfinished == 0
        if is_last:
            self._seal()

    def _seal(self) -> None:
        """Seal the task and end the queue, unless other attempts left children to read first."""
        try:
            with self._lock:
                counted = task_counts(self._audits, self._partial_transactions)
            children = self._attempt.seal(counted)
        except BaseException as error:  # noqa: BLE001 - raised again by the receiver
            self.queue.fail(error)
            return
        if children:
            self._submit([_Start(child) for child in children])
            return
        try:
            self._decoder.deliver_remaining()
        except ClosedError:
            return
        self.queue.end()

    def _deliver(self, batch: pa.RecordBatch, owners: Owners) -> None:
        self.queue.put((batch, owners), batch.nbytes)

    def _record_ended(self) -> None:
        """Record the ends of partitions, and the partitions that they announced.

        One thread does it for all while the others go on reading.
        """
        with self._lock:
            if self._is_recording or not self._ended:
                return
            self._is_recording = True
        while True:
            if self._unfinished > _MANY * self._options.concurrent_queries:
                # More will end in a moment, and one transaction for all costs no more.
                self._threads.sleep(_LINGER_S)
            with self._lock:
                ended, self._ended = self._ended, {}
                if not ended:
                    self._is_recording = False
                    return
            children = self._attempt.finish({p: shown for p, (shown, _) in ended.items()})
            seen_s = {p.key: at_s for p, (_, at_s) in ended.items()}
            self._submit(
                [
                    _Start(
                        child,
                        # Its last parent is among the partitions that have just ended.
                        max((seen_s[p] for p in child.parent_keys if p in seen_s), default=None),
                    )
                    for child in children
                ]
            )
            self._done(len(ended))

    def _read(self, partition: Partition) -> None:
        """Read one partition; its records and the facts that it showed may follow later."""
        audit = PartitionAudit(partition.label, self._cut, self._partial_transactions)
        start_ns = query_start_ns(partition, self._cut.start_ns)
        self._reader.read(
            partition,
            start_ns,
            self._decoder,
            audit,
            lambda shown: self._have_read(partition, audit, shown),
        )

    def _have_read(
        self, partition: Partition, audit: PartitionAudit, shown: PartitionFacts
    ) -> None:
        with self._failing():
            if audit.violations and self._options.audit is AuditMode.STOP:
                # A note that is missing costs another failed attempt.
                with suppress(StateError):
                    note_failed_audit(self._store, self._task.plan)
                raise AuditError(audit.violations)
            is_alive = shown.end_timestamp_ns is None and not shown.announced
            with self._lock:
                self._audits.append(audit)
                if not is_alive:
                    self._ended[partition] = (shown, time.monotonic())
            if is_alive:
                self._attempt.note_alive(partition)
                self._done(1)

    @contextmanager
    def _running(self, partition: Partition, query: Query) -> Iterator[None]:
        with self._lock:
            if self._stopped:
                raise ClosedError
            self._queries[query] = partition
        try:
            yield
        finally:
            with self._lock:
                del self._queries[query]
            if query.queried_source:
                self.collector.add_query(
                    partition.label, query.retried, query.stalls, open_ms=query.open_ms
                )
            if query.stalls:
                with suppress(StateError):
                    count_stalls(self._store, self._task.plan.pipeline, partition.key, query.stalls)

    def _open_queries(self) -> list[OpenQuery]:
        with self._lock:
            running = list(self._queries.items())
        return [
            OpenQuery(p.label, q.watermark_ns, q.open_ms, q.silent_ms, q.stalls) for q, p in running
        ]
