"""With strict, messages are those of Debezium's connector, field by field.

The connector's own classes made them (tests/support/debezium_connector.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from slackwater.spark_sink.envelopes.debezium import Debezium
from slackwater.spark_sink.envelopes.envelope import EnvelopeOptions
from slackwater.spark_sink.envelopes.message import Message, table_topic
from tests.support.debezium_connector import CASES, MESSAGES, Changes, all_messages, compact
from tests.support.row_changes import ORIGIN, WATERMARK_MS

EXPECTED = json.loads(MESSAGES.read_text())
TOPIC = f"{ORIGIN.pipeline}.{{table}}"


def envelope(changes: Changes) -> Debezium:
    options = EnvelopeOptions(
        ORIGIN, tombstones=True, schemas_enable=True, strict=True, shapes=changes.shapes
    )
    return Debezium(options)


def ours(changes: Changes) -> Iterator[dict[str, Any]]:
    of_changes = envelope(changes)
    for record in changes.records:
        for message in of_changes.messages(record):
            yield read(message)
    for table in changes.shapes:
        message = of_changes.resolved(WATERMARK_MS * 1_000_000, table).as_json()
        yield read(Message(table, message.key, message.value))


def read(message: Message) -> dict[str, Any]:
    parts = {"key": message.key, "value": message.value}
    return {
        "topic": table_topic(TOPIC, message.table or ""),
        "headers": {},
        **{name: text and json.loads(text) for name, text in parts.items()},
    }


def in_order(messages: Iterator[Mapping[str, Any]]) -> list[str]:
    """Return messages as texts, those of watermarks by their tables."""
    both = [{n: m[n] for n in ("topic", "key", "value")} for m in messages]
    changes = [m for m in both if m["value"] is None or m["value"].get("op") != "m"]
    watermarks = [m for m in both if m not in changes]
    watermarks.sort(key=lambda message: str(message["topic"]))
    return [json.dumps(message, sort_keys=True) for message in (*changes, *watermarks)]


@pytest.mark.parametrize("case", CASES)
def test_messages_are_the_connectors(case: str) -> None:
    made = compact(ours(CASES[case]))
    expected = EXPECTED[case]
    is_ours = [m for m in expected["messages"] if not m["topic"].startswith("__debezium")]
    assert in_order(iter(made["messages"])) == in_order(iter(is_ours))
    assert made["schemas"] == {
        topic: schemas
        for topic, schemas in expected["schemas"].items()
        if not topic.startswith("__debezium")
    }


@pytest.mark.long
def test_the_connector_makes_these_messages() -> None:
    assert all_messages() == EXPECTED
