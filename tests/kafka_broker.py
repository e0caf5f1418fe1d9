"""A real Apache Kafka broker for the tests, from its published artifacts: one node with KRaft."""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyspark
import pytest
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from slackwater.pipeline.spark.java import find_java

VERSION = "4.1.0"
PARTITIONS = 3
_READY_SECONDS_MAX = 60


@pytest.fixture(scope="module")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return HOST:PORT of a broker that creates topics with three partitions on demand."""
    folder = tmp_path_factory.mktemp("kafka")
    broker, controller = _free_port(), _free_port()
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(folder / "logs"),
        "num.partitions": str(PARTITIONS),
        "offsets.topic.replication.factor": "1",
    }
    config = folder / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    java = [
        str(find_java()),
        "-Xmx512m",
        "-cp",
        f"{_fetched('org.apache.kafka', 'kafka_2.13', VERSION)}/*",
    ]
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    formatting = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)]
    subprocess.run([*java, *formatting], check=True, capture_output=True, timeout=60)
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", str(config)], stdout=log, stderr=log)
    try:
        host = f"127.0.0.1:{broker}"
        _wait_until_ready(host, folder / "broker.log")
        yield host
    finally:
        process.kill()
        process.wait()


def read_topics(host: str, prefix: str) -> dict[tuple[str, int], list[Message]]:
    """Return the messages of all topics with a prefix, by topic and partition, in order."""
    consumer = Consumer({"bootstrap.servers": host, "group.id": uuid.uuid4().hex})
    by_partition: dict[tuple[str, int], list[Message]] = {}
    for name, topic in consumer.list_topics(timeout=10).topics.items():
        for number in topic.partitions if name.startswith(prefix) else ():
            place = TopicPartition(name, number, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=10)
            consumer.assign([place])
            messages = by_partition[name, number] = []
            while len(messages) < end:
                message = consumer.poll(10)
                assert message is not None, f"{name} {number} ends at {end}, not {len(messages)}"
                assert message.error() is None, message.error()
                messages.append(message)
    consumer.close()
    return by_partition


def spark_conf() -> dict[str, str]:
    """Return the Spark settings for the Kafka sink, with another version of one of its jars.

    The package registry of the tests lacks spark-token-provider-kafka-0-10 for Spark 4.1.
    """
    name, group = "spark-token-provider-kafka-0-10_2.13", "org.apache.spark"
    (jar,) = _fetched(group, name, "4.1.0-preview1").glob(f"{name}-*.jar")
    return {
        "spark.jars": str(jar),
        "spark.jars.packages": f"{group}:spark-sql-kafka-0-10_2.13:{pyspark.__version__}",
        "spark.jars.excludes": f"{group}:{name},org.apache.hadoop:hadoop-client-runtime",
    }


def _fetched(group: str, artifact: str, version: str) -> Path:
    """Return the folder of an artifact's jars, fetched once by Spark's Ivy."""
    folder = Path(__file__).parents[1] / "build" / f"{artifact}-{version}"
    if not folder.exists():
        (ivy,) = Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")
        new = folder.with_name(f"{folder.name}-{uuid.uuid4().hex}")
        pattern = f"{new}/[artifact]-[revision](-[classifier]).[ext]"
        fetched = subprocess.run(
            [
                *(str(find_java()), "-jar", str(ivy), "-m2compatible", "-confs", "default"),
                *("-dependency", group, artifact, version, "-retrieve", pattern),
            ],
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )
        jars = list(new.glob(f"{artifact}-*.jar"))
        assert jars, f"{artifact} was not fetched:\n{fetched.stdout[-2_000:]}"
        with suppress(OSError):
            new.rename(folder)
        shutil.rmtree(new, ignore_errors=True)
    return folder


def _wait_until_ready(host: str, log: Path) -> None:
    until = time.monotonic() + _READY_SECONDS_MAX
    # It would print each refused connection.
    client = AdminClient({"bootstrap.servers": host, "log_level": 0})
    while time.monotonic() < until:
        with suppress(KafkaException):
            client.list_topics(timeout=1)
            return
    raise AssertionError(f"the broker was not ready in time:\n{log.read_text()[-2_000:]}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
