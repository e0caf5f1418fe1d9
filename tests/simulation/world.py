"""A simulated change stream, and tasks that die, run twice or run slowly, for the real scheduler.

Everything runs in one thread and is chosen by one seed: the planner, the claims, the audit and the
metadata store (SQLite) are the real ones; what is simulated is Spanner's answers, the clock, and
Spark's tasks, which take turns at every step that could interleave.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType

import pyarrow as pa

from slackwater.reader.errors import ReaderError, StartOutsidePartitionError
from slackwater.reader.query.batch_decoder import BatchDecoder, Owners, RecordConsumer
from slackwater.reader.query_outcome import Finished
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartition,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
)
from slackwater.scheduler.audit import PartialTransactions, PartitionAudit, task_counts
from slackwater.scheduler.change_source import Query
from slackwater.scheduler.epoch import cut_of
from slackwater.scheduler.errors import AuditError
from slackwater.scheduler.lineage import query_start_ns
from slackwater.scheduler.plan import Task
from slackwater.scheduler.read_options import Proof
from slackwater.scheduler.tasks.partition_reader import PartitionReader
from slackwater.scheduler.tasks.task_attempt import TaskAttempt
from slackwater.state.errors import StateError
from slackwater.state.models import Partition
from slackwater.state.store import Store
from tests.simulation.history import STEP_NS, History, Life

Row = tuple[str, int]


class SimulatedQuery:
    """The records of a query, in order; what was not taken is forgotten when it is cancelled."""

    watermark_ns = open_ms = silent_ms = stalls = 0
    retried: Mapping[str, int] = MappingProxyType({})

    def __init__(self, records: Sequence[ChangeRecord], error: Exception | None = None) -> None:
        self._records = records
        self._error = error

    def run(self, decoder: BatchDecoder, consumer: RecordConsumer) -> None:
        if self._error is not None:
            raise self._error
        for record in self._records:
            decoder.add_records(consumer, [record])
            if consumer.is_done:
                return

    def cancel(self) -> None:
        pass


@dataclass
class SimulatedStream:
    """A ChangeSource over a history, which answers as Spanner does.

    Attributes:
        history: what truly happened.
        clock_ns: Spanner's clock.
        choose: the seed's choices.
        hide: how likely a query with an end_timestamp just after its partition's end keeps the
            child partitions record to itself (apache/beam issue 40232).
    """

    history: History
    clock_ns: int
    choose: random.Random
    hide: float
    hidden: int = 0

    def query(self, token: str, start_ns: int, end_ns: int | None) -> Query:
        life = self.history.lives[token]
        if life.end_ns is not None and start_ns > life.end_ns:
            return SimulatedQuery([], StartOutsidePartitionError("invalid for the partition"))
        through_ns = self.clock_ns if end_ns is None else end_ns
        records: list[ChangeRecord] = [
            self._record(life, time_ns) for time_ns in life.record_times(start_ns, through_ns)
        ]
        if life.end_ns is not None and life.end_ns <= through_ns:
            if end_ns is None or not self._hides(life.end_ns, end_ns):
                records.append(self._children(life))
        elif end_ns is None:
            records.append(HeartbeatRecord(through_ns))
        return SimulatedQuery(records)

    def check(self) -> None:
        pass

    def strong_read_timestamp_ns(self) -> int:
        return self.clock_ns

    def partitions_alive(self, at_ns: int) -> list[str]:
        return sorted(life.token for life in self.history.alive_at(at_ns))

    def earliest_start_ns(self) -> int:
        return 0

    def _hides(self, partition_end_ns: int, end_ns: int) -> bool:
        is_hidden = end_ns - partition_end_ns < 2 * STEP_NS and self.choose.random() < self.hide
        self.hidden += is_hidden
        return is_hidden

    def _record(self, life: Life, time_ns: int) -> DataChangeRecord:
        """All partitions alive at a time share a transaction: each has one record of it."""
        alive = self.history.alive_at(time_ns)
        return DataChangeRecord(
            time_ns,
            f"t{time_ns}",
            life.token,
            True,
            "T",
            (),
            (),
            "INSERT",
            "NEW_ROW",
            len(alive),
            len(alive),
            "",
            False,
        )

    def _children(self, life: Life) -> ChildPartitionsRecord:
        assert life.end_ns is not None
        children = tuple(
            ChildPartition(token, self.history.lives[token].parents) for token in life.children
        )
        return ChildPartitionsRecord(life.end_ns, "0", children)


@dataclass
class SimulatedTask:
    """One attempt at a task of a plan; it gives way to others after every step."""

    task: Task
    stream: SimulatedStream
    store: Store
    proof: Proof
    completed: set[tuple[str, str]]
    rows: list[Row] = field(default_factory=list)

    def run(self) -> Iterator[None]:
        """Read all partitions, in an order of the seed's; then the rows are whole.

        Raises:
            AuditError, StateError: as the real task does.
        """
        plan = self.task.plan
        waiting = [(root, query_start_ns(root, plan.start_ns)) for root in self.task.roots]
        audits = []
        partial_transactions = PartialTransactions()
        decoder = BatchDecoder(self._deliver)
        attempt = TaskAttempt(self.task, self.store)
        while waiting:
            ended: dict[Partition, Finished] = {}
            # Threads that end at the same time record it together.
            for _ in range(min(len(waiting), self.stream.choose.choice((1, 1, 2, 3)))):
                partition, start_ns = waiting.pop(self.stream.choose.randrange(len(waiting)))
                self._require_parents_first(partition)
                audit = PartitionAudit(partition.token, cut_of(plan), partial_transactions)
                audits.append(audit)
                reader = PartitionReader(
                    plan, self.stream, self.proof, _running, pause=lambda seconds: None
                )
                ending = reader.read(partition, start_ns, decoder, audit)
                decoder.deliver_remaining()
                if audit.violations:
                    raise AuditError(audit.violations)
                yield
                self.completed.add((plan.plan_id, partition.token))
                if isinstance(ending, Finished):
                    ended[partition] = ending
                else:
                    attempt.note_alive(partition)
            if ended:
                children = attempt.finish(ended)
                waiting += [(child, child.start_timestamp_ns) for child in children]
            yield
            if not waiting:
                children = attempt.seal(task_counts(audits, partial_transactions))
                waiting += [(child, child.start_timestamp_ns) for child in children]
                yield

    def _deliver(self, batch: pa.RecordBatch, owners: Owners) -> None:
        tokens = [token for token, count in owners for _ in range(count)]
        times = batch.column("commit_timestamp").cast(pa.int64()).to_pylist()
        self.rows += [(t, us * 1_000) for t, us in zip(tokens, times, strict=True)]

    def _require_parents_first(self, partition: Partition) -> None:
        plan, lives = self.task.plan, self.stream.history.lives
        for parent in lives[partition.token].parents:
            end_ns = lives[parent].end_ns
            assert end_ns is not None
            is_read = end_ns <= plan.start_ns or (plan.plan_id, parent) in self.completed
            assert is_read, f"{partition.token} was started before its parent {parent} was read"


@contextmanager
def _running(partition: Partition, query: Query) -> Iterator[None]:
    yield


class Zombies:
    """Attempts that nobody waits for any more and that go on all the same."""

    def __init__(self, choose: random.Random) -> None:
        self._choose = choose
        self._running: list[Iterator[None]] = []

    def add(self, attempt: Iterator[None]) -> None:
        self._running.append(attempt)

    def step(self) -> None:
        """Let one of them take a step; what it fails with is nobody's business."""
        if self._running:
            attempt = self._choose.choice(self._running)
            with suppress(StateError, AuditError, ReaderError, StopIteration):
                next(attempt)
                return
            self._running.remove(attempt)
