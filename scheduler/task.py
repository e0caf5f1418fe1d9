"""A plan's task: its partitions' records as Arrow batches, children after all their parents.

A plain generator that knows no Spark. Partition queries run at the same time, each bounded by the
epoch's end, which lies in the past: so every query ends by itself, nobody waits for anybody, and
a bounded number of threads is enough for any number of partitions.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

import pyarrow as pa

from reader.batch import to_record_batch
from reader.ending import Finished, conclude
from reader.errors import StartOutsidePartitionError
from reader.query import Message
from reader.records import ChildPartitionsRecord, DataChangeRecord
from scheduler.claim import finish_partition
from scheduler.handoff import ClosedError, Handoff
from scheduler.lineage import start_position_ns
from scheduler.plan import Task
from state.facts import Partition
from state.store import Store

_log = logging.getLogger(__name__)

HANDOFF_BYTES_MAX: Final = 16 * 1024 * 1024
BATCH_ROWS_MAX: Final = 8_192
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
_STEP_BACK_FIRST_NS: Final = 1_000_000_000


class Query(Protocol):
    """A running partition query."""

    def __iter__(self) -> Iterator[Message]:
        """Its messages; ends when Spanner ended it with OK."""

    def cancel(self) -> None:
        """End it early, from another thread."""


class PartitionReader(Protocol):
    """Whatever can query partitions: Spanner, or a simulated stream."""

    def query(self, token: str, start_ns: int, end_ns: int) -> Query:
        """The records of a partition token over [start, end].

        Raises while iterating:
            StartOutsidePartitionError: the partition ended before the start.
        """


def read_task(
    task: Task, *, store: Store, reader: PartitionReader, concurrent_queries: int
) -> Iterator[pa.RecordBatch]:
    """The data change records of a task, in batches of the output's schema.

    Each partition's records come in commit order, and a child partition's after those of all its
    parents; records of different partitions are mixed.

    Args:
        task: a share of a plan, which the store must hold.
        store: the metadata store of the plan.
        reader: where the records come from.
        concurrent_queries: partition queries at once, at least 1.

    Raises:
        PlanMissingError: the store does not hold the plan, so it is another store.
        ReaderError, StateError, SchedulerError: what a query or the store failed with.
    """
    store.plan(task.plan.plan_id)
    work = _TaskRun(task, store, reader)
    with ThreadPoolExecutor(concurrent_queries, thread_name_prefix="partition") as pool:
        work.start(pool)
        try:
            yield from _batches(work.handoff, low_watermark_ns=task.plan.end_ns)
        finally:
            work.stop()


Group = tuple[str, Sequence[DataChangeRecord], int]


def _batches(groups: Iterable[Group], *, low_watermark_ns: int) -> Iterator[pa.RecordBatch]:
    pending: list[tuple[str, Sequence[DataChangeRecord]]] = []
    rows = size_bytes = 0
    for token, records, group_bytes in groups:
        pending.append((token, records))
        rows += len(records)
        size_bytes += group_bytes
        if rows >= BATCH_ROWS_MAX or size_bytes >= BATCH_BYTES_MAX:
            yield to_record_batch(pending, low_watermark_ns=low_watermark_ns)
            pending, rows, size_bytes = [], 0, 0
    if pending:
        yield to_record_batch(pending, low_watermark_ns=low_watermark_ns)


class _TaskRun:
    """The threads of one task: queries in, groups of records out."""

    def __init__(self, task: Task, store: Store, reader: PartitionReader) -> None:
        self.handoff: Handoff[Group] = Handoff(HANDOFF_BYTES_MAX)
        self._task = task
        self._store = store
        self._reader = reader
        self._lock = threading.Lock()
        self._running: set[Query] = set()
        self._stopped = False
        self._unfinished = 0

    def start(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        plan = self._task.plan
        self._submit([(root, start_position_ns(root, plan.start_ns)) for root in self._task.roots])
        if not self._task.roots:
            self.handoff.end()

    def stop(self) -> None:
        """Nobody wants the records any more: end all queries."""
        self.handoff.close()
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for query in running:
            query.cancel()

    def _submit(self, partitions: Sequence[tuple[Partition, int]]) -> None:
        with self._lock:
            if self._stopped:
                return
            self._unfinished += len(partitions)
            for partition, start_ns in partitions:
                self._pool.submit(self._run, partition, start_ns)

    def _run(self, partition: Partition, start_ns: int) -> None:
        try:
            children = self._read(partition, start_ns)
            self._submit([(child, child.start_timestamp_ns) for child in children])
        except ClosedError:
            return
        except BaseException as error:  # noqa: BLE001 - raised again by the receiver
            self.handoff.fail(error)
            return
        with self._lock:
            self._unfinished -= 1
            done = self._unfinished == 0
        if done:
            self.handoff.end()

    def _read(self, partition: Partition, start_ns: int) -> list[Partition]:
        """Read one partition; the children that this task has to read next."""
        try:
            announced = self._query(partition, start_ns, start_ns)
        except StartOutsidePartitionError:
            announced = self._recover(partition, start_ns)
        ending = conclude(announced, self._task.plan.end_ns)
        if not isinstance(ending, Finished):
            return []
        return finish_partition(self._store, self._task, partition, ending)

    def _recover(self, partition: Partition, start_ns: int) -> list[ChildPartitionsRecord]:
        """Find the end of a partition that lies before the start, and was not shown to us.

        A query with an end_timestamp may end just after its partition did, without the child
        partitions records (apache/beam issue 40232). They come when it is read from before its
        end; the partition's own records from there on were delivered by earlier epochs.
        """
        step_ns = _STEP_BACK_FIRST_NS
        while True:
            earlier_ns = max(partition.start_timestamp_ns, start_ns - step_ns)
            try:
                announced = self._query(partition, earlier_ns, start_ns)
            except StartOutsidePartitionError:
                if earlier_ns == partition.start_timestamp_ns:
                    raise
                step_ns *= 4
                continue
            _log.warning(
                "partition %s had ended before low watermark %d unseen; its children's records"
                " up to there are late",
                partition.token,
                start_ns,
            )
            return announced

    def _query(
        self, partition: Partition, start_ns: int, deliver_from_ns: int
    ) -> list[ChildPartitionsRecord]:
        plan = self._task.plan
        query = self._reader.query(partition.token, start_ns, plan.end_ns)
        with self._lock:
            if self._stopped:
                raise ClosedError
            self._running.add(query)
        announced: list[ChildPartitionsRecord] = []
        try:
            for message in query:
                data = []
                for record in message.records:
                    if isinstance(record, DataChangeRecord):
                        if deliver_from_ns <= record.commit_timestamp_ns <= plan.end_ns:
                            data.append(record)
                    elif isinstance(record, ChildPartitionsRecord):
                        announced.append(record)
                if data:
                    self.handoff.put(
                        (partition.token, data, message.size_bytes), message.size_bytes
                    )
        finally:
            with self._lock:
                self._running.discard(query)
        return announced
