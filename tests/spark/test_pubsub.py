"""Pub/Sub gets every change through a kill, and the consumer of the page takes each once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.pubsub_v1.types import PubsubMessage

from slackwater.reader.change_stream import Dialect
from tests.proofs.pubsub_kills import prove
from tests.support.emulators import NewDatabase, whole_row_ddl
from tests.support.pages import blocks
from tests.support.pubsub import PubSubEmulator
from tests.support.pubsub import pubsub as pubsub

# They split and merge while it is killed, and in minutes they do not become too many.
PARTITION_ALIVE_S = 6


# Bigtable's changes come through a kill in tests/spark/test_bigtable_columns.py, and an epoch that
# is sent again has the same messages in tests/spark/test_pubsub_sink.py.
@pytest.mark.long
@pytest.mark.timeout(400)
def test_pubsub_gets_every_change_through_a_kill(
    new_database: NewDatabase, pubsub: PubSubEmulator, tmp_path: Path
) -> None:
    stream = new_database(Dialect.GOOGLE_STANDARD_SQL, whole_row_ddl())
    folder = tmp_path / "orders"
    folder.mkdir()
    said = prove(stream, folder, pubsub, kills=1, seed=1)
    assert said.startswith("1 kills")


def test_the_pages_consumer_handles_a_change_once() -> None:
    [example] = (block for block in blocks("pubsub.md", "python") if "def receive" in block)

    class Received:
        acknowledged = 0

        def __init__(self, uuid: str) -> None:
            attributes = {"uuid": uuid} if uuid else {}
            self.attributes = PubsubMessage(attributes=attributes).attributes

        def ack(self) -> None:
            Received.acknowledged += 1

    handled: list[str] = []
    names: dict[str, Any] = {
        "seen": set(),
        "handle": lambda message: handled.append(message.attributes.get("uuid", "resolved")),
    }
    exec(example, names)
    for uuid in ("a", "", "b", "a", "", "a"):
        names["receive"](Received(uuid))
    assert (handled, Received.acknowledged) == (["a", "resolved", "b", "resolved"], 6)
