"""Delivery in Kafka's transactions: a consumer that reads committed messages gets each one once.

positions has the rules. Here they are carried out from the driver: shards are sent by Spark's tasks
(shard_sender), or by the driver if they are small, and closing messages by the driver.
"""

import json
import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from multiprocessing.pool import ThreadPool
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewPartitions, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from slackwater.spark_sink.errors import MessageRefusedError, PublishError, SinkError
from slackwater.spark_sink.java import map_in_arrow
from slackwater.spark_sink.kafka.broker_errors import (
    SENT_AGAIN,
    is_missing,
    is_too_large,
    typed_error,
)
from slackwater.spark_sink.kafka.positions import (
    WHOLE,
    Position,
    is_after,
    shards_to_use,
)
from slackwater.spark_sink.kafka.shard_sender import (
    COLUMNS,
    RESULT,
    KeptTransactions,
    ShardResult,
    ShardSender,
    settings_of,
)
from slackwater.spark_sink.kafka.transaction import (
    ANY_PARTITION,
    BATCH_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    Ids,
    MessageFailedError,
    PositionReader,
    Transactions,
    connection_settings,
)
from slackwater.spark_sink.message_rows import HEADERS, ORDER, ROW_HASH
from slackwater.spark_sink.messaging.delivery import ClosingMessage, Mark
from slackwater.spark_sink.sink import OutputPosition
from slackwater.timestamp import datetime_to_us

_log = logging.getLogger(__name__)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMEOUT_S: Final = 60.0
_ANSWER_S: Final = 20.0
_TRIES: Final = 3
_BATCH_SIZE: Final = "batch.size"


class _Owned:
    """The state of a process that has fenced all others.

    Attributes:
        shards: the number of shards in use.
        whole: up to where every shard is complete.
        ahead: the end of an epoch that was sent in part; None if there was none.
        transactions: of the pipeline as a whole.
        by_shard: the transactions of shards that this process sent in last.
    """

    def __init__(
        self, shards: int, whole: Position, ahead: Position | None, transactions: Transactions
    ) -> None:
        self.shards, self.whole, self.ahead = shards, whole, ahead
        self.transactions = transactions
        self.by_shard: dict[int, KeptTransactions] = {}


class ExactlyOnce:
    """Delivery in transactions; see Delivery.

    Args:
        pipeline: its name.
        source: the change stream's resource name.
        ids: the names of its positions.
        settings: of librdkafka.
        shards: into how many an epoch is split.
        has_headers: messages have some.
        is_cut_by_time: see Origin. Otherwise it takes one shard, whose epochs are sent whole.

    Raises:
        ClientSettingError: a setting of Kafka's client can't be used.
    """

    def __init__(
        self,
        pipeline: str,
        source: str,
        ids: Ids,
        settings: Mapping[str, str],
        shards: int,
        *,
        has_headers: bool = False,
        is_cut_by_time: bool = True,
    ) -> None:
        self._pipeline, self._source = pipeline, source
        self._ids, self._settings, self._shards = ids, dict(settings), shards
        self._columns = (*COLUMNS, HEADERS) if has_headers else COLUMNS
        self._is_cut_by_time = is_cut_by_time
        self._owned: _Owned | None = None
        self._last_error: KafkaError | None = None

    def send(self, message_rows: DataFrame, changes: DataFrame, mark: Mark) -> Collection[str]:
        """Send the shards that were not sent; see Delivery."""
        with self._typed_errors():
            owned = self._own()
        shards = owned.shards
        position = _position(mark, shards)
        # A table's rows with one key go through one shard, in order. Which one it is does not
        # depend on the settings: an epoch that was sent in part may come again with others.
        shard = F.pmod(F.xxhash64(ROW_HASH), F.lit(shards)).cast("int")
        end_us = F.lit(position.watermark_us)
        committed_us = F.unix_micros("commit_timestamp") if self._is_cut_by_time else end_us
        rows = message_rows.withColumn("shard", shard + 1).withColumn("committed_us", committed_us)
        together = rows.coalesce(1) if mark.is_small else rows.repartitionById(shards, shard)
        in_order = together.sortWithinPartitions("shard", *ORDER).select(*self._columns)
        sender = ShardSender(settings_of(self._settings), self._ids, position)
        if mark.is_small:
            results = sender.send_from_here(in_order.toArrow(), owned.by_shard)
        else:
            owned.by_shard.clear()
            results = _run(in_order, sender)
        for result in results:
            if result.code is not None:
                # Another process may have gone on: read the positions again.
                self._owned = None
                error = typed_error(result.code, result.reason or "", result.topic)
                if self._makes_batches_smaller(error):
                    return self.send(message_rows, changes, mark)
                raise error
        return {topic for result in results for topic in result.topics}

    def close(self, spark: SparkSession, messages: Sequence[ClosingMessage], mark: Mark) -> None:  # noqa: ARG002
        """Send closing messages, and commit the position of the pipeline as a whole; see Delivery.

        An epoch without messages is committed, too: a start compares the position with the
        checkpoint, and takes an output that is behind for one that lost messages.
        """
        with self._typed_errors():
            owned = self._own()
            position = replace(_position(mark, owned.shards), source=self._source)
            if not is_after(position, owned.whole):
                return
            with owned.transactions.transaction(self._reader, position) as transaction:
                for message in messages:
                    place = ANY_PARTITION if message.partition is None else message.partition
                    transaction.send(
                        message.topic, message.key, message.value, place, message.headers
                    )
            owned.whole = position
            if owned.shards != self._shards:
                # The epoch that was begun with another number of shards is complete.
                self._owned = None

    def partition_counts(self, spark: SparkSession, topics: Collection[str]) -> dict[str, int]:  # noqa: ARG002
        """Return the number of partitions of each topic; see Delivery."""
        with self._typed_errors():
            return self._partition_counts(topics)

    def _makes_batches_smaller(self, error: SinkError) -> bool:
        """Make batches no larger than a topic takes, and return True, unless they are so already.

        A broker refuses a batch of small messages as it refuses one large message.
        """
        if not (isinstance(error, MessageRefusedError) and is_too_large(error) and error.topic):
            return False
        limit = self.size_max(error.topic)
        if limit >= min(int(self._settings.get(_BATCH_SIZE, BATCH_BYTES_MAX)), self.size_max(None)):
            return False
        _log.info("topic %s takes %d bytes: batches are as small from now on", error.topic, limit)
        self._settings[_BATCH_SIZE] = str(limit)
        return True

    def size_max(self, topic: str | None) -> int:
        """Return the size in bytes of the largest message that is taken; None for any topic."""
        own = int(self._settings.get("message.max.bytes", MESSAGE_BYTES_MAX))
        if topic is None:
            return own
        asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
        with self._typed_errors():
            configs = self._admin.describe_configs([asked])[asked].result(_TIMEOUT_S)
        return min(own, int(configs["max.message.bytes"].value))

    def position(self, spark: SparkSession) -> OutputPosition | None:  # noqa: ARG002
        """Return how far everything was sent; see Delivery.

        A process calls it when it begins to own the pipeline. The former owner is fenced here, so
        that its open transactions do not hold consumers up; not one of the same name that reads
        another change stream.
        """
        self._owned = None
        with self._typed_errors():
            if (source := self._others_source()) is not None:
                return OutputPosition(None, None, f"{self._pipeline} of {source}")
            owned = self._own()
        whole, ahead = _watermark(owned.whole), _watermark(owned.ahead)
        committed = (ahead or whole) if owned.shards == 1 else None
        return OutputPosition(whole, ahead, self._pipeline, committed=committed)

    def _others_source(self) -> str | None:
        """Return the change stream of the positions, if it is not this one."""
        self._ensure_topic()
        reader = PositionReader(self._settings, self._ids, waits=False)
        with closing(reader.consumer):
            whole = reader.read(()).whole
        source = whole.source if whole is not None else None
        return None if source == self._source else source

    def _own(self) -> _Owned:
        """Return this process's state, after fencing all others if it has none yet.

        The number of shards may only change when no process can send with the last one. So it is
        committed first, which a task reads before it sends; then the last shards are fenced, after
        which the former owner's last commit is visible.
        """
        if self._owned is not None:
            return self._owned
        partitions = self._ensure_topic()
        transactions = Transactions(self._settings, self._ids, WHOLE, self._shards)
        for _ in range(_TRIES):
            # A process that died while it committed left positions that can't be read until its
            # transaction is aborted.
            begun = self._reader.read(()).whole
            self._fence({self._shards, (begun and begun.shards) or self._shards})
            positions = self._reader.read(range(1, partitions))
            shards = shards_to_use(positions, self._shards)
            last = positions.whole
            whole = Position(
                0 if last is None else last.watermark_us,
                shards,
                None if last is None else last.chunk,
                None if last is None else last.epoch_id,
                self._source,
            )
            if last is None or last.shards != shards:
                with transactions.transaction(self._reader, whole):
                    pass
            self._fence({shards} if last is None else {shards, last.shards or shards})
            seen = self._reader.read(range(1, partitions))
            if shards_to_use(seen, self._shards) == shards:
                self._owned = _Owned(shards, whole, seen.ahead, transactions)
                return self._owned
        raise PublishError(
            f"another process sends for {self._ids.group} with another number of shards.",
            SENT_AGAIN,
        )

    def _fence(self, splits: Collection[int]) -> None:
        """Abort the open transactions of other processes, and fence them from now on."""
        shards = [(shard, split) for split in splits for shard in range(1, split + 1)]
        with ThreadPool(len(shards)) as pool:
            pool.starmap(lambda *s: Transactions(self._settings, self._ids, *s), shards)

    def _ensure_topic(self) -> int:
        """Create the topic of the positions with enough partitions, and return their number."""
        name, needed = self._ids.topic, self._shards + 1
        count = self._partition_counts([name]).get(name, 0)
        admin = self._admin
        try:
            if count == 0:
                _log.info("creating topic %s, which holds the positions of what was sent", name)
                topic = NewTopic(name, needed, -1, config={"cleanup.policy": "compact"})
                admin.create_topics([topic])[name].result(_TIMEOUT_S)
            elif count < needed:
                admin.create_partitions([NewPartitions(name, needed)])[name].result(_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise
        until_s = time.monotonic() + _TIMEOUT_S
        while (count := self._partition_counts([name]).get(name, 0)) < needed:
            # The broker answers before all of it knows the topic.
            if time.monotonic() > until_s:
                raise PublishError(f"Kafka topic {name} has {count} partitions, not {needed}.")
            time.sleep(0.02)
        return count

    def _partition_counts(self, topics: Collection[str]) -> dict[str, int]:
        counts = {}
        described = self._admin.describe_topics(TopicCollection(sorted(topics))) if topics else {}
        for name, future in described.items():
            try:
                counts[name] = len(future.result(_ANSWER_S).partitions)
            except KafkaException as error:
                if not is_missing(error.args[0].name()):
                    raise
        return counts

    @cached_property
    def _admin(self) -> AdminClient:
        settings: dict[str, Any] = {"log_level": "0", **connection_settings(self._settings)}
        settings["error_cb"] = self._note_error
        return AdminClient(settings)

    def _note_error(self, error: KafkaError) -> None:
        """Remember why the broker can't be reached; calls only time out."""
        if error.name() != "_ALL_BROKERS_DOWN":
            self._last_error = error

    @cached_property
    def _reader(self) -> PositionReader:
        return PositionReader(self._settings, self._ids)

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        """Raise Kafka's errors as ours; after one of them the state is read again."""
        try:
            yield
        except MessageFailedError as error:
            self._owned = None
            raise typed_error(error.code, error.reason, error.topic) from error
        except KafkaException as error:
            self._owned = None
            code = error.args[0]
            raise typed_error(code.name(), code.str()) from error
        except TimeoutError as error:
            self._owned = None
            self._admin.poll(0)
            if (cause := self._last_error) is not None:
                raise typed_error(cause.name(), cause.str()) from error
            raise PublishError(
                "Kafka: the broker did not answer.", "Check kafka.bootstrap.servers in sink.options"
            ) from error


def _run(rows: DataFrame, sender: ShardSender) -> list[ShardResult]:
    """Send rows in Spark's tasks, and return the result of each shard."""
    results = map_in_arrow(rows, sender, f"{RESULT} string").collect()
    return [ShardResult(**json.loads(row[RESULT])) for row in results]


def _position(mark: Mark, shards: int) -> Position:
    return Position(datetime_to_us(mark.low_watermark), shards, mark.chunk, mark.epoch_id)


def _watermark(position: Position | None) -> datetime | None:
    """Return an epoch's low watermark; None for a scan that is not complete, and for no epoch."""
    if position is None or position.chunk is not None or not position.watermark_us:
        return None
    return _EPOCH + timedelta(microseconds=position.watermark_us)
