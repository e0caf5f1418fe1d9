"""docs/from-debezium.md: its settings go on where its script says that the connector stopped."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream
from slackwater.reader.transport.connection import Connection
from slackwater.testing.emulator import Emulator
from slackwater.testing.emulator_database import database_of
from slackwater.timestamp import parse_rfc3339
from tests.support.debezium_connector import MESSAGES
from tests.support.emulators import database_on
from tests.support.kafka_broker import kafka_broker as kafka_broker
from tests.support.kafka_broker import read_topics, spark_conf
from tests.support.pages import blocks

STATEMENTS = [
    "CREATE TABLE Users (id INT64 NOT NULL, email STRING(99), seen TIMESTAMP) PRIMARY KEY (id)",
    "CREATE CHANGE STREAM Everything FOR ALL",
]


def sent_by_the_connector(host: str, topic: str, watermarks_ms: list[int]) -> None:
    """Send the connector's watermarks to a topic, between two of its changes."""
    made = [m for m in json.loads(MESSAGES.read_text())["googlesql"]["messages"] if m["value"]]
    (watermark,) = [m for m in made if m["value"].get("op") == "m" and "Users" in m["topic"]]
    producer = Producer({"bootstrap.servers": host})
    producer.produce(topic, json.dumps({"payload": made[0]["value"]}), partition=0)
    for watermark_ms in watermarks_ms:
        source = {**watermark["value"]["source"], "low_watermark": watermark_ms}
        value = {"payload": {**watermark["value"], "source": source}}
        producer.produce(topic, json.dumps(value), partition=0)
    producer.produce(topic, json.dumps({"payload": made[0]["value"]}), partition=0)
    assert producer.flush(60) == 0


def the_pages_settings(stream: ChangeStream, folder: Path, start: str, host: str) -> dict[str, Any]:
    """Return the page's settings with the places of this test."""
    (block,) = blocks("from-debezium.md", "yaml")
    values: dict[str, Any] = yaml.safe_load(block)
    values["source"] = {
        name: getattr(stream, name) for name in ("project", "instance", "database", "change_stream")
    } | {"start": start}
    values["sink"] |= {
        "checkpoint": str(folder / "checkpoint"),
        "resolved": "0s",
        "options": {"kafka.bootstrap.servers": host},
    }
    state = {"url": f"sqlite:///{folder / 'state.db'}"}
    return {**values, "state": state, "spark": {"master": "local[2,4]", "conf": spark_conf()}}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_consumers_get_the_changes_after_the_connectors_last_watermark(
    emulator: Emulator, kafka_broker: str, tmp_path: Path
) -> None:
    stream = database_on(emulator, statements=STATEMENTS, change_stream="Everything")
    connection = Connection(stream)

    database = database_of(stream)

    def insert(number: int) -> None:
        with database.batch() as batch:
            batch.insert("Users", ("id", "email"), [(number, f"{number}@a.b")])

    insert(1)
    last_ns = connection.strong_read_timestamp_ns()
    sent_by_the_connector(kafka_broker, "shop.Users", [1, last_ns // 1_000_000, 2])
    insert(2)
    (script,) = blocks("from-debezium.md", "python")
    ran = subprocess.run(
        [sys.executable, "-c", script, kafka_broker, "shop.Users"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    start = ran.stdout.strip()
    assert parse_rfc3339(start) == last_ns // 1_000_000 * 1_000_000
    values = the_pages_settings(stream, tmp_path, start, kafka_broker)
    service = Service(values, tmp_path, os.environ)
    try:
        service.start()
        service.wait_for_watermark(connection.strong_read_timestamp_ns(), seconds_max=200)
        assert service.drain() == 0, service.log.read_text()[-2_000:]
    finally:
        service.kill()
    messages = [m for ms in read_topics(kafka_broker, "shop.Users").values() for m in ms]
    ours = [json.loads(m.value() or b"") for m in messages if m.headers()]
    (change,) = [m for m in ours if m["payload"]["op"] == "c"]
    assert change["payload"]["after"] == {"id": 2, "email": "2@a.b", "seen": None}
    assert change["schema"]["name"] == "shop.Users.Envelope"
    assert any(m["payload"]["op"] == "m" for m in ours)
    heartbeats = "__debezium-heartbeat.shop"
    beats = read_topics(kafka_broker, heartbeats)[heartbeats, 0]
    assert beats
    assert all("ts_ms" in json.loads(beat.value() or b"")["payload"] for beat in beats)
