"""A partition query goes on, in further queries, from what the ones before have shown."""

import time
from collections.abc import Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tenacity import wait_none

from slackwater.reader.change_stream import Dialect, PartitionMode
from slackwater.reader.query.partition_query import PartitionQuery
from slackwater.reader.records import ChangeRecord, DataChangeRecord, HeartbeatRecord
from slackwater.reader.transport.statement import Statement
from slackwater.timestamp import format_rfc3339, seconds_to_ns
from tests.support.calls import IteratedCall
from tests.support.proto_messages import proto_messages, proto_row

NOW_NS = time.time_ns() // 1_000 * 1_000
GOOGLESQL = Dialect.GOOGLE_STANDARD_SQL


def data(ago_s: int) -> DataChangeRecord:
    return DataChangeRecord(
        ago(ago_s), "t", "0", True, "T", (), (), "INSERT", "NEW_ROW", 1, 1, "", False
    )


def ago(seconds: int) -> int:
    return NOW_NS - seconds_to_ns(seconds)


class Answers:
    """A connection whose calls bring some records each, and then end with OK."""

    is_closed = False
    change_stream = SimpleNamespace(change_stream="S")

    def __init__(self, *answers: Sequence[ChangeRecord]) -> None:
        self._answers = list(answers)
        self.starts: list[Any] = []

    def stream(self, statement: Statement) -> IteratedCall:
        self.starts.append(statement.params["start_timestamp"])
        rows = [proto_row(record) for record in self._answers.pop(0)]
        return IteratedCall(iter(proto_messages(rows, GOOGLESQL)), lambda: None)


def test_a_query_whose_end_lay_ahead_shows_nothing_of_it_when_it_ends_too_soon() -> None:
    connection: Any = Answers([data(50)], [data(50), data(40), HeartbeatRecord(NOW_NS)])
    query = PartitionQuery(
        connection,
        GOOGLESQL,
        partition_token="p",
        start_timestamp_ns=ago(60),
        end_timestamp_ns=None,
        heartbeat_ms=1_000,
        mode=PartitionMode.MUTABLE_KEY_RANGE,
    )
    with patch("slackwater.reader.query.reopened_query._WAIT", wait_none()):
        messages = list(islice(query, 3))
    records = [record for message in messages for record in message.records]
    assert records == [data(50), data(40), HeartbeatRecord(NOW_NS)]
    assert connection.starts == [format_rfc3339(ago(60)), format_rfc3339(ago(50))]
