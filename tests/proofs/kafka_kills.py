"""Kill -9 and frozen owners while a pipeline sends to Kafka: each change is there once.

What a consumer of committed messages reads, with a client that is not ours, is compared with the
truth. `python -m tests.proofs.kafka_kills --kills 30 --freezes 3 --envelope flat --format json`
does it as often as asked. A third of the kills, and every freeze, hit an open transaction: the
broker shows one as messages that committed readers do not get yet.
"""

import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from slackwater.demo.load import Load
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.testing.plain_client import Truth
from slackwater.timestamp import format_rfc3339
from tests.support.emulators import own_database, whole_row_ddl
from tests.support.kafka_broker import Broker, read_topics, spark_conf
from tests.support.kafka_messages import (
    ENVELOPES,
    SETTINGS,
    Decode,
    decoder,
    expected_changes,
    read_message,
)
from tests.support.killed_pair import KilledPair
from tests.support.programs import parsed_options
from tests.support.schema_registry import Registry, running_registry
from tests.support.services import settings
from tests.support.truths import truth_of

TRANSACTIONS_PER_SECOND = 20
_MOMENT_S_MAX = 60


class OpenTransactions:
    """Shows whether a topic has messages of a transaction that is not finished.

    Args:
        host: of the broker.
        prefix: of the topics' names.
    """

    def __init__(self, host: str, prefix: str) -> None:
        self._prefix = prefix
        self._consumers = [
            Consumer(
                {
                    "bootstrap.servers": host,
                    "group.id": "looks",
                    "isolation.level": level,
                    "log_level": "0",
                }
            )
            for level in ("read_committed", "read_uncommitted")
        ]

    def wait(self) -> None:
        """Wait until there is one.

        Raises:
            TimeoutError: none came.
        """
        until = time.monotonic() + _MOMENT_S_MAX
        while time.monotonic() < until:
            # A topic that is just being made has no leader yet.
            with suppress(KafkaException):
                if any(map(self._is_open, self._places())):
                    return
        raise TimeoutError("no open transaction was seen")

    def _is_open(self, place: TopicPartition) -> bool:
        committed, all_messages = (
            consumer.get_watermark_offsets(place, timeout=5)[1] for consumer in self._consumers
        )
        return bool(all_messages > committed)

    def _places(self) -> list[TopicPartition]:
        topics = self._consumers[0].list_topics(timeout=5).topics.items()
        return [
            TopicPartition(name, number)
            for name, topic in topics
            for number in (topic.partitions if name.startswith(self._prefix) else ())
        ]


@dataclass
class Killing:
    """Two processes of one pipeline under load, of which one or both are killed and frozen.

    Args:
        stream: the change stream of a database with the demo's schema.
        folder: for everything that the pipeline writes.
        host: of the broker.
        envelope: of the messages.
        written_in: the format of keys and values.
        registry: the schemas and the URL of a schema registry.
        seed: for the load and for the moments.
    """

    stream: ChangeStream
    folder: Path
    host: str
    envelope: str
    written_in: str
    registry: tuple[Registry, str]
    seed: int
    done: Counter[str] = field(default_factory=Counter)

    def run(self, kills: int, freezes: int) -> int:
        """Do it, compare, and return the number of changes.

        Raises:
            AssertionError: a change is missing, doubled or out of order.
        """
        connection = Connection(self.stream)
        start_ns = connection.strong_read_timestamp_ns()
        pair = KilledPair(self._settings(start_ns), self.folder, done=self.done)
        try:
            pair.start(start_ns)
            with self._load():
                pair.disturb(kills, freezes, self._wait_to_kill, self._wait_for_transaction)
            end_ns = connection.strong_read_timestamp_ns()
            pair.drain(end_ns)
        finally:
            pair.kill_all()
        connection.close()
        truth = truth_of(self.stream, start_ns, end_ns)
        decode = decoder(self.written_in, self.registry[0].schemas)
        return require_once(read_topics(self.host, "killed."), truth, self.envelope, decode)

    def _settings(self, start_ns: int) -> dict[str, Any]:
        pipeline_settings = settings(self.stream, self.folder, format_rfc3339(start_ns))
        pipeline_settings["lease"] = {"duration": "4s", "when_taken": "wait"}
        pipeline_settings["sink"] = {
            "kind": "kafka",
            "checkpoint": str(self.folder / "checkpoint"),
            "topic": "killed.{table}",
            "envelope": self.envelope,
            "resolved": "0s",
            "delivery": "exactly_once",
            **SETTINGS.get(self.envelope, {}),
            "options": {"kafka.bootstrap.servers": self.host},
        }
        if self.written_in != "json":
            pipeline_settings["sink"] |= {
                "format": self.written_in,
                "confluent_schema_registry": self.registry[1],
            }
        pipeline_settings["spark"]["conf"] = spark_conf()
        return pipeline_settings

    @contextmanager
    def _load(self) -> Iterator[None]:
        stop = threading.Event()
        load = Load(self.stream, Dialect.GOOGLE_STANDARD_SQL, seed=self.seed)
        rate: dict[str, Any] = {
            "transactions_per_second": TRANSACTIONS_PER_SECOND,
            "seconds": 7_200,
            "stop": stop,
        }
        writer = threading.Thread(target=load.run, kwargs=rate, daemon=True)
        writer.start()
        try:
            yield
        finally:
            stop.set()
            writer.join()

    def _wait_to_kill(self, number: int) -> str:
        if number % 3 == 0:
            self._wait_for_transaction()
            return "in a transaction"
        time.sleep(random.Random(self.seed * 1_000 + number).uniform(0, 3))
        return "at random"

    def _wait_for_transaction(self) -> None:
        OpenTransactions(self.host, "killed.").wait()


def require_once(
    messages_by_partition: Mapping[tuple[str, int], Sequence[Message]],
    truth: Truth,
    envelope: str,
    decode: Decode,
) -> int:
    """Require each change of the truth once, in order, and none behind a resolved message."""
    seen: Counter[Hashable] = Counter()
    for messages in messages_by_partition.values():
        resolved_ns = 0
        newest_ns: dict[bytes, int] = {}
        for message in messages:
            read = read_message(message, envelope, decode)
            if read.resolved_ns is not None:
                assert read.resolved_ns > resolved_ns, "a resolved message twice, or an older one"
                resolved_ns = read.resolved_ns
                continue
            seen[read.change] += 1
            if read.committed_ns is None:
                continue
            assert read.committed_ns > resolved_ns, "a change behind its resolved message"
            key = message.key()
            if key is None:
                continue
            assert read.committed_ns >= newest_ns.get(key, 0), "a key's changes out of order"
            newest_ns[key] = read.committed_ns
    expected = expected_changes(truth, envelope)
    missing, unknown = expected - seen, seen - expected
    assert not missing, f"{missing.total()} are missing: {list(missing)[:3]}"
    assert not unknown, f"{unknown.total()} are there twice or are none: {list(unknown)[:3]}"
    assert seen.total() > 0
    return seen.total()


def main() -> int:
    """Kill and freeze as often as asked, and print the result."""
    options = parsed_options(
        __doc__,
        kills=30,
        freezes=3,
        envelope=("flat", *ENVELOPES),
        format=("json", "avro", "protobuf"),
        seed=1,
    )
    with (
        own_database(statements=whole_row_ddl()) as stream,
        running_registry() as registry,
        tempfile.TemporaryDirectory() as folder,
    ):
        broker = Broker(Path(folder))
        written = (options.envelope, options.format)
        killing = Killing(stream, Path(folder), broker.host, *written, registry, options.seed)
        try:
            broker.start()
            changes = killing.run(options.kills, options.freezes)
        except (AssertionError, KafkaException, TimeoutError) as error:
            print(f"FAILED after {dict(killing.done)}: {error}")
            return 1
        finally:
            broker.kill()
    form = f"{options.envelope}, {options.format}"
    print(f"{dict(killing.done)}: {changes} messages, each once and in order, in {form}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
