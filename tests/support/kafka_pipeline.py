"""Epochs of a pipeline that are sent to a real broker exactly once, without Spark."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, cast
from zlib import crc32

import pyarrow as pa
import pytest

from slackwater.spark_sink.kafka.broker_errors import typed_error
from slackwater.spark_sink.kafka.exactly_once import ExactlyOnce
from slackwater.spark_sink.kafka.positions import Position
from slackwater.spark_sink.kafka.shard_sender import (
    COLUMNS,
    RESULT,
    KeptTransactions,
    ShardResult,
    ShardSender,
)
from slackwater.spark_sink.kafka.transaction import Ids, PositionReader
from slackwater.spark_sink.messaging.delivery import ClosingMessage, Mark
from tests.support.kafka_broker import kafka_broker as kafka_broker
from tests.support.kafka_broker import read_topics

AT = datetime(1970, 1, 1, tzinfo=UTC)
FENCED = r"another process sends for this pipeline \((FENCED|INVALID_PRODUCER_EPOCH)"
NO_SPARK = cast("Any", None)
_numbers = count(1)
Message = tuple[int, str]


class Pipeline:
    """The epochs of one pipeline in a topic of its own; messages are (commit time, key)."""

    def __init__(self, host: str) -> None:
        self.host, self.topic = host, f"changes-{next(_numbers)}"
        self.ids = Ids(f"group-{self.topic}", f"positions-{self.topic}")
        self.settings = {"bootstrap.servers": host}

    def owner(self, shards: int = 2, source: str = "stream") -> ExactlyOnce:
        """Return what another process sends with."""
        return ExactlyOnce(self.topic, source, self.ids, self.settings, shards)

    def send(
        self,
        messages: Sequence[Message],
        end: int,
        shards: int = 2,
        *,
        only: Iterable[int] | None = None,
        before: Callable[[], object] = lambda: None,
        halfway: Callable[[], object] = lambda: None,
    ) -> int:
        """Send an epoch's shards as Spark's tasks do, and return the number of messages sent.

        Args:
            messages: of the epoch, in commit order.
            end: the epoch's low watermark.
            shards: their number.
            only: the shards to send; None for all.
            before, halfway: what happens before a shard is begun, and within its transaction.
        """
        sender = ShardSender(
            tuple(self.settings.items()), self.ids, Position(end, shards, epoch_id=end)
        )
        sent = 0
        for shard in range(1, shards + 1) if only is None else only:
            rows = [m for m in messages if crc32(m[1].encode()) % shards + 1 == shard]

            def batches(rows: Sequence[Message] = rows, shard: int = shard) -> Iterator[Any]:
                for number, (time, key) in enumerate(rows):
                    if number == 1:
                        halfway()
                    row = (shard, self.topic, key, f"{time}", time)
                    yield pa.RecordBatch.from_pylist([dict(zip(COLUMNS, row, strict=True))])

            if rows:
                before()
            for batch in sender(batches()):
                sent += _sent(ShardResult(**json.loads(row[RESULT])) for row in batch.to_pylist())
        return sent

    def send_from_here(
        self, messages: Sequence[Message], end: int, kept: dict[int, KeptTransactions]
    ) -> int:
        """Send an epoch in two shards as the driver does, and return the number of messages."""
        sender = ShardSender(tuple(self.settings.items()), self.ids, Position(end, 2, epoch_id=end))
        rows = sorted(
            (crc32(key.encode()) % 2 + 1, self.topic, key, f"{time}", time)
            for time, key in messages
        )
        in_order = sorted(rows, key=lambda row: (row[0], row[4]))
        table = pa.table(dict(zip(COLUMNS, zip(*in_order, strict=True), strict=True)))
        return _sent(sender.send_from_here(table, kept))

    def shards_in_use(self) -> int:
        """Return the number of shards that whoever owns the pipeline sends with."""
        whole = PositionReader(self.settings, self.ids).read(()).whole
        assert whole is not None
        return whole.shards

    def close(self, owner: ExactlyOnce, end: int, *, resolved: bool = False) -> None:
        message = ClosingMessage(self.topic, 0, None, f"resolved {end}".encode())
        mark = Mark(AT + timedelta(microseconds=end), end)
        owner.close(NO_SPARK, [message] if resolved else [], mark)

    def committed(self) -> Counter[Message]:
        """Return what a consumer reads, after checking the order of each key."""
        changes: Counter[Message] = Counter()
        for messages in read_topics(self.host, self.topic).values():
            resolved = 0
            newest: dict[str, int] = {}
            for message in messages:
                word, _, time = (message.value() or b"").decode().rpartition(" ")
                if word:
                    resolved = int(time)
                    continue
                key = (message.key() or b"").decode()
                assert int(time) > resolved, "a change behind its resolved message"
                assert int(time) >= newest.get(key, 0), "a key's changes out of order"
                newest[key] = int(time)
                changes[int(time), key] += 1
        return changes


def _sent(results: Iterable[ShardResult]) -> int:
    """Return the number of messages sent, or raise what went wrong."""
    sent = 0
    for result in results:
        if result.code is not None:
            raise typed_error(result.code, result.reason or "", result.topic)
        sent += result.sent
    return sent


@pytest.fixture
def pipeline(kafka_broker: str) -> Pipeline:
    return Pipeline(kafka_broker)


def complete(owner: ExactlyOnce) -> datetime | None:
    position = owner.position(NO_SPARK)
    assert position is not None
    return position.complete


def epoch(after: int, end: int, keys: int = 7) -> list[Message]:
    return [(time, f"key {time % keys}") for time in range(after + 1, end + 1)]
