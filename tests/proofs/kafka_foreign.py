"""A cluster with topics of others: none of them gets a message from a pipeline.

`python -m tests.proofs.kafka_foreign --seconds 3600` runs a sink through an hour of epochs, one for
each second, as fast as they go. Its topic is `{table}`, every epoch sends resolved messages, and
each sixth has changes. Half way another process takes over. Then the end offsets of all topics that
are not the pipeline's are compared with those before.
"""

import sys
import tempfile
import time
from collections.abc import Container
from datetime import timedelta
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import start_spark, stop_spark
from slackwater.reader.schema import ddl
from slackwater.spark_sink.envelopes.envelope import Origin
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.sinks.kafka import KafkaSettings
from slackwater.spark_sink.sinks.message_sink import MessageSink
from tests.support.epoch_rows import START, inserts
from tests.support.kafka_broker import PARTITIONS, Broker, spark_conf
from tests.support.programs import parsed_options

# Some have a name that the topic's pattern would match, or one like the pipeline's own.
FOREIGN: Final = (
    "payments",
    "otherdb.Users",
    "sales.Orders.dlq",
    "sales",
    "connect-offsets",
    "slackwater.other",
)
OWN: Final = ("sales.Orders", "sales.Customers", "slackwater.hour")
_CHANGES_EVERY: Final = 6
Ends = dict[tuple[str, int], int]


def end_offsets(host: str, without: Container[str] = ()) -> Ends:
    """Return the end offsets of all topics but Kafka's own and those to leave out."""
    consumer = Consumer({"bootstrap.servers": host, "group.id": "looks"})
    places = [
        TopicPartition(name, number)
        for name, topic in consumer.list_topics(timeout=10).topics.items()
        if name not in without and not name.startswith("__")
        for number in topic.partitions
    ]
    ends = {
        (place.topic, place.partition): consumer.get_watermark_offsets(place, timeout=10)[1]
        for place in places
    }
    consumer.close()
    return ends


def make_foreign_topics(host: str) -> None:
    """Make the topics of others; each partition has a message."""
    new = [NewTopic(name, PARTITIONS, 1) for name in FOREIGN]
    # Kept in a variable: what it was asked for is broken off when it is freed.
    client = AdminClient({"bootstrap.servers": host})
    for made in client.create_topics(new).values():
        made.result()
    producer = Producer({"bootstrap.servers": host})
    for name in FOREIGN:
        for number in range(PARTITIONS):
            producer.produce(name, "theirs", partition=number)
    producer.flush()


def new_sink(session: SparkSession, folder: Path, host: str, delivery: str) -> MessageSink:
    """Return the sink of a process that begins to own the pipeline."""
    settings = KafkaSettings.model_validate(
        {
            "checkpoint": str(folder / "checkpoint"),
            "topic": "{table}",
            "envelope": "flat",
            "resolved": "0s",
            "delivery": delivery,
            "options": {"kafka.bootstrap.servers": host},
        }
    )
    sink = settings.make_sink(Origin("hour", "p", "i", "d", "Everything"), RecordFilter())
    sink.position(session)
    return sink


def run(session: SparkSession, folder: Path, host: str, seconds: int, delivery: str) -> int:
    """Run the epochs of so many seconds; return the number of resolved messages that are due."""
    sink = new_sink(session, folder, host, delivery)
    topics: set[str] = set()
    due = 0
    for epoch in range(1, seconds + 1):
        if epoch == seconds // 2:
            sink = new_sink(session, folder, host, delivery)
        rows = []
        if epoch % _CHANGES_EVERY == 1:
            table = OWN[epoch // _CHANGES_EVERY % 2]
            topics.add(table)
            rows = [inserts(epoch, at=epoch * 1_000_000 - 1, table=table)]
        summary = sink.stage(session.createDataFrame(rows, ddl()), epoch)
        sink.publish(session, epoch, summary, START + timedelta(seconds=epoch))
        due += len(topics) * PARTITIONS
    return due


def main() -> int:
    """Run it, and compare."""
    options = parsed_options(__doc__, seconds=3_600, delivery=("exactly_once", "at_least_once"))
    find_java()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker = Broker(folder)
        broker.start()
        session = start_spark(["kafka_foreign"], "local[2]", spark_conf(), ["kafka"])
        try:
            make_foreign_topics(broker.host)
            before, begun_s = end_offsets(broker.host, OWN), time.monotonic()
            due = run(session, folder, broker.host, options.seconds, options.delivery)
            took_s = time.monotonic() - begun_s
            after, everything = end_offsets(broker.host, OWN), end_offsets(broker.host)
        finally:
            stop_spark(session)
            broker.kill()
    own = sum(end for (topic, _), end in everything.items() if topic in OWN)
    if own < due:
        print(f"FAILED: the pipeline's topics have {own} messages, and {due} resolved ones are due")
        return 1
    if before != after:
        changed = sorted(place for place in before | after if before.get(place) != after.get(place))
        print(f"FAILED: changed: {changed}")
        return 1
    print(
        f"{options.seconds} epochs in {took_s:.0f} s, {due} resolved messages in the pipeline's"
        f" topics; {len(before)} partitions of {len(FOREIGN)} other topics are as they were"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
