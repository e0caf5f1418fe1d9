"""Avro in Kafka, read with a plain consumer and the registry: the rows, and what they were."""

import io
import json
import os
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import Message

from slackwater.demo.service import Service
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.timestamp import format_rfc3339
from tests.support import mixed_load
from tests.support.emulators import NewDatabase
from tests.support.kafka_broker import PARTITIONS, read_topics, spark_conf
from tests.support.kafka_broker import kafka_broker as kafka_broker
from tests.support.mixed_load import CHANGE_STREAM, MixedLoad
from tests.support.schema_registry import Registry, running_registry
from tests.support.services import settings
from tests.support.table_rows import comparable, spanner_rows

CHANGES = 300
Rows = dict[str, dict[str, dict[str, Any]]]


@pytest.mark.timeout(200)
# PostgreSQL's types are in tests/unit/spark_sink/test_avro.py.
@pytest.mark.long
@pytest.mark.parametrize("dialect", [Dialect.GOOGLE_STANDARD_SQL], ids=str)
def test_a_consumer_with_the_registry_gets_every_row_before_and_after(
    new_database: NewDatabase, tmp_path: Path, kafka_broker: str, dialect: Dialect
) -> None:
    stream = new_database(dialect, mixed_load.ddl(dialect, "NEW_ROW_AND_OLD_VALUES"), CHANGE_STREAM)
    connection = Connection(stream)
    pipeline_settings = settings(
        stream, tmp_path, format_rfc3339(connection.strong_read_timestamp_ns())
    )
    pipeline_settings["epoch"]["max_span"] = "1s"
    load = MixedLoad(stream, dialect, seed=11)
    while load.changes < CHANGES:
        load.transaction()
    with running_registry() as (registry, url):
        pipeline_settings["sink"] = {
            "kind": "kafka",
            "format": "avro",
            "confluent_schema_registry": url,
            "checkpoint": str(tmp_path / "checkpoint"),
            "topic": f"{dialect}.{{table}}",
            "envelope": "debezium",
            "resolved": "0s",
            "options": {"kafka.bootstrap.servers": kafka_broker},
        }
        pipeline_settings["spark"]["conf"] = spark_conf()
        service = Service(pipeline_settings, tmp_path, os.environ)
        service.start("--until-caught-up")
        assert service.wait(150) == 0, service.log.read_text()[-2_000:]
    messages = read_topics(kafka_broker, f"{dialect}.")
    subjects = {f"{topic}-{part}" for topic, _ in messages for part in ("key", "value")}
    assert set(registry.subjects) == subjects
    rows, changes, resolved = replayed(messages, registry)
    assert changes >= CHANGES
    assert resolved >= PARTITIONS * len(mixed_load.TABLES)
    for table in mixed_load.TABLES:
        expected = spanner_rows(stream, dialect, table)
        for row in expected:
            # Change streams do not watch generated columns.
            row.pop(mixed_load.GENERATED, None)
        assert sorted(map(same, rows[table].values()), key=repr) == sorted(
            map(same, expected), key=repr
        )


def replayed(
    messages_by_partition: dict[tuple[str, int], list[Message]], registry: Registry
) -> tuple[Rows, int, int]:
    """The rows that the messages lead to, each by its key; how many changes and resolved ones."""
    rows: Rows = {table: {} for table in mixed_load.TABLES}
    changes = resolved = 0
    deleted: set[str] = set()
    for message in (m for messages in messages_by_partition.values() for m in messages):
        if message.value() is None:
            # The tombstone after a delete, in the same partition.
            assert repr(decoded(registry, message.key())) in deleted
            continue
        value = decoded(registry, message.value())
        if value["resolved"] is not None:
            resolved += 1
            continue
        changes += 1
        of_table = rows[value["source"]["table"]]
        key = repr(decoded(registry, message.key()))
        before, after = value["before"], value["after"]
        assert (value["op"] == "c") is (key not in of_table)
        if value["op"] != "c":
            assert same(before) == same(of_table[key])
        if after is None:
            assert value["op"] == "d"
            deleted.add(key)
            del of_table[key]
        else:
            of_table[key] = after
    return rows, changes, resolved


def decoded(registry: Registry, message: bytes | None) -> Any:
    """Read by the newest schema of the subject, as a consumer that was built with it does."""
    assert message is not None
    zero, number = struct.unpack(">bI", message[:5])
    assert zero == 0
    schema = registry.schemas[number]
    newest = next(
        registry.schemas[max(numbers, key=lambda n: len(str(registry.schemas[n])))]
        for numbers in registry.subjects.values()
        if number in numbers
    )
    return fastavro.schemaless_reader(io.BytesIO(message[5:]), schema, newest)


def same(row: dict[str, Any]) -> dict[str, Any]:
    """Comparable with the rows of a plain client."""
    values = {}
    for name, value in row.items():
        if name == "Extra" and isinstance(value, str):
            value = json.loads(value, parse_float=Decimal)
        if name in ("Fee", "Sold") and isinstance(value, str):
            value = Decimal(value)
        values[name] = comparable(value)
    return values
