"""A query that is silent without being closed is cancelled, counted and opened again."""

import threading
import time

import grpc
import pytest

from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.query.partition_query import PartitionQuery
from slackwater.reader.query.stall_watchdog import STALL_HEARTBEATS, silence_max_s
from slackwater.reader.records import DataChangeRecord
from slackwater.reader.transport.connection import Connection
from tests.faults.breaking_spanner import BreakingSpanner
from tests.faults.test_query_breaks import RECORDS

HEARTBEAT_MS = 1_000
DATA = [record for record in RECORDS if isinstance(record, DataChangeRecord)]


class Stalling(BreakingSpanner):
    """Goes silent in its first queries, each after one message more, without closing them."""

    def __init__(self, stalls: int) -> None:
        super().__init__(RECORDS, [])
        self._left = stalls
        self.over = threading.Event()

    def execute(self, request: bytes, context: grpc.ServicerContext):  # type: ignore[no-untyped-def]
        stalls, self._left = self._left > 0, self._left - 1
        for message in super().execute(request, context):
            yield message
            if stalls:
                self.over.wait(240)
                return


def query(spanner: BreakingSpanner) -> PartitionQuery:
    stream = ChangeStream(
        "project", "instance", "database", "s", endpoint=plaintext(f"127.0.0.1:{spanner.port}")
    )
    return PartitionQuery(
        Connection(stream),
        Dialect.GOOGLE_STANDARD_SQL,
        partition_token="p",
        start_timestamp_ns=500,
        end_timestamp_ns=10_500,
        heartbeat_ms=HEARTBEAT_MS,
    )


def test_a_silent_query_is_opened_again_and_loses_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spanner = Stalling(1)
    with spanner:
        asked = query(spanner)
        began = time.monotonic()
        got = [record for message in asked for record in message.records]
        assert [r for r in got if isinstance(r, DataChangeRecord)] == DATA
        assert asked.stalls == 1
        assert time.monotonic() - began >= STALL_HEARTBEATS * HEARTBEAT_MS / 1_000
        assert spanner.starts == [500, 1_000]
        assert "partition p stalled" in caplog.text
        spanner.over.set()


def test_a_slow_consumer_does_not_count_as_a_stall() -> None:
    with BreakingSpanner(RECORDS, []) as spanner:
        asked = query(spanner)
        for number, _ in enumerate(asked):
            if number == 1:
                time.sleep(silence_max_s(HEARTBEAT_MS, 0) + 1)
        assert asked.stalls == 0
        assert len(spanner.starts) == 1


def test_a_query_that_stalls_again_without_moving_gets_more_time() -> None:
    waits = [silence_max_s(10_000, n) for n in range(8)]
    assert waits[:3] == [30, 60, 120]
    assert waits == sorted(waits)
    assert waits[-1] == waits[-2], "the time is bounded"
