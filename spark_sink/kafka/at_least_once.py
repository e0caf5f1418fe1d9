"""Delivery by Spark's own Kafka sink: an epoch that fails halfway is sent again as a whole."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.java import java_exception, java_raised, jvm_of
from slackwater.spark_sink.kafka.broker_errors import typed_error
from slackwater.spark_sink.kafka.topics import KafkaTopics
from slackwater.spark_sink.message_rows import HEADERS, HEADERS_COLUMN, ORDER
from slackwater.spark_sink.messaging.delivery import ClosingMessage, Mark
from slackwater.spark_sink.sink import OutputPosition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOT_THERE: Final = "UnknownTopicOrPartitionException"
# The default of max.request.size.
_REQUEST_BYTES_MAX: Final = 1_048_576
# The errors of Java's client, with Kafka's names of them.
_REFUSALS: Final = {
    "RecordTooLargeException": "MSG_SIZE_TOO_LARGE",
    "TopicAuthorizationException": "TOPIC_AUTHORIZATION_FAILED",
    "InvalidTopicException": "TOPIC_EXCEPTION",
    "not present in metadata after": "UNKNOWN_TOPIC_OR_PART",
}
_TOPIC: Final = re.compile(r"Topic (\S+) not present in metadata|access topics: \[([^\],]+)")


class AtLeastOnce:
    """Delivery by Spark's Kafka sink; see Delivery.

    Args:
        topics: with the options of Spark's Kafka sink.
        has_headers: messages have some.
    """

    def __init__(self, topics: KafkaTopics, *, has_headers: bool = False) -> None:
        self._topics = topics
        self._headers = [HEADERS] if has_headers else []

    def send(self, message_rows: DataFrame, changes: DataFrame, mark: Mark) -> Collection[str]:  # noqa: ARG002
        """Send messages, again if they were sent before; see Delivery."""
        # Messages with the same key go through one task, in order.
        in_order = message_rows.repartition("table_name", "key").sortWithinPartitions(*ORDER)
        self._write(in_order.select("topic", "key", "value", *self._headers))
        if self._topics.resolved_ms is None:
            return ()
        # Spark does not observe what its Kafka sink writes, so this is a job of its own. Only the
        # column of table names is read in it.
        return [row["topic"] for row in changes.select("topic").distinct().collect()]

    def close(
        self,
        spark: SparkSession,
        messages: Sequence[ClosingMessage],
        mark: Mark,  # noqa: ARG002
    ) -> None:
        """Send closing messages; see Delivery."""
        if messages:
            schema = f"topic string, partition int, key binary, value binary, {HEADERS_COLUMN}"
            rows = [(m.topic, m.partition, m.key, m.value, list(m.headers)) for m in messages]
            self._write(spark.createDataFrame(rows, schema))

    def partition_counts(self, spark: SparkSession, topics: Collection[str]) -> dict[str, int]:
        """Return the number of partitions of each topic; see Delivery."""
        jvm = jvm_of(spark)
        counts = {}
        with _admin(jvm, self._topics.client_settings) as admin:
            asked = jvm.java.util.ArrayList()
            for name in sorted(topics):
                asked.add(name)
            for name, future in admin.describeTopics(asked).topicNameValues().items():
                try:
                    counts[str(name)] = int(future.get().partitions().size())
                except java_raised() as error:
                    if _NOT_THERE not in str(java_exception(error)):
                        raise
        return counts

    def size_max(self, topic: str | None) -> int:  # noqa: ARG002
        """Return the size in bytes of the largest message that Kafka's client sends."""
        return int(self._topics.client_settings.get("max.request.size", _REQUEST_BYTES_MAX))

    def position(self, spark: SparkSession) -> OutputPosition | None:  # noqa: ARG002
        """Return None: Kafka does not hold the position."""
        return None

    def _write(self, rows: DataFrame) -> None:
        from pyspark.errors import PySparkException

        try:
            rows.write.format("kafka").options(**self._topics.options).save()
        except (PySparkException, java_raised()) as error:
            for java_name, code in _REFUSALS.items():
                if java_name in str(error):
                    topic = _TOPIC.search(str(error))
                    raise typed_error(
                        code, java_name, topic and (topic.group(1) or topic.group(2))
                    ) from error
            raise


@contextmanager
def _admin(jvm: Any, client_settings: Mapping[str, str]) -> Iterator[Any]:
    properties = jvm.java.util.Properties()
    for name, value in client_settings.items():
        properties.put(name, value)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
    try:
        yield admin
    finally:
        admin.close()
