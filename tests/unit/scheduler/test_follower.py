"""The follower keeps queries open, and gives out only what it can show to be complete."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from slackwater.reader.change_stream import Dialect, PartitionMode
from slackwater.reader.errors import UnavailableError
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartition,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    PartitionEndRecord,
    PartitionStartRecord,
)
from slackwater.scheduler.continuous import follower as module
from slackwater.scheduler.continuous.follower import Follower, Limits, Wanted
from slackwater.state.models import PartitionKey
from slackwater.timestamp import floor_to_us
from tests.support.proto_messages import proto_messages, proto_row
from tests.support.spanner_messages import googlesql_row, messages
from tests.unit.scheduler.test_followed_partition import sequences

SECOND_NS = 1_000_000_000
NOW_NS = floor_to_us(time.time_ns()) + 500
IMMUTABLE, MUTABLE = PartitionMode.IMMUTABLE_KEY_RANGE, PartitionMode.MUTABLE_KEY_RANGE


def key(token: str) -> PartitionKey:
    return PartitionKey("", token)


def at(seconds: int) -> int:
    return NOW_NS + seconds * SECOND_NS


def data(seconds: int) -> DataChangeRecord:
    return DataChangeRecord(
        at(seconds) - 500,
        "t",
        f"{seconds}",
        True,
        "T",
        (),
        (),
        "INSERT",
        "NEW_ROW",
        1,
        1,
        "",
        False,
    )


class Queries:
    """Queries whose messages the test sends."""

    def __init__(self, mode: PartitionMode) -> None:
        self.clock_ns = NOW_NS
        self.opened: list[tuple[str, int, int | None]] = []
        self.waiting: dict[str, asyncio.Queue[Any]] = defaultdict(asyncio.Queue)
        self._mode = mode

    async def open(
        self, key: PartitionKey, start_ns: int, end_ns: int | None
    ) -> AsyncIterator[list[bytes]]:
        self.opened.append((key.token, start_ns, end_ns))
        while (records := await self.waiting[key.token].get()) is not None:
            if isinstance(records, Exception):
                raise records
            yield self._messages(records)

    def _messages(self, records: Sequence[ChangeRecord]) -> list[bytes]:
        if self._mode is MUTABLE:
            return proto_messages([proto_row(r) for r in records], Dialect.GOOGLE_STANDARD_SQL)
        return messages([googlesql_row(r) for r in records], is_postgresql=False)

    async def send(self, token: str, records: Sequence[ChangeRecord] | Exception | None) -> None:
        """Send records, an error, or the query's end, and let the follower receive it."""
        await self.waiting[token].put(records)
        for _ in range(5):
            await asyncio.sleep(0)

    @property
    def tokens(self) -> list[str]:
        return [token for token, _, _ in self.opened]


Test = Callable[[Follower, Queries], Awaitable[None]]


def following(
    mode: PartitionMode = IMMUTABLE, memory_bytes: int = 1 << 30, partitions_max: int = 10
) -> Callable[[Test], Callable[[], None]]:
    """Run a test with a follower that is asked for partition p through now, and its queries."""

    async def run(test: Test) -> None:
        queries = Queries(mode)
        limits = Limits(memory_bytes, partitions_max, heartbeat_ns=SECOND_NS)
        follower = Follower(queries.open, mode, limits, lambda: queries.clock_ns)
        try:
            assert await take(follower, "p", -1, 0) is None, "nothing is there yet"
            await asyncio.sleep(0)
            await test(follower, queries)
        finally:
            await follower.close()

    return lambda test: lambda: asyncio.run(run(test))


async def take(
    follower: Follower, token: str, start: int, end: int, wait_s: float = 0
) -> list[str] | None:
    """Return the record_sequences of a partition's data change records; None if it is not held."""
    want = Wanted(key(token), at(start))
    portions = await follower.portions([want], at(end), wait_s=wait_s)
    if want not in portions:
        return None
    return sequences(portions[want])


@following()
async def test_a_partition_is_asked_once_for_all_epochs_and_attempts(
    follower: Follower, queries: Queries
) -> None:
    await queries.send("p", [data(1), data(2), HeartbeatRecord(at(3))])
    for _ in range(2):
        assert await take(follower, "p", 0, 1) == ["1"]
    assert await take(follower, "p", 1, 3) == ["2"]
    assert await take(follower, "p", 0, 1) is None, "an earlier epoch gets nothing"
    await queries.send("p", [data(4), data(5)])
    assert await take(follower, "p", 3, 4) == ["4"]
    assert queries.opened == [("p", at(0), None)]


@following()
async def test_a_task_waits_for_a_partition_that_is_a_little_late(
    follower: Follower, queries: Queries
) -> None:
    asked = asyncio.ensure_future(take(follower, "p", 0, 1, wait_s=60))
    await asyncio.sleep(0.05)
    assert not asked.done()
    await queries.send("p", [data(1), HeartbeatRecord(at(2))])
    assert await asked == ["1"]


@following()
async def test_a_partition_that_is_too_late_is_given_up_for_a_while(
    follower: Follower, queries: Queries
) -> None:
    assert await take(follower, "p", 0, 1) is None
    await queries.send("p", [data(1), HeartbeatRecord(at(3))])
    assert await take(follower, "p", 1, 2) is None
    assert queries.tokens == ["p"]


@following()
async def test_children_are_followed_from_their_start_as_soon_as_they_are_announced(
    follower: Follower, queries: Queries
) -> None:
    child = ChildPartition("c", frozenset({"p"}))
    await queries.send("p", [data(1), ChildPartitionsRecord(at(2), "0", (child,))])
    await queries.send("p", None)
    await queries.send("c", [data(3), HeartbeatRecord(at(4))])
    assert await take(follower, "p", 0, 3) == ["1"]
    assert await take(follower, "c", 2, 3) == ["3"]
    assert queries.opened[1:] == [("c", at(2), None)]


@pytest.mark.parametrize("end", [UnavailableError("broken"), ValueError("a bug"), None])
def test_a_query_that_breaks_or_ends_without_the_partitions_end_is_forgotten(
    end: Exception | None,
) -> None:
    async def test(follower: Follower, queries: Queries) -> None:
        await queries.send("p", [data(1), HeartbeatRecord(at(2))])
        await queries.send("p", end)
        assert await take(follower, "p", 0, 1) is None
        await asyncio.sleep(0)
        assert queries.opened[1:] == [("p", at(1), None)], "it is followed again from there"

    following()(test)()


@following()
async def test_messages_that_can_not_be_read_cost_all_partitions_what_they_had(
    follower: Follower, queries: Queries
) -> None:
    await take(follower, "q", -1, 0)
    await asyncio.sleep(0)
    await queries.send("q", [data(1), HeartbeatRecord(at(2))])
    # The record of another partition mode is none that a decoder here reads.
    broken = proto_messages([proto_row(data(1))], Dialect.GOOGLE_STANDARD_SQL)
    queries._messages = lambda _records: broken  # type: ignore[method-assign, assignment]
    await queries.send("p", [data(1)])
    assert await take(follower, "q", 0, 1) is None


@following()
async def test_what_lies_long_ago_is_not_followed(follower: Follower, queries: Queries) -> None:
    assert await take(follower, "past", -60, -32) is None
    assert await take(follower, "recent", -60, -30) is None
    await asyncio.sleep(0)
    assert queries.tokens == ["p", "recent"]


@following(memory_bytes=4_000)
async def test_the_largest_partitions_are_given_up_when_memory_runs_out(
    follower: Follower, queries: Queries
) -> None:
    await take(follower, "small", -1, 0)
    await asyncio.sleep(0)
    await queries.send("p", [*(data(second) for second in range(1, 9))])
    await queries.send("small", [data(1), HeartbeatRecord(at(3))])
    assert await take(follower, "small", 0, 1) == ["1"]
    follower.keep_bounds()
    assert await take(follower, "p", 0, 1) is None
    assert await take(follower, "small", 1, 2) == []
    await asyncio.sleep(0)
    assert queries.tokens == ["p", "small"], "it would only run out again"


@following()
async def test_what_a_later_epoch_has_dropped_is_not_given_to_an_earlier_one(
    follower: Follower, queries: Queries
) -> None:
    former = asyncio.ensure_future(take(follower, "p", 0, 3, wait_s=60))
    await asyncio.sleep(0.02)
    await queries.send("p", [data(1), data(3)])
    assert await take(follower, "p", 2, 2) == []
    await queries.send("p", [HeartbeatRecord(at(4))])
    assert await former is None


@following()
async def test_a_start_after_the_partitions_end_is_left_to_spanner(
    follower: Follower, queries: Queries
) -> None:
    """An epoch read by another host's tasks may have missed the end, which Spanner can withhold."""
    child = ChildPartition("c", frozenset({"p"}))
    await queries.send("p", [data(1), ChildPartitionsRecord(at(2), "0", (child,))])
    await queries.send("p", None)
    assert await take(follower, "p", 3, 4) is None
    await asyncio.sleep(0)
    assert queries.opened[2:] == [("p", at(4), None)]


@following(partitions_max=2)
async def test_no_more_partitions_are_followed_than_one_process_can_follow(
    follower: Follower, queries: Queries
) -> None:
    for _ in range(2):
        assert await take(follower, "q", -1, 0) is None
        assert await take(follower, "r", -1, 0) is None
        await asyncio.sleep(0)
    assert queries.tokens == ["p", "q"]


def test_a_partition_that_nobody_asks_for_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(follower: Follower, queries: Queries) -> None:
        follower.keep_bounds()
        assert follower.partitions == 1
        monkeypatch.setattr(module, "IDLE_S", -1)
        follower.keep_bounds()
        assert follower.partitions == 0

    following()(test)()


@following(MUTABLE)
async def test_with_mutable_key_ranges_a_query_goes_on_from_what_the_one_before_has_shown(
    follower: Follower, queries: Queries
) -> None:
    """It may have ended too soon, and not have sent what was committed before its end."""
    [(_, _, first_end_ns)] = queries.opened
    assert first_end_ns is not None
    await queries.send("p", [data(1), HeartbeatRecord(at(2)), data(3), data(4)])
    queries.clock_ns = first_end_ns
    await queries.send("p", None)
    assert queries.opened[1][1] == at(4) - 500, "more of that time may come"
    await queries.send("p", [data(4), data(5), HeartbeatRecord(at(6))])
    assert await take(follower, "p", 0, 6) == ["1", "3", "4", "5"]


@following(MUTABLE)
async def test_with_mutable_key_ranges_a_query_that_lies_in_the_past_shows_all_of_it(
    follower: Follower, queries: Queries
) -> None:
    [(_, _, first_end_ns)] = queries.opened
    assert first_end_ns is not None
    await queries.send("p", [data(1)])
    queries.clock_ns = at(1) + 2 * (first_end_ns - NOW_NS)
    await queries.send("p", None)
    await queries.send("p", [data(1)])
    second_end_ns = queries.opened[1][2]
    assert second_end_ns is not None
    assert second_end_ns < queries.clock_ns
    await queries.send("p", None)
    assert queries.opened[2][1] == second_end_ns + 1
    assert await take(follower, "p", 0, 9) == ["1"]


@following(MUTABLE)
async def test_with_mutable_key_ranges_a_query_that_ends_too_soon_shows_nothing_of_the_future(
    follower: Follower, queries: Queries
) -> None:
    await queries.send("p", [data(1), HeartbeatRecord(at(2))])
    await queries.send("p", None)
    assert await take(follower, "p", 0, 5) is None
    assert await take(follower, "p", 0, 1) is None


@following(MUTABLE)
async def test_with_mutable_key_ranges_started_partitions_are_followed_and_ends_are_ends(
    follower: Follower, queries: Queries
) -> None:
    start = PartitionStartRecord(at(1) - 500, "0", ("q",))
    await queries.send("p", [start, data(2), PartitionEndRecord(at(3) - 500, "1", "p")])
    await queries.send("p", None)
    await queries.send("q", [data(2), HeartbeatRecord(at(9))])
    assert queries.tokens == ["p", "q"]
    assert queries.opened[1][1] == at(1) - 500
    assert await take(follower, "p", 0, 8) == ["2"]
    want = Wanted(key("q"), at(1) - 500)
    assert want in await follower.portions([want], at(8), wait_s=0)
