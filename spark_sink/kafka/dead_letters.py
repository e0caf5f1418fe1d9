"""Dead letters for Kafka: records of messages that a broker refuses, set aside as files.

They are written before the other messages are sent. So a process that is killed between the two
leaves letters that the replay finds again, and no message without one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.errors import MessageRefusedError
from slackwater.spark_sink.kafka.broker_errors import is_of_message, is_too_large
from slackwater.spark_sink.kafka.delivery import Delivery, Mark
from slackwater.spark_sink.message_rows import ORDER, ROW_HASH, row_hash
from slackwater.spark_sink.output.dead_letters import publish_letters

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from slackwater.spark_sink.output.epoch_place import EpochPlace

_log = logging.getLogger(__name__)

# The columns of a message besides its key and value, in a batch of its own.
_OVERHEAD_BYTES: Final = 100
_TOPICS_MAX: Final = 100


class KafkaDeadLetters:
    """A sender that sets the records of refused messages aside.

    Args:
        place: the sink's.
        delivery: sends the messages.
    """

    def __init__(self, place: EpochPlace, delivery: Delivery) -> None:
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
                newly = self._refused(message_rows.sparkSession, error) & ~refused
                refused = refused | newly
                self._write(message_rows.where(newly), changes, mark, reason)

    def _refused(self, spark: SparkSession, error: MessageRefusedError) -> Column:
        """Return the condition on the messages that an error is about."""
        from pyspark.sql import functions as F

        of_topic = F.lit(True) if error.topic is None else F.col("topic") == error.topic
        if not is_too_large(error):
            return of_topic
        size = sum(
            (F.coalesce(F.octet_length(name), F.lit(0)) for name in ("key", "value")),
            F.lit(_OVERHEAD_BYTES),
        )
        return of_topic & (size > self._delivery.size_max(spark, error.topic))

    def _write(self, refused: DataFrame, changes: DataFrame, mark: Mark, reason: str) -> None:
        from pyspark.sql import functions as F

        # Each part of a scan's chunk numbers its records from 0: only keys tell them apart.
        place = ["table_name", *ORDER[:3]]
        named = refused.select(*place, "number", "topic", F.col(ROW_HASH).alias("hash"))
        identity = F.bit_xor(F.xxhash64(*named.columns))
        ((count, hashed),) = named.agg(F.count(F.lit(1)), identity).collect()
        if not count:
            return
        hashes = F.transform("mods", lambda mod: row_hash(F.col("table_name"), mod["keys"]))
        letters = (
            changes.select(
                *place,
                F.struct(*[c for c in changes.columns if c != "topic"]).alias("record"),
                hashes.alias("hashes"),
            )
            .join(named, on=place)
            .where(F.array_contains("hashes", F.col("hash")))
            .select("table_name", "topic", F.col("number").alias("message_number"), "record")
        )
        about = f"{count}-{hashed % 2**64:016x}"
        folder = publish_letters(letters, self._place, about, mark.low_watermark, mark.chunk)
        _log.warning(
            "messages were refused (%s); their records were set aside in %s", reason, folder
        )
