"""The open queries of one change stream, and the records that they have brought.

All of it runs in one event loop. A partition is followed from the end of an epoch in which a task
asked for it, and its children from their start. It is forgotten when its query breaks, when a
record came out of order, when it is late, when memory runs out, and when nobody has asked for a
while. A task that asks for a partition that is not followed reads it by itself.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from slackwater.reader.change_stream import PartitionMode
from slackwater.reader.decode.records import ChangeRecordDecoder
from slackwater.reader.errors import ReaderError
from slackwater.reader.query.batch_decoder import BatchDecoder, QueryStream
from slackwater.reader.query_window import query_end_ns
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    PartitionStartRecord,
)
from slackwater.reader.transport.grpc_errors import CALL_ERRORS
from slackwater.scheduler.continuous.followed_partition import FollowedPartition, Portion
from slackwater.scheduler.lineage import announced
from slackwater.state.models import PartitionKey
from slackwater.timestamp import seconds_to_ns

_log = logging.getLogger(__name__)

# An epoch that ended longer ago than this and a heartbeat interval is catching up: a query from
# there on would bring the whole backlog.
_RECENT_NS: Final = seconds_to_ns(30)
# After so long without being asked for, a partition is forgotten; one that has ended, sooner.
IDLE_S: Final = 600.0
_ENDED_IDLE_S: Final = 60.0
# One that had to be forgotten is followed again after this time.
_AGAIN_AFTER_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.01

Announcement = ChildPartitionsRecord | PartitionStartRecord
# Opens a partition's query from a start_timestamp, with an end_timestamp or None, both nanoseconds.
OpenQuery = Callable[[PartitionKey, int, int | None], AsyncIterator[list[bytes]]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A partition that a task asks for, and the first time to read, in nanoseconds."""

    key: PartitionKey
    start_ns: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a follower.

    Attributes:
        memory_bytes: of the records; beyond it the largest partitions are forgotten.
        partitions: the most that are followed.
        heartbeat_ns: the heartbeat interval, by which epochs lie behind the clock.
    """

    memory_bytes: int
    partitions: int
    heartbeat_ns: int


class _Partition(FollowedPartition):
    """A partition that is followed, and the receiver of partitions that it announces."""

    def __init__(
        self, token: str, start_ns: int, on_announced: Callable[[Announcement], None]
    ) -> None:
        super().__init__(token, start_ns)
        self._on_announced = on_announced

    def take_records(self, records: Sequence[ChangeRecord]) -> Sequence[DataChangeRecord]:
        """Take the next records, and pass on the partitions that they announce."""
        super().take_records(records)
        for record in records:
            if isinstance(record, Announcement):
                self._on_announced(record)
        return ()


@dataclass(slots=True)
class _Followed:
    partition: FollowedPartition
    task: asyncio.Task[None]
    asked_s: float = field(default_factory=time.monotonic)


class Follower:
    """A follower of the partitions of one change stream.

    Args:
        open_query: opens queries.
        mode: the change stream's partition mode.
        limits: of its records and partitions.
        clock_ns: the time, to recognize ends that lie long ago or in the future.
    """

    def __init__(
        self,
        open_query: OpenQuery,
        mode: PartitionMode,
        limits: Limits,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._open_query = open_query
        self._limits = limits
        self._clock_ns = clock_ns
        self._mode = mode
        self._decoder = BatchDecoder(lambda _batch, _owners: None)
        self._followed: dict[PartitionKey, _Followed] = {}
        self._not_before_s: dict[PartitionKey, float] = {}

    @property
    def partitions(self) -> int:
        """The number of partitions followed."""
        return len(self._followed)

    async def portions(
        self, wanted: Sequence[Wanted], end_ns: int, *, wait_s: float
    ) -> Mapping[Wanted, Portion]:
        """Return the records of partitions through a time, for those that are complete by then.

        The others are followed from end_ns on, so that the next epoch can have them.

        Args:
            wanted: the partitions, each with the first time that is wanted.
            end_ns: the last time that is wanted, inclusive.
            wait_s: how long to wait for partitions that are not complete yet.
        """
        give_up_s = time.monotonic() + wait_s
        asked = {want: self._asked(want, end_ns) for want in wanted}
        following = {want: one for want, one in asked.items() if one is not None}
        self._decode()
        while time.monotonic() < give_up_s and any(
            self._is_awaited(want.key, one, end_ns) for want, one in following.items()
        ):
            await asyncio.sleep(_LOOK_EVERY_S)
            self._decode()
        portions = {}
        for want, one in following.items():
            if self._is_awaited(want.key, one, end_ns):
                self._forget_for_now(want.key, "it was late")
            elif self._followed.get(want.key) is one and one.partition.covers(want.start_ns):
                # Meanwhile a later epoch may have asked, or the partition have ended before.
                portions[want] = one.partition.portion(want.start_ns, end_ns)
        return portions

    def forget_all(self) -> None:
        """Forget all partitions, whose records may be wrong."""
        for key in list(self._followed):
            self._forget(key)

    async def close(self) -> None:
        """End all queries."""
        tasks = [one.task for one in self._followed.values()]
        self.forget_all()
        await asyncio.gather(*tasks, return_exceptions=True)

    def keep_bounds(self) -> None:
        """Forget partitions that nobody asks for, and the largest until memory is enough."""
        now_s = time.monotonic()
        for key, one in list(self._followed.items()):
            idle_s = _ENDED_IDLE_S if one.partition.has_ended else IDLE_S
            if now_s - one.asked_s > idle_s:
                self._forget(key)
        sizes = {key: one.partition.size_bytes for key, one in self._followed.items()}
        total = sum(sizes.values())
        if total > self._limits.memory_bytes // 2:
            for one in self._followed.values():
                one.partition.compact()
        for key in sorted(sizes, key=lambda key: -sizes[key]):
            if total <= self._limits.memory_bytes:
                break
            total -= sizes[key]
            self._forget_for_now(key, "memory ran out")
        self._not_before_s = {k: at for k, at in self._not_before_s.items() if at > now_s}

    def _asked(self, want: Wanted, end_ns: int) -> _Followed | None:
        """Return a partition that is followed from early enough on; else follow it from the end."""
        one = self._followed.get(want.key)
        if one is not None and one.partition.covers(want.start_ns):
            one.asked_s = time.monotonic()
            one.partition.drop_before(want.start_ns)
            return one
        if one is None or one.partition.complete_from_ns < end_ns:
            self._forget(want.key)
            if self._clock_ns() - end_ns < _RECENT_NS + self._limits.heartbeat_ns:
                self._follow(want.key, end_ns)
        return None

    def _is_awaited(self, key: PartitionKey, one: _Followed, end_ns: int) -> bool:
        is_followed = self._followed.get(key) is one and one.partition.is_in_order
        return is_followed and not one.partition.is_complete_through(end_ns)

    def _decode(self, stream: QueryStream | None = None, messages: Sequence[bytes] = ()) -> None:
        """Decode the pending messages, or only add a query's messages to them."""
        try:
            if stream is None:
                self._decoder.flush()
            else:
                self._decoder.add(stream, list(messages))
        except Exception as error:  # noqa: BLE001 - whatever it is, records of others are gone
            # It may be of any partition, and the pending messages of all were taken.
            _log.warning("what the open queries brought can't be read: %r", error)
            self.forget_all()

    def _follow(self, key: PartitionKey, start_ns: int) -> None:
        is_too_soon = self._not_before_s.get(key, 0.0) > time.monotonic()
        if key in self._followed or is_too_soon or len(self._followed) >= self._limits.partitions:
            return
        on_announced = partial(self._follow_announced, key.function)
        partition = _Partition(key.token, start_ns, on_announced)
        task = asyncio.ensure_future(self._read(key, partition, start_ns))
        self._followed[key] = _Followed(partition, task)

    def _follow_announced(self, function: str, record: Announcement) -> None:
        for partition in announced([record], function):
            self._follow(partition.key, partition.start_timestamp_ns)

    async def _read(self, key: PartitionKey, partition: FollowedPartition, start_ns: int) -> None:
        """Read a partition to its end, or until its query breaks."""
        has_ended = False
        try:
            has_ended = await self._read_to_end(key, partition, start_ns)
        except (*CALL_ERRORS, ReaderError) as error:
            _log.debug("the open query of partition %s broke: %s", key.token, error)
        except Exception:  # noqa: BLE001 - a defect costs this partition an epoch's query
            _log.exception("the open query of partition %s broke", key.token)
        finally:
            one = self._followed.get(key)
            if not has_ended and one is not None and one.partition is partition:
                del self._followed[key]

    async def _read_to_end(
        self, key: PartitionKey, partition: FollowedPartition, start_ns: int
    ) -> bool:
        stream = QueryStream(partition, ChangeRecordDecoder(self._mode))
        while True:
            end_ns = None
            if self._mode is PartitionMode.MUTABLE_KEY_RANGE:
                end_ns = query_end_ns(start_ns, None)
            opened_ns = self._clock_ns()
            stream.reset()
            async for messages in self._open_query(key, start_ns, end_ns):
                self._decode(stream, messages)
            self._decode()
            stream.decoder.finish()
            has_ended = partition.end()
            if has_ended or end_ns is None or self._clock_ns() < end_ns:
                return has_ended
            # A query that lies in the past shows all of it. Another one may end too soon, with
            # records that it has not sent (apache/beam issues 39821 and 40232).
            if opened_ns >= end_ns:
                partition.take_records((HeartbeatRecord(end_ns),))
            start_ns = partition.drop_incomplete()

    def _forget(self, key: PartitionKey) -> None:
        one = self._followed.pop(key, None)
        if one is not None:
            one.task.cancel()

    def _forget_for_now(self, key: PartitionKey, reason: str) -> None:
        _log.info("partition %s is asked once an epoch for a while: %s", key.token, reason)
        self._forget(key)
        self._not_before_s[key] = time.monotonic() + _AGAIN_AFTER_S
