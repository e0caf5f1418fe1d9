"""Continuous reading in a simulated life: the real follower over the simulated stream's messages.

A host's reader process outlives the attempts at tasks, the drivers and the restores of the store.
Its queries break, fall silent, and bring their records in pieces of any size.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from slackwater.reader.change_stream import ChangeStream, Dialect, PartitionMode
from slackwater.reader.errors import UnavailableError
from slackwater.reader.query.batch_decoder import BatchDecoder, RecordConsumer
from slackwater.reader.records import ChangeRecord, HeartbeatRecord
from slackwater.scheduler.change_source import Query
from slackwater.scheduler.continuous.continuous_queries import ContinuousQueries
from slackwater.scheduler.continuous.follower import Follower, Limits
from slackwater.scheduler.continuous.frames import FollowedStream, Frame, Request, frames
from slackwater.scheduler.continuous.task_queries import wanted
from slackwater.scheduler.plan import Task
from slackwater.state.models import PartitionKey
from tests.simulation.mutable_world import MutableStream
from tests.simulation.world import SimulatedStream, TaskSource
from tests.support.proto_messages import proto_messages, proto_row
from tests.support.spanner_messages import googlesql_row, messages

# How often the event loop goes round before a task asks.
_ROUNDS = (1, 40, 80)


class SimulatedReader:
    """A host's reader process, in the simulation's own thread."""

    def __init__(
        self, stream: SimulatedStream | MutableStream, choose: random.Random, seen: Counter[str]
    ) -> None:
        self._stream = stream
        self._choose = choose
        self._seen = seen
        self._loop = asyncio.new_event_loop()
        self._follower = self._new_follower()

    def read(self, request: Request) -> Iterator[Frame]:
        """Answer as the reader process does."""
        if self._choose.random() < 0.02:
            self.restart()
            raise ConnectionRefusedError
        if request.is_suspect:
            self._follower.forget_all()
            return
        for _ in range(self._choose.choice(_ROUNDS)):
            self._loop.run_until_complete(asyncio.sleep(0))
        portions = self._loop.run_until_complete(
            self._follower.portions(request.wanted, request.end_ns, wait_s=0)
        )
        self._seen["partitions taken"] += len(portions)
        self._seen["partitions not taken"] += len(request.wanted) - len(portions)
        bytes_max = None if request.bytes_max is None else self._choose.choice((1, 10_000))
        yield from frames(request.wanted, portions, bytes_max)

    def start_if_missing(self) -> None:
        """Do nothing: restart() has done it."""

    def restart(self) -> None:
        """Lose everything."""
        self._loop.run_until_complete(self._follower.close())
        self._follower = self._new_follower()
        self._seen["readers restarted"] += 1

    def close(self) -> None:
        self._loop.run_until_complete(self._follower.close())
        self._loop.close()

    def _new_follower(self) -> Follower:
        limits = Limits(memory_bytes=1 << 40, partitions=1 << 40, heartbeat_ns=0)
        mode = self._stream.partition_mode
        return Follower(self._messages, mode, limits, lambda: self._stream.clock_ns)

    async def _messages(
        self, key: PartitionKey, start_ns: int, end_ns: int | None
    ) -> AsyncIterator[list[bytes]]:
        """Yield a query's messages as time goes on; the query may break, fall silent or end early.

        One with an end_timestamp keeps the partition's end to itself as often as bounded ones do.
        """
        sent: list[ChangeRecord] = []
        shown_ns = 0
        is_first = True
        # One that lies in the past has all of it.
        may_end_early = end_ns is None or end_ns > self._stream.clock_ns
        while True:
            clock_ns = self._stream.clock_ns
            is_over = end_ns is not None and end_ns <= clock_ns
            through_ns = end_ns if is_over else None
            records = self._stream.records(key.token, start_ns, through_ns, key.function)
            lasting = [r for r in records if not isinstance(r, HeartbeatRecord)]
            fresh: list[ChangeRecord] = list(lasting[len(sent) :])
            fresh = fresh[: self._choose.randint(1, 6)]
            sent += fresh
            is_all = len(sent) >= len(lasting)
            has_ended = is_all and (is_over or not isinstance(records[-1], HeartbeatRecord))
            if not fresh and not has_ended and shown_ns < clock_ns:
                shown_ns = clock_ns
                fresh = [HeartbeatRecord(shown_ns)]
            if fresh or is_first:
                yield self._serialized(fresh)
            is_first = False
            # A task may ask between the last record and the end.
            await asyncio.sleep(0)
            if has_ended or (may_end_early and self._happens("open queries ended early", 0.001)):
                return
            if self._happens("open queries broken", 0.001):
                raise UnavailableError("broken")
            if self._happens("open queries silent", 0.0005):
                await asyncio.Event().wait()

    def _happens(self, what: str, likely: float) -> bool:
        happens = self._choose.random() < likely
        self._seen[what] += happens
        return happens

    def _serialized(self, records: Sequence[ChangeRecord]) -> list[bytes]:
        """Return messages of one record each; the metadata is in the first."""
        if self._stream.partition_mode is PartitionMode.MUTABLE_KEY_RANGE:
            rows = [proto_row(record) for record in records]
            return proto_messages(rows, Dialect.GOOGLE_STANDARD_SQL)
        return messages([googlesql_row(record) for record in records], is_postgresql=False)


class ContinuousTaskSource(ContinuousQueries):
    """The PartitionQueries of one attempt at a task, with a host's reader process."""

    def __init__(self, source: TaskSource, reader: SimulatedReader, task: Task) -> None:
        super().__init__(source, reader, STREAM, wanted(task), task.plan.end_ns)
        self._plan = task.plan
        self._simulated = source.stream

    def query(self, token: str, start_ns: int, end_ns: int | None, function: str = "") -> Query:
        plan, stream = self._plan, self._simulated
        stream.require_parents_first(plan, token)
        return _NotedQuery(
            super().query(token, start_ns, end_ns, function),
            lambda: stream.completed.add((plan.plan_id, token)),
        )


class _NotedQuery:
    """A query that says when it has been read to its end."""

    watermark_ns = open_ms = silent_ms = stalls = 0
    retried: Mapping[str, int] = MappingProxyType({})

    def __init__(self, query: Query, on_end: Callable[[], object]) -> None:
        self._query = query
        self._on_end = on_end

    def run(self, decoder: BatchDecoder, consumer: RecordConsumer) -> None:
        self._query.run(decoder, consumer)
        self._on_end()

    def cancel(self) -> None:
        self._query.cancel()

    @property
    def queried_source(self) -> bool:
        return self._query.queried_source


STREAM = FollowedStream(
    "p",
    ChangeStream("project", "instance", "database", "Stream"),
    Dialect.GOOGLE_STANDARD_SQL,
    PartitionMode.IMMUTABLE_KEY_RANGE,
    1_000,
    1 << 40,
)
