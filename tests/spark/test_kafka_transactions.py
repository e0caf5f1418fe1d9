"""Exactly once in Kafka, whoever else sends at the same time: against a real broker, without Spark.

The tasks' function is called as Spark calls it, with batches of a shard's messages. At the end the
documented consumer is run as the page has it.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from slackwater.spark_sink.errors import MessageRefusedError, PublishError
from slackwater.spark_sink.kafka.transaction import PositionReader, Transactions
from slackwater.spark_sink.sink import OutputPosition
from tests.support.kafka_broker import PARTITIONS
from tests.support.kafka_broker import kafka_broker as kafka_broker
from tests.support.kafka_pipeline import AT, FENCED, NO_SPARK, Pipeline, complete, epoch
from tests.support.kafka_pipeline import pipeline as pipeline
from tests.support.repository import DOCS

PAGE = DOCS / "kafka.md"
DOCUMENTED = "documented.Orders"


def test_an_epoch_that_comes_again_is_not_sent_again(pipeline: Pipeline) -> None:
    first = pipeline.owner()
    assert complete(first) is None
    messages = epoch(0, 20)
    assert pipeline.send(messages, 20, only=[1]) > 0
    # The process dies between two shards, and then between the last shard and the end.
    second = pipeline.owner()
    begun = OutputPosition(None, AT + timedelta(microseconds=20), pipeline.topic)
    assert second.position(NO_SPARK) == begun
    pipeline.send(messages, 20)
    assert pipeline.send(messages, 20) == 0
    pipeline.close(second, 20, resolved=True)
    third = pipeline.owner()
    assert complete(third) == AT + timedelta(microseconds=20)
    assert pipeline.send(messages, 20) == 0
    pipeline.close(third, 20, resolved=True)
    assert pipeline.committed() == Counter(messages)


def test_a_pipeline_of_the_same_name_with_another_stream_is_refused_and_fences_nobody(
    pipeline: Pipeline,
) -> None:
    first = pipeline.owner()
    assert complete(first) is None
    messages = epoch(0, 20)
    pipeline.send(messages, 20)
    other = pipeline.owner(source="staging's stream").position(NO_SPARK)
    assert other == OutputPosition(None, None, f"{pipeline.topic} of stream")
    pipeline.close(first, 20, resolved=True)
    assert pipeline.committed() == Counter(messages)


def test_a_second_attempt_of_a_task_takes_the_shard_from_the_first(pipeline: Pipeline) -> None:
    pipeline.owner(1).position(NO_SPARK)
    messages = epoch(0, 20)
    # While the first attempt is within its transaction, the second one sends all.
    with pytest.raises(PublishError, match=FENCED):
        pipeline.send(messages, 20, 1, halfway=lambda: pipeline.send(messages, 20, 1))
    # A third one that begins after that has nothing left to send.
    assert pipeline.send(messages, 20, 1) == 0
    assert pipeline.committed() == Counter(messages)


def test_a_former_owner_that_wakes_up_within_a_transaction_is_fenced(pipeline: Pipeline) -> None:
    messages = epoch(0, 20)

    def takeover() -> None:
        # This epoch is shorter, and has nothing in the shard that is open: see before a change.
        successor = pipeline.owner(1)
        successor.position(NO_SPARK)
        pipeline.send(messages[:5], 5, 1)
        pipeline.close(successor, 5, resolved=True)
        assert pipeline.committed() == Counter(messages[:5])
        pipeline.send(messages, 20, 1)
        pipeline.close(successor, 20, resolved=True)

    former = pipeline.owner(1)
    former.position(NO_SPARK)
    with pytest.raises(PublishError, match=FENCED):
        pipeline.send(messages, 20, 1, halfway=takeover)
    assert pipeline.committed() == Counter(messages)
    with pytest.raises(PublishError, match=FENCED):
        pipeline.close(former, 20, resolved=True)


def test_a_former_owner_that_wakes_up_before_its_transaction_sends_nothing_twice(
    pipeline: Pipeline,
) -> None:
    former = pipeline.owner()
    former.position(NO_SPARK)
    messages = epoch(0, 20)
    successor = pipeline.owner()
    successor.position(NO_SPARK)
    pipeline.send(messages[:12], 12)
    pipeline.close(successor, 12, resolved=True)
    # Its epoch ends elsewhere, as after a lost checkpoint: it goes on from what was sent.
    assert pipeline.send(messages, 20, only=[2]) < len(messages)
    assert pipeline.send(messages, 20) > 0
    pipeline.send(epoch(0, 30), 30)
    pipeline.close(successor, 30, resolved=True)
    assert pipeline.committed() == Counter(epoch(0, 30))


def test_an_epoch_is_sent_to_its_end_with_the_shards_that_it_was_begun_with(
    pipeline: Pipeline,
) -> None:
    former = pipeline.owner(3)
    former.position(NO_SPARK)
    messages = epoch(0, 40)
    pipeline.send(messages, 40, 3, only=[2])
    successor = pipeline.owner(2)
    successor.position(NO_SPARK)
    # Refused, because shard 1 of 2 has other keys than shard 1 of 3.
    with pytest.raises(PublishError, match="number of shards was changed"):
        pipeline.send(messages, 40, 2)
    assert pipeline.shards_in_use() == 3
    pipeline.send(messages, 40, 3)
    pipeline.close(successor, 40)
    successor.position(NO_SPARK)
    assert pipeline.shards_in_use() == 2
    # Now the former owner is refused, which still has three.
    with pytest.raises(PublishError, match="number of shards was changed"):
        pipeline.send(epoch(40, 60), 60, 3)
    pipeline.send(epoch(40, 60), 60, 2)
    pipeline.close(successor, 60)
    assert pipeline.committed() == Counter(epoch(0, 60))


def test_a_former_owner_with_other_shards_is_fenced_within_its_transaction(
    pipeline: Pipeline,
) -> None:
    pipeline.owner(3).position(NO_SPARK)
    messages = epoch(0, 40)

    def takeover() -> None:
        successor = pipeline.owner(2)
        successor.position(NO_SPARK)
        pipeline.send(messages, 40, pipeline.shards_in_use())
        pipeline.close(successor, 40)

    with pytest.raises(PublishError, match=FENCED):
        pipeline.send(messages, 40, 3, only=[1], halfway=takeover)
    assert pipeline.committed() == Counter(messages)


KILLED = """
import os, signal, sys
from tests.support.kafka_pipeline import Pipeline, epoch
pipeline = Pipeline(sys.argv[1])
pipeline.topic = sys.argv[2]
from slackwater.spark_sink.kafka.transaction import Ids
pipeline.ids = Ids(f"group-{pipeline.topic}", f"positions-{pipeline.topic}")
def die():
    import time
    # Until the broker has the first message of the transaction.
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
pipeline.send(epoch(0, 20), 20, 1, halfway=die)
"""


def test_a_transaction_that_a_killed_process_left_open_holds_nobody_up(
    pipeline: Pipeline,
) -> None:
    pipeline.owner(1).position(NO_SPARK)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, pipeline.host, pipeline.topic], check=False, timeout=60
    )
    assert killed.returncode == -9
    # Nothing is sent: the new owner's start is enough.
    pipeline.owner(1).position(NO_SPARK)
    assert pipeline.committed() == Counter()
    pipeline.send(epoch(0, 20), 20, 1)
    assert pipeline.committed() == Counter(epoch(0, 20))


def test_a_process_that_died_while_it_committed_holds_nobody_up(pipeline: Pipeline) -> None:
    owner = pipeline.owner(2)
    owner.position(NO_SPARK)
    pipeline.send(epoch(0, 20), 20)
    pipeline.close(owner, 20)
    died = Transactions(pipeline.settings, pipeline.ids, 2, 2)
    died.begin()
    died.send(pipeline.topic, "key", "21")
    reader = PositionReader(pipeline.settings, pipeline.ids)
    group = reader.consumer.consumer_group_metadata()
    place = TopicPartition(pipeline.ids.topic, 2, 30)
    died._producer.send_offsets_to_transaction([place], group)
    # Its positions can't be read: they may yet be committed.
    assert complete(pipeline.owner(3)) == AT + timedelta(microseconds=20)
    assert pipeline.committed() == Counter(epoch(0, 20))


def test_a_message_that_is_too_large_is_refused_and_nothing_of_its_shard_is_sent(
    pipeline: Pipeline,
) -> None:
    pipeline.owner(1).position(NO_SPARK)
    messages = [*epoch(0, 5), (6, "x" * 1_100_000)]
    with pytest.raises(MessageRefusedError, match=f"{pipeline.topic}: .*MSG_SIZE_TOO_LARGE"):
        pipeline.send(messages, 6, 1)
    assert pipeline.committed() == Counter()


def test_an_epoch_without_messages_moves_the_position(pipeline: Pipeline) -> None:
    """Otherwise a start after it would take the output for one that has lost messages."""
    owner = pipeline.owner()
    owner.position(NO_SPARK)
    pipeline.close(owner, 10)
    assert complete(pipeline.owner()) == AT + timedelta(microseconds=10)
    owner = pipeline.owner()
    owner.position(NO_SPARK)
    pipeline.send(epoch(10, 20), 20)
    pipeline.close(owner, 20)
    pipeline.close(owner, 30)
    assert complete(pipeline.owner()) == AT + timedelta(microseconds=30)


def test_positions_can_be_reset_by_an_operator(pipeline: Pipeline) -> None:
    owner = pipeline.owner(1)
    owner.position(NO_SPARK)
    pipeline.send(epoch(0, 20), 20, 1)
    pipeline.close(owner, 20)
    reader = PositionReader(pipeline.settings, pipeline.ids)
    reset = [TopicPartition(pipeline.ids.topic, number, 10) for number in (0, 1)]
    reader.consumer.commit(offsets=reset, asynchronous=False)
    again = pipeline.owner(1)
    assert complete(again) == AT + timedelta(microseconds=10)
    assert pipeline.send(epoch(0, 20), 20, 1) == 10


class EnoughError(Exception):
    """Ends the consumer, which has no end of its own."""


def stamp(seconds: int) -> str:
    return f"{1_769_850_000 + seconds}000000000.0000000000"


class Writer:
    """Writes messages of the envelope wrapped, as the sink does."""

    def __init__(self, host: str) -> None:
        self._producer = Producer({"bootstrap.servers": host})

    def change(self, partition: int, key: int, seconds: int, name: str) -> None:
        value = {"after": {"Id": key, "Name": name}, "updated": stamp(seconds)}
        self._producer.produce(DOCUMENTED, json.dumps(value), f"[{key}]", partition)

    def resolved(self, partition: int, seconds: int) -> None:
        self._producer.produce(
            DOCUMENTED, json.dumps({"resolved": stamp(seconds)}), None, partition
        )
        self._producer.flush()


def documented_consumer(host: str) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(code).replace("broker-1:9092", host).replace("spanner.Orders", DOCUMENTED)


def test_the_documented_consumer_applies_what_is_resolved_in_commit_order(
    kafka_broker: str,
) -> None:
    applied: list[tuple[str, str]] = []

    def apply(updated: str, key: bytes, after: dict[str, Any]) -> None:
        applied.append((updated, after["Name"]))
        assert json.loads(key) == [after["Id"]]
        if len(applied) == 5:
            raise EnoughError

    writer = Writer(kafka_broker)
    writer.change(0, 1, 3, "third")
    writer.change(0, 1, 9, "not resolved in partition 1")
    writer.resolved(0, 20)
    writer.change(1, 2, 1, "first")
    writer.change(1, 2, 4, "fourth")
    writer.resolved(1, 5)
    writer.change(2, 3, 2, "second")
    writer.change(2, 3, 5, "fifth")
    for partition in range(2, PARTITIONS):
        writer.resolved(partition, 20)
    code = compile(documented_consumer(kafka_broker), str(PAGE), "exec")
    with pytest.raises(EnoughError):
        exec(code, {"apply": apply})
    names = ["first", "second", "third", "fourth", "fifth"]
    assert applied == [(stamp(number), name) for number, name in enumerate(names, 1)]
