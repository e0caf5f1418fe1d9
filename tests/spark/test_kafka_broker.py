"""What happens to a broker while a pipeline sends, and one with TLS and passwords. No Spark."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from slackwater.spark_sink.errors import MessageRefusedError, PublishError
from tests.support.kafka_broker import Broker
from tests.support.kafka_pipeline import NO_SPARK, Pipeline, complete, epoch
from tests.support.secure_broker import SecureBroker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    broker.start()
    yield broker
    broker.kill()


@pytest.mark.long
def test_a_broker_that_restarts_and_topics_that_change_cost_no_message(broker: Broker) -> None:
    pipeline = Pipeline(broker.host)
    owner = pipeline.owner()
    owner.position(NO_SPARK)
    pipeline.send(epoch(0, 20), 20)
    pipeline.close(owner, 20, resolved=True)
    # Killed within a transaction, and back while the client tries again.
    restarts: list[str] = []

    def restart() -> None:
        if not restarts:
            restarts.append("killed")
            broker.kill()
            broker.start()

    try:
        pipeline.send(epoch(20, 40), 40, halfway=restart)
    except PublishError:
        # Whether the transaction outlasts it or not, the next attempt sends what is missing.
        assert restarts
    owner.position(NO_SPARK)
    pipeline.send(epoch(20, 40), 40)
    pipeline.close(owner, 40, resolved=True)
    # More partitions: keys may move, and resolved messages go to all of them.
    admin = AdminClient({"bootstrap.servers": broker.host})
    admin.create_partitions([NewPartitions(pipeline.topic, 5)])[pipeline.topic].result()
    while owner.partition_counts(NO_SPARK, [pipeline.topic]) != {pipeline.topic: 5}:
        pass
    pipeline.send(epoch(40, 60), 60)
    pipeline.close(owner, 60, resolved=True)
    assert pipeline.committed() == Counter(epoch(0, 60))
    # A deleted topic is made again, with what comes from now on.
    admin.delete_topics([pipeline.topic])[pipeline.topic].result()
    while owner.partition_counts(NO_SPARK, [pipeline.topic]):
        pass
    pipeline.send(epoch(60, 80), 80)
    pipeline.close(owner, 80)
    assert pipeline.committed() == Counter(epoch(60, 80))
    assert complete(pipeline.owner()) == complete(owner)


@pytest.mark.long
def test_the_documented_settings_reach_a_broker_with_tls_and_passwords(tmp_path: Path) -> None:
    broker = SecureBroker(tmp_path)
    broker.start()
    try:
        pipeline = Pipeline(broker.host)
        pipeline.settings = broker.client | pipeline.settings
        owner = pipeline.owner()
        owner.position(NO_SPARK)
        assert pipeline.send(epoch(0, 20), 20) == 20
        pipeline.close(owner, 20)
        pipeline.settings = {**pipeline.settings, "sasl.password": "another"}
        with pytest.raises((MessageRefusedError, PublishError), match=r"[Aa]uthentication"):
            pipeline.owner().position(NO_SPARK)
    finally:
        broker.kill()
