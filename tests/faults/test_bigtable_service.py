"""The synthetic Bigtable keeps to the protocol: a plain client gets each change once, in order."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import pytest
from google.api_core.exceptions import GoogleAPICallError
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcTransport
from google.cloud.bigtable_v2.types import (
    GenerateInitialChangeStreamPartitionsRequest,
    GenerateInitialChangeStreamPartitionsResponse,
    ReadChangeStreamRequest,
    ReadChangeStreamResponse,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.synthetic.bigtable.faults import CODES, Fault, Faults
from tests.synthetic.bigtable.history import (
    Change,
    DeleteFamily,
    History,
    KeyRange,
    Shape,
    Stall,
    Tablet,
    generate,
)
from tests.synthetic.bigtable.messages import ReadRequest, ReadResponse, keys_of, partition_of
from tests.synthetic.bigtable.plain_reader import PlainReader
from tests.synthetic.bigtable.server import bigtable_process, now_us
from tests.synthetic.bigtable.service import MULTI_CLUSTER, TABLE, BigtableService
from tests.synthetic.grpc_over_h2 import AbortError, Ready

SEEDS = st.integers(0, 2**32)
SHAPES = st.builds(
    Shape,
    seconds=st.integers(1, 12),
    tablets=st.integers(1, 6),
    changes_per_s=st.integers(1, 60),
    churn_per_s=st.sampled_from((0, 0.5, 2, 5)),
    clusters=st.integers(1, 2),
    late=st.sampled_from((0, 0.3)),
    rows=st.integers(1, 40),
    stalls=st.integers(0, 2),
)
SECOND_US = 1_000_000
# A small history: its tablets change at 20 s and at 40 s, and a row changes each second.
START_US = 1_700_000_000 * SECOND_US
BEFORE = [(b"", b"b"), (b"b", b"d"), (b"d", b"")]
AFTER = [(b"", b"c"), (b"c", b"e"), (b"e", b"")]
LASTS_S = 60


class Clock:
    def __init__(self, now_us: int) -> None:
        self.now_us = now_us
        self.limit_us = now_us + 3_600 * SECOND_US

    def __call__(self) -> int:
        return self.now_us

    def sleep_until(self, time_us: int) -> None:
        self.now_us = max(self.now_us, time_us)
        assert self.now_us < self.limit_us, "The reader does not come to an end."


def at(second: float) -> int:
    return START_US + int(second * SECOND_US)


def small_history(*, back: bool = False, stalls: tuple[Stall, ...] = ()) -> History:
    """Three tablets and other three; and if so, the first three again."""
    tablets = [Tablet(*keys, at(0), at(20)) for keys in BEFORE]
    tablets += [Tablet(*keys, at(20), at(40) if back else None) for keys in AFTER]
    tablets += [Tablet(*keys, at(40)) for keys in BEFORE if back]
    changes = [
        Change(at(i), at(i), b"abcdef"[i % 6 : i % 6 + 1], 0, "one", False, (DeleteFamily("f"),))
        for i in range(1, LASTS_S)
    ]
    return History(changes, tuple(tablets), stalls)


def request(
    keys: tuple[bytes, bytes] = (b"b", b"d"),
    start_s: float | None = 0,
    end_s: float | None = None,
    tokens: Sequence[tuple[tuple[bytes, bytes], str]] = (),
) -> Any:
    asked = ReadRequest(table_name=TABLE, partition=partition_of(KeyRange(*keys)))
    for token_keys, token in tokens:
        partition = partition_of(KeyRange(*token_keys))
        asked.continuation_tokens.tokens.add(partition=partition, token=token)
    if start_s is not None and not tokens:
        asked.start_time.FromMicroseconds(at(start_s))
    if end_s is not None:
        asked.end_time.FromMicroseconds(at(end_s))
    return asked


def read(service: BigtableService, asked: Any, clock: Clock, until_s: float) -> list[Any]:
    """The messages that come until a time, or until the call ends."""
    messages: list[Any] = []
    for ready in service.read(asked.SerializeToString()):
        if isinstance(ready, int):
            if ready > at(until_s):
                break
            clock.sleep_until(ready)
        else:
            messages += map(ReadResponse.FromString, ready)
    return messages


def tokens_in(close: Any) -> list[tuple[KeyRange, str]]:
    return [(keys_of(t.partition), t.token) for t in close.close_stream.continuation_tokens]


def kinds(messages: Sequence[Any]) -> list[str]:
    return [message.WhichOneof("stream_record") for message in messages]


def seconds(messages: Sequence[Any]) -> list[int]:
    """When the changes among some messages were committed."""
    return [
        (m.data_change.commit_timestamp.ToMicroseconds() - START_US) // SECOND_US
        for m in messages
        if m.HasField("data_change")
    ]


def by_writer(changes: Sequence[Change]) -> dict[tuple[bytes, str], list[Change]]:
    rows: dict[tuple[bytes, str], list[Change]] = {}
    for change in changes:
        rows.setdefault((change.row_key, change.cluster), []).append(change)
    return rows


def expected(history: History, start_us: int, end_us: int) -> list[Change]:
    """The changes that arrive in time, as an assembler makes them."""
    return [
        replace(change, arrival_us=change.commit_us)
        for change in history.changes
        if start_us <= change.arrival_us <= end_us
    ]


def span(start_us: int, end_us: int) -> Any:
    asked = ReadRequest(table_name=TABLE)
    asked.start_time.FromMicroseconds(start_us)
    asked.end_time.FromMicroseconds(end_us)
    asked.heartbeat_duration.FromMicroseconds(SECOND_US)
    return asked


@given(SEEDS, SHAPES)
@settings(deadline=None)
def test_tablets_tile_the_keys_at_each_time(seed: int, shape: Shape) -> None:
    history = generate(seed, shape)
    for time_us in {tablet.from_us for tablet in history.tablets}:
        for now in (time_us, time_us + 1):
            tablets = history.tablets_at(now)
            borders = [b"", *(tablet.end_key for tablet in tablets)]
            assert [tablet.start_key for tablet in tablets] == borders[:-1]
            assert borders[-1] == b""
            assert sorted(set(borders)) == borders[:-1]


@pytest.mark.parametrize("is_faulty", [False, True])
@given(
    seed=SEEDS,
    shape=SHAPES,
    began=st.floats(0, 1.2),
    start=st.floats(0, 1),
    bytes_max=st.integers(100, 5_000),
)
@settings(deadline=None)
def test_a_plain_client_gets_each_change_once_in_order(
    is_faulty: bool, seed: int, shape: Shape, began: float, start: float, bytes_max: int
) -> None:
    history = generate(seed, shape)
    length_us = shape.end_us - shape.start_us
    clock = Clock(shape.start_us + int(began * length_us))
    start_us = shape.start_us + int(start * (clock.now_us - shape.start_us))
    end_us = shape.end_us - length_us // 10
    faults = Faults(seed, 0.5) if is_faulty else None
    service = BigtableService(
        history, clock_us=clock, faults=faults, bytes_max=bytes_max, seed=seed
    )
    reader = PlainReader(
        service.generate,
        service.read,
        span(start_us, end_us),
        clock_us=clock,
        sleep_until=clock.sleep_until,
        seed=seed,
    )
    reader.run()
    assert by_writer(reader.changes) == by_writer(expected(history, start_us, end_us))
    assert is_faulty or reader.errors == []
    if not shape.late or shape.clusters == 1:
        assert reader.early == []


def test_each_fault_happens_and_each_code_comes() -> None:
    shape = Shape(seconds=30, churn_per_s=3, large=0.1)
    clock, faults = Clock(shape.start_us), Faults(1, 0.8)
    service = BigtableService(generate(1, shape), clock_us=clock, faults=faults, bytes_max=500)
    asked = span(shape.start_us, shape.end_us)
    reader = PlainReader(
        service.generate, service.read, asked, clock_us=clock, sleep_until=clock.sleep_until
    )
    reader.run()
    assert set(faults.counts) == set(Fault)
    assert set(reader.errors) == {None, *CODES}


def test_a_call_ends_when_its_end_has_passed_and_all_before_was_sent() -> None:
    clock = Clock(at(3))
    service = BigtableService(small_history(), clock_us=clock)
    messages = read(service, request(end_s=9), clock, 60)
    assert kinds(messages) == ["data_change"] * 4 + ["heartbeat", "close_stream"]
    # Both bounds are inclusive.
    assert seconds(messages) == [1, 2, 7, 8]
    assert seconds(read(service, request(start_s=2, end_s=8), clock, 60)) == [2, 7, 8]
    close = messages[-1].close_stream
    assert close.status.code == 0
    assert not close.continuation_tokens
    assert not close.new_partitions
    assert clock() == at(9) + 1


def test_a_heartbeat_comes_each_so_often_and_its_token_goes_on_from_there() -> None:
    clock = Clock(at(3))
    service = BigtableService(small_history(), clock_us=clock)
    asked = request(start_s=3)
    asked.heartbeat_duration.FromMicroseconds(SECOND_US)
    messages = read(service, asked, clock, 12)
    beats = [message.heartbeat for message in messages if message.HasField("heartbeat")]
    watermarks = [beat.estimated_low_watermark.ToMicroseconds() for beat in beats]
    assert watermarks == [at(second) for second in range(4, 13)]
    tokens = [(BEFORE[1], beat.continuation_token.token) for beat in beats]
    again = [
        seconds(read(service, request(end_s=12, tokens=[token]), clock, 13)) for token in tokens
    ]
    assert again == [[7, 8]] * 3 + [[8]] + [[]] * 5


def test_what_follows_a_partition_takes_its_tokens_as_in_the_documented_example() -> None:
    clock = Clock(at(10))
    service = BigtableService(small_history(), clock_us=clock)
    closed = []
    for keys in BEFORE:
        clock.now_us = at(10)
        closed.append(read(service, request(keys), clock, 30))
    first, second, third = closed
    assert seconds(second) == [1, 2, 7, 8, 13, 14, 19]
    close = second[-1].close_stream
    assert close.status.code == grpc.StatusCode.OUT_OF_RANGE.value[0]
    own, others = tokens_in(second[-1])
    assert [keys for keys, _ in (own, others)] == [(b"b", b"c"), (b"c", b"d")]
    assert [keys_of(partition) for partition in close.new_partitions] == AFTER[:2]
    asked = request(AFTER[0], end_s=30, tokens=[tokens_in(first[-1])[0], own])
    assert seconds(read(service, asked, clock, 40)) == [24, 25, 30]
    assert kinds(third)[-1] == "close_stream"


def test_a_merged_partition_goes_on_where_each_of_its_parents_was() -> None:
    clock = Clock(at(15))
    service = BigtableService(small_history(), clock_us=clock)
    early, late = (read(service, request(keys, end_s=15), clock, 15) for keys in BEFORE[:2])
    clock.sleep_until(at(21))
    tokens = []
    for keys, message in zip(BEFORE, (early[0], late[3]), strict=False):
        old = (keys, message.data_change.token)
        (moved,) = read(service, request(keys, tokens=[old]), clock, 21)
        tokens.append(tokens_in(moved)[0])
    # Of a in the first one 6 was sent, and of b in the second one 1 and 7.
    rest = [12, 13, 18, 19]
    messages = read(service, request(AFTER[0], end_s=20, tokens=tokens), clock, 21)
    assert seconds(messages) == rest
    for number, message in enumerate(messages[:-1], 1):
        own = (AFTER[0], message.data_change.token)
        asked = request(AFTER[0], end_s=20, tokens=[own])
        assert seconds(read(service, asked, clock, 21)) == rest[number:]


def test_only_what_is_a_tablet_now_can_be_read() -> None:
    clock = Clock(at(21))
    service = BigtableService(small_history(back=True), clock_us=clock)
    asked = request(end_s=40)
    (moved,) = read(service, asked, clock, 60)
    assert [keys_of(p) for p in moved.close_stream.new_partitions] == AFTER[:2]
    clock.sleep_until(at(41))
    # It is a tablet again, and nothing tells that it was none.
    messages = read(service, asked, clock, 60)
    assert seconds(messages) == [1, 2, 7, 8, 13, 14, 19, 20, 25, 26, 31, 32, 37, 38]
    assert messages[-1].close_stream.status.code == 0


def test_a_stream_whose_tablet_ended_names_its_next_ones_though_it_is_back() -> None:
    clock = Clock(at(10))
    service = BigtableService(small_history(back=True), clock_us=clock)
    answer = service.read(request(start_s=10).SerializeToString())
    assert next(answer) == at(13)
    clock.sleep_until(at(41))
    messages = [
        ReadResponse.FromString(message)
        for ready in answer
        if not isinstance(ready, int)
        for message in ready
    ]
    assert seconds(messages) == [13, 14, 19]
    assert [keys_of(p) for p in messages[-1].close_stream.new_partitions] == AFTER[:2]


def test_a_stall_holds_up_changes_watermark_and_end() -> None:
    clock = Clock(at(6))
    stall = Stall(b"c", b"c\0", at(7), at(31))
    service = BigtableService(small_history(stalls=(stall,)), clock_us=clock)
    asked = request(start_s=5, end_s=10)
    messages = read(service, asked, clock, 30)
    assert kinds(messages) == ["data_change"] + ["heartbeat"] * 4
    marks = {m.heartbeat.estimated_low_watermark.ToMicroseconds() for m in messages[1:]}
    assert marks == {at(7)}
    # Others go on.
    assert seconds(read(service, request(AFTER[2], 5, 12), clock, 30)) == [5, 10, 11]
    clock = Clock(at(6))
    service = BigtableService(small_history(stalls=(stall,)), clock_us=clock)
    assert seconds(read(service, asked, clock, 40)) == [7, 8]
    assert clock() == at(31)


def test_two_tokens_of_a_position_differ() -> None:
    clock = Clock(at(10))
    service = BigtableService(small_history(), clock_us=clock)
    (one, *_), (same, *_) = (read(service, request(), clock, 10) for _ in range(2))
    assert one.data_change.token != same.data_change.token


MALFORMED = (BEFORE[1], "AAAA")
REFUSED = {
    "a start in the future": (request(start_s=61), "INVALID_ARGUMENT"),
    "a start before the stream": (request(start_s=-1), "OUT_OF_RANGE"),
    "a start before the retention": (request(start_s=0.5), "OUT_OF_RANGE"),
    "no start": (request(start_s=None), "INVALID_ARGUMENT"),
    "a malformed token": (request(tokens=[MALFORMED]), "INVALID_ARGUMENT"),
    "a token of another range": (request(AFTER[0], tokens=[MALFORMED]), "INVALID_ARGUMENT"),
    "a token twice": (request(tokens=[MALFORMED, MALFORMED]), "INVALID_ARGUMENT"),
    "another table": (ReadRequest(table_name="other"), "NOT_FOUND"),
    "two clusters": (
        ReadRequest(table_name=TABLE, app_profile_id=MULTI_CLUSTER),
        "FAILED_PRECONDITION",
    ),
    "an open start": (
        ReadRequest(table_name=TABLE, partition={"row_range": {"start_key_open": b"b"}}),
        "INVALID_ARGUMENT",
    ),
}


@pytest.mark.parametrize(("asked", "code"), REFUSED.values(), ids=REFUSED)
def test_a_request_that_breaks_a_rule_is_refused(asked: Any, code: str) -> None:
    clock = Clock(at(60))
    service = BigtableService(small_history(), clock_us=clock, retention_us=59 * SECOND_US)
    with pytest.raises(AbortError) as error:
        read(service, asked, clock, 60)
    assert error.value.code.name == code


def test_tokens_of_another_partition_or_too_old_are_refused() -> None:
    clock = Clock(at(10))
    service = BigtableService(small_history(), clock_us=clock, retention_us=30 * SECOND_US)
    first, *_ = read(service, request(), clock, 10)
    token = first.data_change.token
    with pytest.raises(AbortError, match="of another partition"):
        read(service, request(BEFORE[0], tokens=[(BEFORE[0], token)]), clock, 10)
    clock.sleep_until(at(50))
    with pytest.raises(AbortError, match="before the retention"):
        read(service, request(tokens=[(BEFORE[1], token)]), clock, 50)


def test_tokens_that_overlap_are_refused_at_the_ends_of_the_keys_too() -> None:
    clock, whole = Clock(at(10)), (b"", b"")
    service = BigtableService(small_history(), clock_us=clock)
    with pytest.raises(AbortError, match="exactly cover"):
        read(service, request(whole, tokens=[(whole, "AAAA")] * 2), clock, 10)


def test_the_token_of_an_idle_partition_does_not_grow_old() -> None:
    clock = Clock(at(57))
    history = replace(small_history(), tablets=tuple(Tablet(*keys, at(0)) for keys in BEFORE))
    service = BigtableService(history, clock_us=clock, retention_us=30 * SECOND_US)
    (beat,) = read(service, request(start_s=57), clock, 64)
    clock.sleep_until(at(90))
    token = (BEFORE[1], beat.heartbeat.continuation_token.token)
    assert kinds(read(service, request(end_s=80, tokens=[token]), clock, 90)) == ["close_stream"]


def answers(client: BigtableClient, request: Any, response: Any, call: Any) -> Any:
    """Make an answer of a method of the generated client: what comes in a short time."""

    def answer(asked: bytes) -> Iterator[Ready]:
        messages: list[bytes] = []
        try:
            messages += map(response.serialize, call(request.deserialize(asked), timeout=0.3))
        except GoogleAPICallError as error:
            yield messages
            raise AbortError(error.grpc_status_code, error.message) from error
        yield messages

    return answer


@pytest.mark.parametrize("is_faulty", [False, True])
def test_the_generated_client_gets_the_same_from_a_process_of_its_own(is_faulty: bool) -> None:
    shape = Shape(now_us() - SECOND_US, seconds=6, tablets=2, churn_per_s=1, large=0.1)
    make = partial(generate, 5, shape)
    faults = Faults(1, 0.5, messages_max=10) if is_faulty else None
    with bigtable_process(make, faults) as host, grpc.insecure_channel(host) as channel:
        client = BigtableClient(transport=BigtableGrpcTransport(channel=channel))
        reader = PlainReader(
            answers(
                client,
                GenerateInitialChangeStreamPartitionsRequest,
                GenerateInitialChangeStreamPartitionsResponse,
                client.generate_initial_change_stream_partitions,
            ),
            answers(
                client,
                ReadChangeStreamRequest,
                ReadChangeStreamResponse,
                client.read_change_stream,
            ),
            span(shape.start_us, shape.end_us),
            clock_us=now_us,
            sleep_until=lambda time_us: time.sleep(max(0, time_us - now_us()) / 1e6),
        )
        reader.run()
    history = make()
    everything = expected(history, shape.start_us, shape.end_us)
    assert by_writer(reader.changes) == by_writer(everything)
    assert reader.closed
    # Each call has its deadline, too.
    others = set(reader.errors) - {None, grpc.StatusCode.DEADLINE_EXCEEDED}
    assert bool(others) == is_faulty
