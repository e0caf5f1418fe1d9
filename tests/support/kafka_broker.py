"""A real Apache Kafka broker for the tests, from its published artifacts: one node with KRaft."""

import base64
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyspark
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from slackwater.pipeline.spark.java import find_java
from slackwater.testing.emulator import free_port
from tests.support import ivy
from tests.support.repository import BUILD

VERSION = "4.1.0"
PARTITIONS = 3
TOKEN_PROVIDER_VERSION = "4.1.0-preview1"
_SPARK, _TOKEN_PROVIDER = "org.apache.spark", "spark-token-provider-kafka-0-10_2.13"
# A busy machine takes minutes to start a JVM.
_READY_SECONDS_MAX = 240
_READ_SECONDS_MAX = 30


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return HOST:PORT of a broker that creates topics with three partitions on demand.

    The modules of a process share it: each has its own topics.
    """
    broker = Broker(tmp_path_factory.mktemp("kafka"))
    broker.start()
    try:
        yield broker.host
    finally:
        broker.kill()


class Broker:
    """One node of Kafka with its own port and folder; it can be killed and started again.

    Args:
        folder: for its configuration, its log and its data.
        properties: of the broker, over those that it has anyway.
        client: settings of librdkafka that a client needs to reach it.
        protocol: of the clients' listener.
    """

    def __init__(
        self,
        folder: Path,
        properties: Mapping[str, str] | None = None,
        client: Mapping[str, str] | None = None,
        protocol: str = "PLAINTEXT",
    ) -> None:
        self._folder = folder
        self._client = dict(client or {})
        port, controller = free_port(), free_port()
        self.host = f"127.0.0.1:{port}"
        self._properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"{protocol}://{self.host},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{protocol}:{protocol}",
            "inter.broker.listener.name": protocol,
            "log.dirs": str(folder / "logs"),
            "num.partitions": str(PARTITIONS),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            # Each partition of these topics takes time to begin.
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.num.partitions": "2",
            **(properties or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, or start it again with the data that it had."""
        config = self._folder / "server.properties"
        if not config.exists():
            config.write_text(_lines(self._properties))
            shutil.copytree(_formatted(), self._folder / "logs")
        with (self._folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_java(), "kafka.Kafka", str(config)], stdout=log, stderr=log
            )
        _wait_until_ready(
            {"bootstrap.servers": self.host, **self._client}, self._folder / "broker.log"
        )

    @property
    def pid(self) -> int:
        """The id of the process that was started last."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """End it at once, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def read_topics(host: str, prefix: str) -> dict[tuple[str, int], list[Message]]:
    """Return the committed messages of all topics with a prefix, by topic and partition, in order.

    An open transaction is waited for.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": host,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    places = [
        TopicPartition(name, number, 0)
        for name, topic in consumer.list_topics(timeout=10).topics.items()
        for number in (topic.partitions if name.startswith(prefix) else ())
    ]
    ends = {(place.topic, place.partition): _end(consumer, place) for place in places}
    by_partition: dict[tuple[str, int], list[Message]] = {place: [] for place in ends}
    unread = {place for place, end in ends.items() if end}
    consumer.assign(places)
    while unread:
        message = consumer.poll(_READ_SECONDS_MAX)
        assert message is not None, f"{sorted(unread)} are not read to their ends"
        place, error = (str(message.topic()), message.partition() or 0), message.error()
        if error is None:
            by_partition[place].append(message)
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            # Transactions' own records have offsets, too.
            if (message.offset() or 0) >= ends[place]:
                unread.discard(place)
    consumer.close()
    return by_partition


def _end(consumer: Consumer, place: TopicPartition) -> int:
    """Return the offset at which a partition ends; a new topic's has no leader for a while."""
    retrying = Retrying(
        retry=retry_if_exception(_has_no_leader),
        stop=stop_after_delay(_READ_SECONDS_MAX),
        wait=wait_fixed(0.1),
        reraise=True,
    )
    end: int = retrying(consumer.get_watermark_offsets, place, timeout=10)[1]
    return end


def _has_no_leader(error: BaseException) -> bool:
    codes = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
    return isinstance(error, KafkaException) and error.args[0].code() in codes


def spark_conf() -> dict[str, str]:
    """Return the Spark settings for the Kafka sink, with another version of one of its jars."""
    excluded = (f"{_SPARK}:{_TOKEN_PROVIDER}", "org.apache.hadoop:hadoop-client-runtime")
    return {
        "spark.jars": str(token_provider()),
        "spark.jars.packages": f"{_SPARK}:spark-sql-kafka-0-10_2.13:{pyspark.__version__}",
        "spark.jars.excludes": ",".join(excluded),
    }


def token_provider() -> Path:
    """Return a jar that Spark's Kafka needs, of another version than Spark's.

    The package registry of the tests lacks spark-token-provider-kafka-0-10 for Spark 4.1.
    """
    folder = ivy.artifact(_SPARK, _TOKEN_PROVIDER, TOKEN_PROVIDER_VERSION)
    (jar,) = folder.glob(f"{_TOKEN_PROVIDER}-*.jar")
    return jar


def _java() -> list[str]:
    """Return the command that runs a class of Kafka's."""
    jars = ivy.artifact("org.apache.kafka", "kafka_2.13", VERSION)
    return [str(find_java()), "-Xmx512m", "-cp", f"{jars}/*"]


def _lines(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def _formatted() -> Path:
    """Return the folder of a broker that has not run yet, for copies; it is made once."""
    java, folder = _java(), BUILD / f"kafka-{VERSION}-formatted"
    with ivy.alone():
        if not folder.exists():
            _format(java, folder)
    return folder


def _format(java: Sequence[str], folder: Path) -> None:
    new = folder.with_name(f"{folder.name}-{uuid.uuid4().hex}")
    config = new.with_suffix(".properties")
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": "1@127.0.0.1:9093",
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(new),
    }
    config.write_text(_lines(properties))
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    # One in 64 ids begins with a hyphen, as an option does.
    of_cluster = f"--cluster-id={cluster}"
    formatting = ["kafka.tools.StorageTool", "format", of_cluster, "-c", str(config)]
    subprocess.run([*java, *formatting], check=True, capture_output=True, timeout=240)
    config.unlink()
    new.rename(folder)


def _wait_until_ready(settings: Mapping[str, str], log: Path) -> None:
    until = time.monotonic() + _READY_SECONDS_MAX
    # It would print each refused connection.
    client = AdminClient({**settings, "log_level": "0"})
    while time.monotonic() < until:
        with suppress(KafkaException):
            client.list_topics(timeout=1)
            return
    raise AssertionError(f"the broker was not ready in time:\n{log.read_text()[-2_000:]}")
