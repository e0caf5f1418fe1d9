"""One Kafka transaction: messages, and the position that they lead to.

Others may use the same transactional id: a former owner that was frozen and wakes up, and a second
attempt of the same Spark task. The one that calls init_transactions last goes on; the others' open
transaction is aborted, and their next call fails. The position is read only after
init_transactions, which waits until a commit under way is finished. So it is the position that the
transaction starts from, or the transaction fails.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from slackwater.spark_sink.kafka.positions import WHOLE, Position, Positions

_TIMEOUT_S: Final = 60.0
# The partition follows from the key.
ANY_PARTITION: Final = -1
# An earlier error of the producer, which its next call in the transaction reports.
_FATAL: Final = "_FATAL"
# librdkafka's default of message.max.bytes.
MESSAGE_BYTES_MAX: Final = 1_000_000
# That of batch.size. With 16 kB, as Java's client has, messages take several times as long.
BATCH_BYTES_MAX: Final = 1_000_000
_POLL_EVERY: Final = 1_000
_PASSING: Final = frozenset(
    {
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "UNSTABLE_OFFSET_COMMIT",
        "_WAIT_COORD",
    }
)
_DEFAULTS: Final = {
    # As Java's client, so that a key stays in its partition when the way of delivery changes.
    "partitioner": "murmur2_random",
    # Consumers wait so long for a transaction whose process died, if none takes over.
    "transaction.timeout.ms": "300000",
    # The last transaction's end reaches all partitions shortly after it was committed.
    "retry.backoff.ms": "20",
    "linger.ms": "5",
    # librdkafka's own log would go to standard error.
    "log_level": "0",
}


@dataclass(frozen=True, slots=True)
class Ids:
    """The names by which a pipeline's transactions and positions are kept in Kafka.

    Attributes:
        group: the consumer group of the positions.
        topic: the topic whose partitions the group's offsets belong to.
    """

    group: str
    topic: str

    def transactional_id(self, shard: int, shards: int) -> str:
        """Return the transactional id of a shard.

        It names the number of shards, too: with another number a shard has other keys.
        """
        return f"{self.topic}.{shard}-of-{shards}" if shard != WHOLE else self.topic


class MessageFailedError(Exception):
    """A message was refused, and its transaction aborted.

    Attributes:
        code: Kafka's name of the error, such as MSG_SIZE_TOO_LARGE.
        topic: of the message.
    """

    def __init__(self, code: str, topic: str, reason: str) -> None:
        super().__init__(code, topic, reason)
        self.code, self.topic, self.reason = code, topic, reason


class PositionReader:
    """A reader of the positions that a consumer group holds.

    Args:
        settings: of librdkafka.
        ids: the pipeline's names.
        waits: for the end of a transaction that commits offsets; otherwise those before it are
            read.
    """

    def __init__(self, settings: Mapping[str, str], ids: Ids, *, waits: bool = True) -> None:
        self._ids = ids
        self.consumer: Consumer = Consumer(
            {
                "log_level": "0",
                **connection_settings(settings),
                "group.id": ids.group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed" if waits else "read_uncommitted",
            }
        )

    def read(self, shards: Iterable[int]) -> Positions:
        """Return the positions of the pipeline as a whole and of some shards.

        Raises:
            KafkaException: the broker refuses, or can't be reached.
        """
        numbers = [WHOLE, *shards]
        asked = [TopicPartition(self._ids.topic, number) for number in numbers]
        by_number = {}
        for committed in _while_passing(self.consumer.committed)(asked, timeout=_TIMEOUT_S):
            if committed.error is not None:
                raise KafkaException(committed.error)
            position = Position.parse(committed.offset, committed.metadata)
            if position is not None:
                by_number[committed.partition] = position
        whole = by_number.pop(WHOLE, None)
        return Positions(whole, by_number)


class Transactions:
    """The transactions of one transactional id, one after another.

    Args:
        settings: of librdkafka.
        ids: the pipeline's names.
        shard, shards: which transactional id it is.

    Raises:
        KafkaException: the broker refuses, or can't be reached.
    """

    def __init__(self, settings: Mapping[str, str], ids: Ids, shard: int, shards: int) -> None:
        self._ids, self._shard, self.shards = ids, shard, shards
        self._failed: MessageFailedError | None = None
        self._unpolled = 0
        self._producer: Producer = Producer(
            {
                **_DEFAULTS,
                **settings,
                "transactional.id": ids.transactional_id(shard, shards),
                "delivery.report.only.error": True,
                "on_delivery": self._refused,
            }
        )
        self._produce = self._producer.produce
        _while_passing(self._producer.init_transactions)(_TIMEOUT_S)

    @contextmanager
    def transaction(self, reader: PositionReader, position: Position) -> "Iterator[Transactions]":
        """Begin a transaction; commit it with a position, or abort it if an error is raised.

        Raises:
            MessageFailedError: a message was refused.
            KafkaException: the transaction failed.
        """
        self.begin()
        try:
            yield self
            self.commit(reader, position)
        except Exception as error:
            raise self.abort(error) from error

    def begin(self) -> None:
        """Begin a transaction."""
        self._producer.begin_transaction()

    def send(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        partition: int = ANY_PARTITION,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Send a message in the transaction.

        Raises:
            MessageFailedError: it is refused.
            KafkaException: the transaction failed.
        """
        while True:
            try:
                if headers:
                    self._produce(topic, value, key, partition, headers=list(headers))
                else:
                    self._produce(topic, value, key, partition)
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                self._raise_refusal()
                code = error.args[0]
                if code.fatal() or code.txn_requires_abort() or code.name() == _FATAL:
                    raise
                raise MessageFailedError(code.name(), topic, code.str()) from error
            else:
                break
        self._unpolled += 1
        if self._unpolled >= _POLL_EVERY:
            self._unpolled = 0
            self._producer.poll(0)
            self._raise_refusal()

    def commit(self, reader: PositionReader, position: Position) -> None:
        """Commit the messages and the position.

        Raises:
            MessageFailedError: a message was refused.
            KafkaException: the transaction failed.
        """
        place: TopicPartition = TopicPartition(
            self._ids.topic, self._shard, position.watermark_us, position.metadata()
        )
        group = reader.consumer.consumer_group_metadata()
        try:
            # librdkafka says which calls may be repeated: they go on waiting for the same request.
            _while_passing(self._producer.send_offsets_to_transaction)([place], group, _TIMEOUT_S)
            _while_passing(self._producer.commit_transaction)(_TIMEOUT_S)
        except KafkaException:
            self._producer.poll(0)
            self._raise_refusal()
            raise

    def abort(self, error: Exception) -> Exception:
        """Abort the transaction after an error, and return the error that says why.

        If it is fenced or the broker is out of reach, the next process aborts it.
        """
        try:
            self._producer.abort_transaction(_TIMEOUT_S)
        except KafkaException as cause:
            if isinstance(error, KafkaException) and error.args[0].name() == _FATAL:
                return cause
        return error

    def _refused(self, error: Any, message: Any) -> None:
        # Messages that an abort removed come here, too: the first one is the reason.
        if error is not None and self._failed is None and not error.name().startswith("_PURGE"):
            self._failed = MessageFailedError(error.name(), message.topic(), error.str())

    def _raise_refusal(self) -> None:
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed


def is_passing(error: BaseException) -> bool:
    """Return whether an error is transient, as while the group's coordinator starts."""
    if not isinstance(error, KafkaException):
        return False
    return error.args[0].retriable() or error.args[0].name() in _PASSING


_while_passing = retry(
    retry=retry_if_exception(is_passing),
    stop=stop_after_delay(_TIMEOUT_S),
    wait=wait_fixed(0.05),
    reraise=True,
)


def connection_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of connections, leaving out those of producers."""
    prefixes = ("bootstrap.", "security.", "sasl.", "ssl.", "socket.", "broker.", "client.")
    return {name: value for name, value in settings.items() if name.startswith(prefixes)}
