"""What happens to a broker while a pipeline sends, and one with TLS and passwords. No Spark."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from slackwater.spark_sink.errors import MessageRefusedError, PublishError
from slackwater.spark_sink.kafka.client_settings import librdkafka_settings
from slackwater.spark_sink.sinks.kafka import KafkaSettings
from tests.kafka_broker import Broker
from tests.kafka_pipeline import NO_SPARK, Pipeline, complete, epoch

PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"


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


def documented_options() -> dict[str, str]:
    """Return the options of the page's example with TLS and a password."""
    (example,) = (
        block
        for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "SASL_SSL" in block
    )
    sink: dict[str, Any] = yaml.safe_load(example)["sink"]
    return KafkaSettings.model_validate(sink).options


@pytest.mark.long
def test_the_documented_settings_reach_a_broker_with_tls_and_passwords(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(certificate), "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    both = tmp_path / "both.pem"
    both.write_text(key.read_text() + certificate.read_text())
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required"
        ' username="admin" password="of-admin" user_admin="of-admin" user_ann="secret";'
    )
    options = documented_options() | {"kafka.ssl.truststore.location": str(certificate)}
    java = {name.removeprefix("kafka."): value for name, value in options.items()}
    client = librdkafka_settings(java)
    del client["bootstrap.servers"]
    properties = {
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
        **{f"ssl.{store}.type": "PEM" for store in ("keystore", "truststore")},
        "ssl.keystore.location": str(both),
        "ssl.truststore.location": str(certificate),
    }
    broker = Broker(tmp_path, properties, client, "SASL_SSL")
    broker.start()
    try:
        pipeline = Pipeline(broker.host)
        pipeline.settings = client | pipeline.settings
        owner = pipeline.owner()
        owner.position(NO_SPARK)
        assert pipeline.send(epoch(0, 20), 20) == 20
        pipeline.close(owner, 20)
        pipeline.settings = {**pipeline.settings, "sasl.password": "another"}
        with pytest.raises((MessageRefusedError, PublishError), match=r"[Aa]uthentication"):
            pipeline.owner().position(NO_SPARK)
    finally:
        broker.kill()
