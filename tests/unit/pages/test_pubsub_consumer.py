"""The consumer of the page about Pub/Sub takes each change once.

`python -m tests.proofs.pubsub_kills` sends every change through kills.
"""

from typing import Any

from google.pubsub_v1.types import PubsubMessage

from tests.support.pages import blocks


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
