"""A simulated change stream and metadata store, for the real planner and the real task run.

The store is SQLite; what is simulated is Spanner's answers, the clock, and a store that loses
answers and goes back to earlier states.
"""

import random
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import sqlalchemy as sa

from slackwater.reader.change_stream import PartitionMode
from slackwater.reader.decode.records import ChangeRecordDecoder
from slackwater.reader.errors import (
    StartOutsidePartitionError,
    StreamAlteredError,
    UnavailableError,
)
from slackwater.reader.query.batch_decoder import BatchDecoder, QueryStream, RecordConsumer
from slackwater.reader.query.partition_query import QueryCancelledError
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartition,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
)
from slackwater.scheduler.change_source import Query
from slackwater.state.engine import make_engine
from slackwater.state.errors import StoreUnreachableError
from slackwater.state.models import Partition, Plan
from slackwater.state.store import Store
from tests.simulation.answering_stream import AnsweringStream
from tests.simulation.history import History, Life
from tests.simulation.mutable_world import MutableStream
from tests.simulation.threads import Process
from tests.support.change_sources import QuietQuery

T = TypeVar("T")


@dataclass
class Faults:
    """How likely small faults are, and how many may still come: with none left, a life ends."""

    choose: random.Random
    left: int

    def happens(self, likely: float) -> bool:
        """Return True if a fault happens now."""
        happens = self.left > 0 and self.choose.random() < likely
        self.left -= happens
        return happens


class _Numbers(ChangeRecordDecoder):
    """A decoder of messages that are the number of a record."""

    def __init__(self, records: Sequence[ChangeRecord]) -> None:
        super().__init__()
        self._records = records

    def feed(self, serialized: bytes) -> list[ChangeRecord]:
        return [self._records[int(serialized)]]


class SimulatedQuery(QuietQuery):
    """The records of a query, in order.

    They are decoded with those of other queries, as Spanner's are, if the query has an end.
    """

    def __init__(
        self,
        records: Sequence[ChangeRecord],
        process: Process,
        faults: Faults,
        on_end: Callable[[], object],
        *,
        has_end: bool = True,
    ) -> None:
        self._has_end = has_end
        self._records = records
        self._process = process
        self._faults = faults
        self._on_end = on_end
        self._is_cancelled = False

    def run(self, decoder: BatchDecoder, consumer: RecordConsumer) -> None:
        stream = QueryStream(consumer, _Numbers(self._records), is_first=False)
        for number, record in enumerate(self._records):
            self._process.pause()
            if self._is_cancelled:
                raise QueryCancelledError("cancelled")
            if self._faults.happens(0.002):
                raise UnavailableError("broken")
            if self._has_end:
                decoder.add(stream, [b"%d" % number])
                continue
            decoder.add_records(consumer, [record])
            if consumer.is_done:
                break
        self._on_end()

    def cancel(self) -> None:
        self._is_cancelled = True


class SimulatedStream(AnsweringStream[History]):
    """An AnsweringStream whose partitions have immutable key ranges.

    What is hidden is the child partitions record.
    """

    partition_mode: ClassVar = PartitionMode.IMMUTABLE_KEY_RANGE

    def records(
        self, token: str, start_ns: int, end_ns: int | None, function: str = ""
    ) -> list[ChangeRecord]:
        """Return what a query returns.

        Raises:
            StartOutsidePartitionError: as Spanner does.
        """
        life = self.history.lives[token]
        if life.end_ns is not None and start_ns > life.end_ns:
            raise StartOutsidePartitionError("invalid for the partition")
        through_ns = self.clock_ns if end_ns is None else end_ns
        records: list[ChangeRecord] = [
            self._record(life, time_ns) for time_ns in life.record_times(start_ns, through_ns)
        ]
        if life.end_ns is not None and life.end_ns <= through_ns:
            if end_ns is None or not self.hides(
                f"{token} {start_ns} {end_ns}", life.end_ns, end_ns
            ):
                records.append(self._children(life))
        elif end_ns is None:
            records.append(HeartbeatRecord(through_ns))
        return records

    @property
    def read_functions(self) -> Sequence[str]:
        return ("",)

    def partitions_alive(
        self, at_ns: int, functions: Sequence[str] | None = None
    ) -> Sequence[Partition]:
        return [Partition(life.token, at_ns) for life in self.history.alive_at(at_ns)]

    def expected(self, after_ns: int, through_ns: int) -> list[tuple[str, int, str]]:
        """Return the rows of all records in (after, through]: token, time, record_sequence."""
        return [
            (life.token, time_ns, life.token)
            for life in self.history.lives.values()
            for time_ns in life.record_times(after_ns, through_ns)
        ]

    def require_parents_first(self, plan: Plan, token: str) -> None:
        """Check that a query is opened only after the partition's parents were read."""
        for parent in self.history.lives[token].parents:
            end_ns = self.history.lives[parent].end_ns
            assert end_ns is not None
            is_read = end_ns <= plan.start_ns or (plan.plan_id, parent) in self.completed
            assert is_read, f"{token} was started before its parent {parent} was read"

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


class DriverSource:
    """The stream as one process has it, which looks its read functions up once."""

    def __init__(self, stream: SimulatedStream | MutableStream) -> None:
        self._stream = stream
        self.read_functions = tuple(stream.read_functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def partitions_alive(
        self, at_ns: int, functions: Sequence[str] | None = None
    ) -> Sequence[Partition]:
        return self._stream.partitions_alive(at_ns, functions or self.read_functions)


@dataclass(frozen=True)
class TaskSource:
    """The PartitionQueries of one attempt at a task, planned with these read functions."""

    stream: SimulatedStream | MutableStream
    process: Process
    plan: Plan
    faults: Faults
    functions: Sequence[str]

    def require_same_functions(self) -> None:
        if set(self.stream.read_functions) != set(self.functions):
            raise StreamAlteredError("other functions")

    def query(self, token: str, start_ns: int, end_ns: int | None, function: str = "") -> Query:
        self.stream.require_parents_first(self.plan, token)
        return SimulatedQuery(
            self.stream.records(token, start_ns, end_ns, function),
            self.process,
            self.faults,
            lambda: self.stream.completed.add((self.plan.plan_id, token)),
            has_end=end_ns is not None,
        )


class SimulatedStore(Store):
    """The metadata store as a process has it: each transaction may be its last act."""

    def __init__(self, engine: sa.Engine, process: Process, faults: Faults) -> None:
        super().__init__(engine)
        self._process = process
        self._faults = faults

    def _retried(self, attempt: Callable[[], T], patience_s: float) -> T:
        def whole() -> T:
            with self._process.scheduler.transaction():
                return attempt()

        def answered() -> T:
            result = whole()
            if self._faults.happens(0.002):
                # Committed, and the answer is lost: the work is done again.
                result = whole()
            if self._faults.happens(0.001):
                raise StoreUnreachableError("the answer was lost")
            return result

        self._process.pause()
        result = super()._retried(answered, patience_s)
        self._process.pause()
        return result


class StoreFile:
    """The SQLite file of the metadata store, and its earlier states."""

    def __init__(self, path: Path, template: Path) -> None:
        self._path = path
        self.snapshots: list[sqlite3.Connection] = []
        self._copy(template, path)
        self.engine = make_engine(f"sqlite:///{path}", create=False)
        self.keep()

    def keep(self) -> None:
        """Keep the present state."""
        snapshot = sqlite3.connect(":memory:")
        with closing(sqlite3.connect(self._path)) as live:
            live.backup(snapshot)
        self.snapshots.append(snapshot)

    def go_back(self, number: int) -> None:
        """Set the store to an earlier state; 0 is an empty store."""
        with closing(sqlite3.connect(self._path)) as live:
            self.snapshots[number].backup(live)

    def close(self) -> None:
        self.engine.dispose()
        for snapshot in self.snapshots:
            snapshot.close()
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        with closing(sqlite3.connect(source)) as made, closing(sqlite3.connect(target)) as copy:
            made.backup(copy)
