"""A partition query that breaks in the middle goes on without losing or doubling a record."""

import re
import threading
import time
from collections.abc import Iterator

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.errors import (
    InvalidQueryError,
    PermissionDeniedError,
    ReaderError,
    UnavailableError,
)
from slackwater.reader.query.partition_query import PartitionQuery
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartition,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
)
from slackwater.reader.transport.answers import Reaction, answer_of
from slackwater.reader.transport.connection import Connection
from tests.faults.breaking_spanner import BreakingSpanner

RETRYABLE = [
    code
    for code in grpc.StatusCode
    if code is not grpc.StatusCode.OK and answer_of(code.name, "broken").reaction is Reaction.REOPEN
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


class Silent(BreakingSpanner):
    """Sends one message, and holds the rest back until the gate is opened."""

    def __init__(self) -> None:
        super().__init__(RECORDS, [])
        self.gate = threading.Event()

    def execute(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        for message in super().execute(request, context):
            yield message
            self.gate.wait(240)


def connect(port: int) -> Connection:
    host = f"127.0.0.1:{port}"
    return Connection(
        ChangeStream("project", "instance", "database", "s", endpoint=plaintext(host))
    )


def partition_query(connection: Connection) -> PartitionQuery:
    return PartitionQuery(
        connection,
        Dialect.GOOGLE_STANDARD_SQL,
        partition_token="p",
        start_timestamp_ns=500,
        end_timestamp_ns=10_500,
        heartbeat_ms=1_000,
    )


def read(port: int) -> list[ChangeRecord]:
    connection = connect(port)
    try:
        return [record for message in partition_query(connection) for record in message.records]
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


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "Syntax error [at 1:8]", InvalidQueryError),
        (grpc.StatusCode.INVALID_ARGUMENT, "400 Bad Request", UnavailableError),
        (grpc.StatusCode.PERMISSION_DENIED, "403 Forbidden", PermissionDeniedError),
    ],
)
def test_errors_that_are_not_retryable_are_raised_at_once(
    code: grpc.StatusCode, message: str, kind: type[ReaderError]
) -> None:
    with BreakingSpanner(RECORDS, [(1, code, message)]) as spanner:
        with pytest.raises(kind, match=re.escape(message)):
            read(spanner.port)
        assert len(spanner.starts) == 1


def test_a_query_of_a_closed_connection_is_not_opened_again() -> None:
    with Silent() as spanner:
        connection = connect(spanner.port)
        messages = iter(partition_query(connection))
        next(messages)
        connection.close()
        spanner.gate.set()
        with pytest.raises(UnavailableError, match="CANCELLED"):
            list(messages)
        assert len(spanner.starts) == 1


def test_a_query_can_be_cancelled_from_another_thread_while_it_waits() -> None:
    with Silent() as spanner:
        query = partition_query(connect(spanner.port))
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
        reader.join(timeout=240)
        spanner.gate.set()
        assert not reader.is_alive()
        assert "cancelled" in str(ended[0])
