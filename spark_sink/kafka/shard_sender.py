"""The sending of an epoch's shards, each in one transaction: in Spark's tasks, or in the driver.

Errors of Kafka are returned and not raised, so that the driver has them whole.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaException

from slackwater.sealing import seal, unseal
from slackwater.spark_sink.kafka.positions import Position, is_after, later
from slackwater.spark_sink.kafka.transaction import (
    Ids,
    MessageFailedError,
    PositionReader,
    Transactions,
)
from slackwater.spark_sink.message_rows import HEADERS

# The columns of a shard's messages, in this order; HEADERS may follow.
COLUMNS: Final = ("shard", "topic", "key", "value", "committed_us")
# The column with the JSON of a ShardResult.
_Row = tuple[Any, ...]
RESULT: Final = "result"
SPLIT_CHANGED: Final = "_SPLIT_CHANGED"
# A broker forgets a transactional id that was not in use for days (transactional.id.expiration.ms).
_KEPT_S_MAX: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class ShardResult:
    """The result of a shard.

    Attributes:
        shard: its number.
        sent: the number of messages sent now; others were sent before.
        topics: of all its messages.
        code: Kafka's name of the error; None if the shard is complete.
        topic: of a message that was refused; None if another thing failed.
        reason: the error's text.
    """

    shard: int
    sent: int
    topics: tuple[str, ...]
    code: str | None = None
    topic: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class KeptTransactions:
    """A shard's transactions that a process keeps for the next epoch.

    No other process has sent in this shard since: it would have fenced these transactions first.

    Attributes:
        transactions: begun and committed one after the other.
        position: that the last one committed.
        at_s: when, by the monotonic clock.
    """

    transactions: Transactions
    position: Position
    at_s: float


@dataclass(frozen=True)
class ShardSender:
    """A sender of the shards that a task reads.

    Attributes:
        settings: of librdkafka, as pairs.
        ids: the pipeline's names.
        position: that the epoch leads to.
    """

    settings: tuple[tuple[str, str], ...]
    ids: Ids
    position: Position

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what pickle needs; the settings, a password perhaps among them, are sealed."""
        return _unsealed, (seal(json.dumps(self.settings)), self.ids, self.position)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the messages of a Spark partition, and yield the results of all shards.

        Args:
            batches: the columns of COLUMNS; the rows of a shard follow each other.
        """
        rows = (row for batch in batches for row in _rows(batch))
        for shard, messages in groupby(rows, itemgetter(0)):
            sending = _Sending(self, shard)
            sending.add(messages)
            result = json.dumps(asdict(sending.finish()))
            yield pa.RecordBatch.from_pydict({RESULT: [result]})

    def send_from_here(
        self, messages: pa.Table, by_shard: dict[int, KeptTransactions]
    ) -> list[ShardResult]:
        """Send messages in this process; a new producer for each would take longer than a few.

        Args:
            messages: the columns of COLUMNS; the rows of a shard follow each other.
            by_shard: the transactions that this process has kept; updated.
        """
        results = []
        for shard, of_shard in groupby(_rows(messages), itemgetter(0)):
            reusable = by_shard.pop(shard, None)
            if reusable is not None and time.monotonic() - reusable.at_s > _KEPT_S_MAX:
                reusable = None
            sending = _Sending(self, shard, reusable)
            sending.add(of_shard)
            results.append(sending.finish())
            if sending.reusable is not None:
                by_shard[shard] = sending.reusable
        return results


def _unsealed(settings: str, ids: Ids, position: Position) -> ShardSender:
    pairs = tuple((name, value) for name, value in json.loads(unseal(settings)))
    return ShardSender(pairs, ids, position)


def _rows(messages: pa.Table | pa.RecordBatch) -> Iterator[_Row]:
    columns = [messages[name].to_pylist() for name in COLUMNS]
    headers: Iterable[Sequence[tuple[str, bytes]]] = repeat(())
    if HEADERS in messages.schema.names:
        lists = messages[HEADERS].to_pylist()
        headers = ([(header["key"], header["value"]) for header in items] for items in lists)
    return zip(*columns, headers, strict=False)


class _Sending:
    """A shard on its way. After an error its other messages are read and left out.

    Attributes:
        shard: its number.
        reusable: the transactions to keep for the next epoch; None if there are none.
    """

    def __init__(
        self, sender: ShardSender, shard: int, reusable: KeptTransactions | None = None
    ) -> None:
        self.shard = shard
        self.reusable = reusable
        self._sender = sender
        self._topics: set[str] = set()
        self._sent = 0
        self._failed: ShardResult | None = None
        self._transactions: Transactions | None = None
        # Messages up to this commit timestamp were sent before.
        self._sent_until_us = 0
        self._begin()

    def _begin(self) -> None:
        position = self._sender.position
        with self._failing():
            begins: Position | None
            if self.reusable is None:
                transactions, begins = self._take_over()
            else:
                transactions, begins = self.reusable.transactions, self.reusable.position
            if is_after(position, begins):
                self._sent_until_us = _sent_until_us(begins, position)
                self._transactions = transactions
                transactions.begin()

    def _take_over(self) -> tuple[Transactions, Position | None]:
        """Fence the former senders of this shard, and return the position that they reached."""
        sender = self._sender
        reader = _reader(sender.settings, sender.ids)
        transactions = Transactions(
            dict(sender.settings), sender.ids, self.shard, sender.position.shards
        )
        positions = reader.read([self.shard])
        whole = positions.whole
        if whole is not None and whole.shards not in (0, sender.position.shards):
            # Another process goes on with another number: a shard has other keys there.
            raise MessageFailedError(SPLIT_CHANGED, "", "the number of shards was changed")
        return transactions, later(positions.by_shard.get(self.shard), whole)

    def add(self, messages: Iterable[_Row]) -> None:
        """Send messages, rows of COLUMNS, unless they were sent before."""
        transactions, sent_until_us = self._transactions, self._sent_until_us
        with self._failing():
            for _, topic, key, value, committed_us, headers in messages:
                self._topics.add(topic)
                if transactions is not None and committed_us > sent_until_us:
                    transactions.send(topic, key, value, headers=headers)
                    self._sent += 1

    def finish(self) -> ShardResult:
        """Commit, and return the result of the shard."""
        if self._transactions is not None:
            with self._failing():
                reader = _reader(self._sender.settings, self._sender.ids)
                self._transactions.commit(reader, self._sender.position)
                self.reusable = KeptTransactions(
                    self._transactions, self._sender.position, time.monotonic()
                )
        return self._failed or ShardResult(self.shard, self._sent, tuple(sorted(self._topics)))

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Abort and take note of an error of Kafka's."""
        try:
            yield
        except (MessageFailedError, KafkaException) as error:
            reason: Exception = error
            if self._transactions is not None:
                reason = self._transactions.abort(error)
                self._transactions = None
            self.reusable = None
            self._failed = _result_of(self.shard, reason)


def _result_of(shard: int, error: Exception) -> ShardResult:
    if isinstance(error, MessageFailedError):
        return ShardResult(shard, 0, (), error.code, error.topic, error.reason)
    code = error.args[0]
    return ShardResult(shard, 0, (), code.name(), None, code.str())


def _sent_until_us(begins: Position | None, position: Position) -> int:
    """Return the commit timestamp up to which all messages were certainly sent.

    A chunk of an initial scan was sent as a whole or not at all: its rows have the scan's low
    watermark as their commit timestamp, as those of its other chunks do.
    """
    if begins is None or position.chunk is not None:
        return -(2**63)
    return begins.watermark_us


@lru_cache(maxsize=4)
def _reader(settings: tuple[tuple[str, str], ...], ids: Ids) -> PositionReader:
    """Return a reader, which a worker keeps for its next tasks: a new connection takes 60 ms."""
    return PositionReader(dict[str, str](settings), ids)


def settings_of(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return settings in the form that ShardSender takes."""
    return tuple(sorted(settings.items()))
