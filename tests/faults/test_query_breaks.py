"""A partition query that breaks in the middle goes on without losing or doubling a record."""

from __future__ import annotations

import threading
import time

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.errors import InvalidQueryError, ReaderError
from slackwater.reader.query.partition_query import PartitionQuery
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartition,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
)
from slackwater.reader.transport.connection import Connection
from tests.faults.breaking_spanner import BreakingSpanner

RETRYABLE = [
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
]


def data(time_us: int, number: int) -> DataChangeRecord:
    return DataChangeRecord(
        time_us * 1_000,
        f"t{number % 2}",
        f"{number:08}",
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


# Several records share a commit timestamp, and a heartbeat lies between.
RECORDS: list[ChangeRecord] = [
    data(1, 0),
    data(2, 1),
    data(2, 2),
    data(2, 3),
    HeartbeatRecord(3_000),
    data(4, 4),
    data(4, 5),
    ChildPartitionsRecord(5_000, "0", (ChildPartition("c", frozenset({"p"})),)),
]


def read(port: int) -> list[ChangeRecord]:
    stream = ChangeStream("project", "instance", "database", "s", emulator_host=f"127.0.0.1:{port}")
    connection = Connection(stream)
    query = PartitionQuery(
        connection,
        Dialect.GOOGLE_STANDARD_SQL,
        partition_token="p",
        start_timestamp_ns=500,
        end_timestamp_ns=10_500,
        heartbeat_ms=1_000,
    )
    try:
        return [record for message in query for record in message.records]
    finally:
        connection.close()


@pytest.mark.parametrize("code", RETRYABLE, ids=lambda code: code.name)
def test_retryable_errors_of_spanner_are_retried(code: grpc.StatusCode) -> None:
    with BreakingSpanner(RECORDS, [(3, code, "broken")]) as spanner:
        got = [r for r in read(spanner.port) if isinstance(r, DataChangeRecord)]
        assert got == [r for r in RECORDS if isinstance(r, DataChangeRecord)]
        assert spanner.starts == [500, 2_000]


@given(st.lists(st.integers(0, len(RECORDS)), max_size=5))
@settings(max_examples=25, deadline=None)
def test_each_record_arrives_once_wherever_a_query_breaks(cuts: list[int]) -> None:
    breaks = [(cut, grpc.StatusCode.UNAVAILABLE, "cut") for cut in cuts]
    with BreakingSpanner(RECORDS, breaks) as spanner:
        got = read(spanner.port)
        assert [r for r in got if isinstance(r, DataChangeRecord)] == [
            r for r in RECORDS if isinstance(r, DataChangeRecord)
        ]
        assert RECORDS[-1] in got
        assert len(spanner.starts) == len(cuts) + 1
        assert spanner.starts == sorted(spanner.starts)


def test_a_lost_session_is_created_again() -> None:
    lost = (2, grpc.StatusCode.NOT_FOUND, "Session not found: projects/p/.../sessions/1")
    with BreakingSpanner(RECORDS, [lost]) as spanner:
        assert len([r for r in read(spanner.port) if isinstance(r, DataChangeRecord)]) == 6
        assert spanner.sessions == 2


def test_errors_that_are_not_retryable_are_raised_at_once() -> None:
    with BreakingSpanner(
        RECORDS, [(1, grpc.StatusCode.INVALID_ARGUMENT, "no such thing")]
    ) as spanner:
        with pytest.raises(InvalidQueryError, match="no such thing"):
            read(spanner.port)
        assert len(spanner.starts) == 1


def test_a_query_can_be_cancelled_from_another_thread_while_it_waits() -> None:
    """Serve a silent stream: the server sends one message and holds the rest back."""
    gate = threading.Event()

    class Silent(BreakingSpanner):
        def execute(self, request: bytes, context: grpc.ServicerContext):  # type: ignore[no-untyped-def]
            for message in super().execute(request, context):
                yield message
                gate.wait(60)

    with Silent(RECORDS, []) as spanner:
        stream = ChangeStream(
            "project", "instance", "database", "s", emulator_host=f"127.0.0.1:{spanner.port}"
        )
        query = PartitionQuery(
            Connection(stream),
            Dialect.GOOGLE_STANDARD_SQL,
            partition_token="p",
            start_timestamp_ns=500,
            end_timestamp_ns=10_500,
            heartbeat_ms=1_000,
        )
        ended: list[BaseException] = []

        def follow() -> None:
            try:
                for _ in query:
                    pass
            except ReaderError as error:
                ended.append(error)

        reader = threading.Thread(target=follow)
        reader.start()
        time.sleep(0.5)
        query.cancel()
        reader.join(timeout=20)
        gate.set()
        assert not reader.is_alive()
        assert "cancelled" in str(ended[0])
