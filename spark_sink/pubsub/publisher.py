"""The sending of messages to Pub/Sub in Spark's tasks, in order for each ordering key.

A request has the messages of one topic. Requests with one ordering key are sent one after the
other, each when the one before was acknowledged. So a message that comes for the first time is
never behind its successor; one that comes again may be.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any, Final
from zlib import crc32

import pyarrow as pa
from google.pubsub_v1.types import PubsubMessage

from slackwater.spark_sink.errors import MessageRefusedError
from slackwater.spark_sink.message_rows import ORDER, ROW_HASH
from slackwater.spark_sink.pubsub.ordering import Ordering, ordering_key
from slackwater.spark_sink.pubsub.service import Service, is_of_messages, is_of_topic
from slackwater.timestamp import datetime_to_rfc3339

Row = Mapping[str, Any]
# What names a message among an epoch's.
PLACE: Final = ("table_name", "topic", *ORDER, ROW_HASH)
COLUMNS: Final = (*PLACE, "key", "value", "mod_type", "uuid", "low_watermark")
# A message that is larger is sent by itself, and refused if it is too large.
_REQUEST_BYTES_MAX: Final = 9_000_000


@dataclass(frozen=True, slots=True)
class Publisher:
    """A sender of the messages that a task reads.

    Attributes:
        service: where they go.
        ordering: what messages share that are delivered in order.
        requests: how many are under way at once.
        batch_messages: how many a request has at most; Pub/Sub takes a thousand.
        stops: at a message that is refused; otherwise it is left out and named in the result.
    """

    service: Service
    ordering: Ordering
    requests: int
    batch_messages: int
    stops: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the messages of a Spark partition, and yield its result.

        Args:
            batches: the columns of COLUMNS; rows of one ordering key in order.

        Raises:
            MessageRefusedError, PublishError: see Service.publish().
        """
        with ThreadPoolExecutor(self.requests) as pool:
            lanes = [_Lane(self, pool) for _ in range(self.requests)]
            for number, row in enumerate(row for batch in batches for row in batch.to_pylist()):
                shared = ordering_key(self.ordering, row)
                choice = crc32(shared.encode()) if shared else number // self.batch_messages
                lanes[choice % self.requests].add(row, shared)
            for lane in lanes:
                lane.send_rest()
            results = [result for lane in lanes for result in lane.results()]
        if results:
            yield pa.RecordBatch.from_pylist(results, result_schema())


def result_schema() -> pa.Schema:
    """Return the columns of a result: PLACE of each refused message, with the reason.

    A topic alone, without a reason, is one to which messages were sent.
    """
    texts = dict.fromkeys(("table_name", "topic", "server_transaction_id"), pa.string())
    return pa.schema(
        {
            **texts,
            "record_sequence": pa.string(),
            "commit_timestamp": pa.timestamp("us", "UTC"),
            "number": pa.int32(),
            ROW_HASH: pa.int64(),
            "reason": pa.string(),
        }
    )


@dataclass
class _Batch:
    messages: list[Any] = field(default_factory=list)
    places: list[Row] = field(default_factory=list)
    size: int = 0


class _Lane:
    """Messages whose requests are sent one after the other."""

    def __init__(self, publisher: Publisher, pool: ThreadPoolExecutor) -> None:
        self._publisher, self._pool = publisher, pool
        self._batches: dict[str, _Batch] = {}
        self._size = 0
        self._under_way: Future[list[Row]] | None = None
        self._results: list[Row] = []
        self._topics: set[str] = set()

    def add(self, row: Row, shared: str) -> None:
        """Add a message with its ordering key, and send those that fill a request."""
        message, topic = message_of(row, shared), row["topic"]
        size = message.ByteSize()
        begun = self._batches.get(topic)
        if begun is not None and begun.size + size > _REQUEST_BYTES_MAX:
            self._send(topic)
        batch = self._batches.setdefault(topic, _Batch())
        batch.messages.append(message)
        batch.places.append({name: row[name] for name in PLACE})
        batch.size += size
        self._size += size
        if len(batch.messages) == self._publisher.batch_messages:
            self._send(topic)
        elif self._size > _REQUEST_BYTES_MAX:
            # Of several topics.
            self._send(max(self._batches, key=lambda each: self._batches[each].size))

    def send_rest(self) -> None:
        """Begin to send what is left."""
        self._await()
        batches, self._batches = self._batches, {}
        self._under_way = self._pool.submit(self._send_all, batches)

    def results(self) -> list[Row]:
        """Wait, and return the refused messages, and the topics of the others."""
        self._await()
        nothing = dict.fromkeys((*PLACE, "reason"))
        return [*self._results, *({**nothing, "topic": topic} for topic in sorted(self._topics))]

    def _send(self, topic: str) -> None:
        batch = self._batches.pop(topic)
        self._size -= batch.size
        self._await()
        self._under_way = self._pool.submit(self._send_all, {topic: batch})

    def _send_all(self, batches: Mapping[str, _Batch]) -> list[Row]:
        refused: list[Row] = []
        for topic, batch in batches.items():
            of_batch = self._refused(topic, batch.messages, batch.places)
            refused += of_batch
            if len(of_batch) < len(batch.messages):
                self._topics.add(topic)
        return refused

    def _await(self) -> None:
        if self._under_way is not None:
            self._results += self._under_way.result()
            self._under_way = None

    def _refused(self, topic: str, messages: list[Any], places: list[Row]) -> list[Row]:
        """Send messages, and return the places of those that are refused, with the reason."""
        try:
            self._publisher.service.publish(topic, messages)
        except MessageRefusedError as error:
            if len(messages) > 1 and is_of_messages(error):
                half = len(messages) // 2
                return [
                    *self._refused(topic, messages[:half], places[:half]),
                    *self._refused(topic, messages[half:], places[half:]),
                ]
            if self._publisher.stops or not (is_of_messages(error) or is_of_topic(error)):
                raise
            return [{**place, "reason": error.message} for place in places]
        return []


def message_of(row: Row, shared: str) -> Any:
    """Return the protocol buffer of a message: the value, and attributes by which to filter."""
    message = PubsubMessage.pb(PubsubMessage())
    value = row["value"] or ""
    message.data = value if isinstance(value, bytes) else value.encode()
    message.ordering_key = shared
    attributes = message.attributes
    attributes["table"] = row["table_name"]
    attributes["mod_type"] = row["mod_type"]
    attributes["uuid"] = row["uuid"]
    for name in ("commit_timestamp", "low_watermark"):
        attributes[name] = datetime_to_rfc3339(row[name].astimezone(UTC))
    return message
