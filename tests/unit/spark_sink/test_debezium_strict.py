"""With strict, messages are those of Debezium's connector, field by field.

The connector's own classes made them (tests/support/debezium_connector.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from slackwater.spark_sink.envelopes.debezium import Debezium
from slackwater.spark_sink.envelopes.envelope import EnvelopeOptions
from slackwater.spark_sink.envelopes.message import table_topic
from tests.support.debezium_connector import CASES, MESSAGES, Changes, all_messages, compact
from tests.support.row_changes import ORIGIN, WATERMARK_MS

EXPECTED = json.loads(MESSAGES.read_text())
TOPIC = f"{ORIGIN.pipeline}.{{table}}"
HEARTBEATS = f"__debezium-heartbeat.{ORIGIN.pipeline}"


def ours(changes: Changes) -> Iterator[dict[str, Any]]:
    envelope = Debezium(
        EnvelopeOptions(
            ORIGIN, tombstones=True, schemas_enable=True, strict=True, shapes=changes.shapes
        )
    )
    for record in changes.records:
        for message in envelope.messages(record):
            topic = table_topic(TOPIC, message.table or "")
            yield read(topic, message.key, message.value, envelope.headers(record))
    beat = envelope.heartbeat("partition_token").as_json()
    yield read(HEARTBEATS, beat.key, beat.value, {})
    for table in changes.shapes:
        resolved = envelope.resolved(WATERMARK_MS * 1_000_000, table).as_json()
        topic = table_topic(TOPIC, table)
        yield read(topic, resolved.key, resolved.value, envelope.headers(None))


def read(
    topic: str, key: str | None, value: str | None, headers: Mapping[str, str]
) -> dict[str, Any]:
    parts = {"key": key and json.loads(key), "value": value and json.loads(value)}
    # Kafka Connect's task adds this one as it takes a message from the queue.
    return {**parts, "topic": topic, "headers": headers.keys() - {"pollAtTimestamp"}}


def in_order(messages: Iterable[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the messages of each topic as texts, in their order."""
    by_topic: dict[str, list[str]] = {}
    for message in messages:
        plain = {name: message[name] for name in ("key", "value", "headers")}
        by_topic.setdefault(message["topic"], []).append(json.dumps(plain, sort_keys=True))
    return sorted(by_topic.items())


@pytest.mark.parametrize("case", CASES)
def test_messages_are_the_connectors(case: str) -> None:
    made = compact(ours(CASES[case]))
    assert in_order(made["messages"]) == in_order(EXPECTED[case]["messages"])
    assert made["schemas"] == EXPECTED[case]["schemas"]


@pytest.mark.long
def test_the_connector_makes_these_messages() -> None:
    assert all_messages() == EXPECTED
