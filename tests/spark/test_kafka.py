"""Kafka gets every change, and one that comes again after a kill is marked by its uuid.

That none does where nothing fails is among what tests/spark/test_avro.py asks for.
"""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.testing.plain_client import Truth
from slackwater.timestamp import format_rfc3339, parse_rfc3339
from tests.support.emulators import NewDatabase, whole_row_ddl
from tests.support.kafka_broker import PARTITIONS, read_topics, spark_conf
from tests.support.kafka_broker import kafka_broker as kafka_broker
from tests.support.services import settings
from tests.support.truths import truth_of

TABLES = ("Customers", "Orders", "Payments")


def kafka_settings(stream: ChangeStream, folder: Path, start_ns: int, host: str) -> dict[str, Any]:
    pipeline_settings = settings(stream, folder, format_rfc3339(start_ns))
    pipeline_settings["sink"] = {
        "kind": "kafka",
        "checkpoint": str(folder / "checkpoint"),
        "topic": f"{folder.name}.{{table}}",
        "watermarks_topic": f"{folder.name}.watermarks",
        "envelope": "datastream",
        "resolved": "0s",
        "options": {"kafka.bootstrap.servers": host},
    }
    pipeline_settings["spark"]["conf"] = spark_conf()
    return pipeline_settings


def places(truth: Truth) -> set[tuple[str, str, int]]:
    return {
        (record.server_transaction_id, record.record_sequence, number)
        for record in truth.records
        for number in range(len(record.mods))
    }


def require_truth(
    messages_by_partition: dict[tuple[str, int], list[Message]], truth: Truth
) -> None:
    """Require every change, in commit order for each key, complete up to each resolved message."""
    seen: dict[str, tuple[str, str, int]] = {}
    resolved = 0
    for (topic, _), messages in messages_by_partition.items():
        resolved_ns = 0
        newest: dict[str, int] = {}
        for message in messages:
            value = json.loads(message.value() or b"")
            if "resolved" in value:
                now_ns = int(value["resolved"].partition(".")[0])
                assert now_ns >= resolved_ns
                resolved_ns, resolved = now_ns, resolved + 1
                continue
            assert topic.endswith(f".{value['object']}")
            _, *place = value["sort_keys"]
            if value["uuid"] in seen:
                assert seen[value["uuid"]] == tuple(place)
                continue
            seen[value["uuid"]] = tuple(place)
            committed_ns = parse_rfc3339(value["source_timestamp"])
            assert committed_ns > resolved_ns, "a change after it was resolved"
            key = (message.key() or b"").decode()
            assert committed_ns >= newest.get(key, 0), "a key's changes out of order"
            newest[key] = committed_ns
    assert set(seen.values()) == places(truth)
    assert len(seen) == len(places(truth)) > 200
    assert resolved >= 2 * PARTITIONS * len(TABLES)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_kafka_gets_every_change_through_a_kill(
    new_database: NewDatabase, tmp_path: Path, kafka_broker: str
) -> None:
    stream = new_database(statements=whole_row_ddl())
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    folder = tmp_path / "killed"
    service = Service(kafka_settings(stream, folder, start_ns, kafka_broker), folder, os.environ)
    stop = threading.Event()
    load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=13)
    rate: dict[str, Any] = {"transactions_per_second": 30, "seconds": 300, "stop": stop}
    writer = threading.Thread(target=load.run, kwargs=rate, daemon=True)
    writer.start()
    try:
        service.start()
        service.wait_for_watermark(connection.strong_read_timestamp_ns(), seconds_max=120)
        service.kill()
        service.start()
        stop.set()
        writer.join()
        end_ns = connection.strong_read_timestamp_ns()
        service.wait_for_watermark(end_ns, seconds_max=120)
        assert service.drain() == 0, service.log.read_text()[-2_000:]
    finally:
        stop.set()
        service.kill()
    truth = truth_of(stream, start_ns, end_ns)
    messages = read_topics(kafka_broker, "killed.")
    of_changes = {place: messages[place] for place in messages if "watermarks" not in place[0]}
    assert {topic for topic, _ in of_changes} == {f"killed.{table}" for table in TABLES}
    require_truth(of_changes, truth)
    lines = [
        json.loads(message.value() or b"")
        for place in messages.keys() - of_changes.keys()
        for message in messages[place]
    ]
    # The epoch that the kill hit may be told twice.
    records = {line["epoch"]: line["records"] for line in lines}
    assert sum(records.values()) == len(truth.records)
