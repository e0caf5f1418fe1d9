"""Dead letters for Kafka: records of messages that a broker refuses, set aside as files.

They are written before the other messages are sent. So a process that is killed between the two
leaves letters that the replay finds again, and no message without one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.errors import MessageRefusedError
from slackwater.spark_sink.kafka.broker_errors import is_of_message, is_too_large
from slackwater.spark_sink.message_rows import HEADERS
from slackwater.spark_sink.messaging.delivery import ClosingMessage, Mark
from slackwater.spark_sink.messaging.set_aside import set_aside
from slackwater.spark_sink.sink import OutputPosition

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from slackwater.spark_sink.kafka.at_least_once import AtLeastOnce
    from slackwater.spark_sink.kafka.exactly_once import ExactlyOnce
    from slackwater.spark_sink.output.epoch_place import EpochPlace

# The columns of a message besides its key and value, in a batch of its own.
_OVERHEAD_BYTES: Final = 100
_HEADER_OVERHEAD_BYTES: Final = 10
_TOPICS_MAX: Final = 100


class KafkaDeadLetters:
    """A Delivery that sets the records of refused messages aside.

    Args:
        place: the sink's.
        delivery: sends the messages.
    """

    def __init__(self, place: EpochPlace, delivery: ExactlyOnce | AtLeastOnce) -> None:
        self._place, self._delivery = place, delivery

    def send(self, message_rows: DataFrame, changes: DataFrame, mark: Mark) -> Collection[str]:
        """Send messages; see Delivery. Records of refused messages are written to the folder.

        Raises:
            MessageRefusedError: the broker refuses more than single messages and topics.
            PublishError: the broker can't be reached, or another process sends.
        """
        from pyspark.sql import functions as F

        refused: Column = F.lit(False)
        reasons: list[str] = []
        while True:
            try:
                taken = message_rows.where(~refused) if reasons else message_rows
                return self._delivery.send(taken, changes, mark)
            except MessageRefusedError as error:
                reason = f"{error.code} {error.topic or ''}".strip()
                if not is_of_message(error) or reason in reasons or len(reasons) >= _TOPICS_MAX:
                    raise
                reasons.append(reason)
                newly = self._refused(message_rows, error) & ~refused
                refused = refused | newly
                set_aside(message_rows.where(newly), changes, mark, reason, self._place)

    def close(self, spark: SparkSession, messages: Sequence[ClosingMessage], mark: Mark) -> None:
        """Send closing messages; see Delivery."""
        self._delivery.close(spark, messages, mark)

    def partition_counts(self, spark: SparkSession, topics: Collection[str]) -> dict[str, int]:
        """Return the number of partitions of each topic; see Delivery."""
        return self._delivery.partition_counts(spark, topics)

    def position(self, spark: SparkSession) -> OutputPosition | None:
        """Return the position of the output; see Delivery."""
        return self._delivery.position(spark)

    def _refused(self, message_rows: DataFrame, error: MessageRefusedError) -> Column:
        """Return the condition on the messages that an error is about."""
        from pyspark.sql import functions as F

        of_topic = F.lit(True) if error.topic is None else F.col("topic") == error.topic
        if not is_too_large(error):
            return of_topic
        parts = [F.coalesce(F.octet_length(name), F.lit(0)) for name in ("key", "value")]
        if HEADERS in message_rows.columns:
            parts.append(F.aggregate(HEADERS, F.lit(0), _with_bytes_of))
        size = sum(parts, F.lit(_OVERHEAD_BYTES))
        limit = self._delivery.size_max(error.topic)
        return of_topic & (size > limit)


def _with_bytes_of(size: Column, header: Column) -> Column:
    from pyspark.sql import functions as F

    lengths = F.octet_length(header["key"]) + F.octet_length(header["value"])
    return size + lengths + _HEADER_OVERHEAD_BYTES
