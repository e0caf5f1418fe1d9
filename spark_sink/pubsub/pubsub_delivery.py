"""Delivery to Pub/Sub: an epoch that fails halfway is sent again, with the same UUIDs."""

from collections.abc import Collection, Sequence

import pyarrow.compute as pc
from google.pubsub_v1.types import PubsubMessage
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from slackwater.spark_sink.errors import MessageRefusedError
from slackwater.spark_sink.java import map_in_arrow
from slackwater.spark_sink.message_rows import ORDER, ROW_HASH
from slackwater.spark_sink.messaging.delivery import ClosingMessage, Mark
from slackwater.spark_sink.messaging.set_aside import set_aside
from slackwater.spark_sink.output.epoch_place import EpochPlace
from slackwater.spark_sink.pubsub.publisher import COLUMNS, Publisher, result_schema
from slackwater.spark_sink.pubsub.service import is_of_topic
from slackwater.spark_sink.sink import OutputPosition
from slackwater.timestamp import datetime_to_rfc3339


class PubSubDelivery:
    """Delivery by requests of Spark's tasks; see Delivery.

    Args:
        publisher: what tasks send with.
        place: the sink's, for records of refused messages.
    """

    def __init__(self, publisher: Publisher, place: EpochPlace) -> None:
        self._publisher, self._place = publisher, place

    def send(self, message_rows: DataFrame, changes: DataFrame, mark: Mark) -> Collection[str]:
        """Send messages, again if they were sent before; see Delivery."""
        shared = {"key": ["table_name", ROW_HASH], "table": ["table_name"], "none": []}
        columns = shared[self._publisher.ordering]
        rows = message_rows.repartition(*columns) if columns else message_rows
        in_order = rows.sortWithinPartitions(*ORDER).select(*COLUMNS)
        results = map_in_arrow(
            in_order, self._publisher, from_arrow_schema(result_schema())
        ).toArrow()
        is_sent = pc.is_null(results["reason"])
        refused = results.filter(pc.invert(is_sent))
        if refused.num_rows:
            reason = refused["reason"][0].as_py()
            rows = changes.sparkSession.createDataFrame(refused)
            set_aside(rows, changes, mark, reason, self._place)
        return set(results.filter(is_sent)["topic"].to_pylist())

    def close(
        self,
        spark: SparkSession,  # noqa: ARG002
        messages: Sequence[ClosingMessage],
        mark: Mark,
    ) -> None:
        """Send closing messages, when all others were acknowledged; see Delivery.

        A topic that is gone gets no resolved message.
        """
        attributes = {"low_watermark": datetime_to_rfc3339(mark.low_watermark)}
        for message in messages:
            made = PubsubMessage.pb(PubsubMessage(data=message.value, attributes=attributes))
            try:
                self._publisher.service.publish(message.topic, [made])
            except MessageRefusedError as error:
                if not is_of_topic(error) or message.key is not None:
                    raise

    def partition_counts(self, spark: SparkSession, topics: Collection[str]) -> dict[str, int]:  # noqa: ARG002
        """Return 1 for each topic: it has no partitions; see Delivery."""
        return dict.fromkeys(topics, 1)

    def position(self, spark: SparkSession) -> OutputPosition | None:  # noqa: ARG002
        """Return None: Pub/Sub does not hold the position."""
        return None
