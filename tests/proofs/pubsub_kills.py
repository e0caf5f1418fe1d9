"""Kills of a pipeline that sends to Pub/Sub: each change comes, and one that comes again is known.

After messages with a known uuid are left out, those of a key are in commit order, and none comes
after a resolved message that covers it. Google's emulator numbers messages as it takes them.
`python -m tests.proofs.pubsub_kills --kills 20`
"""

import json
import os
import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

from google.pubsub_v1.types import PubsubMessage

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.testing.plain_client import Truth
from slackwater.timestamp import format_rfc3339
from tests.support.emulators import own_database, whole_row_ddl
from tests.support.programs import parsed_options
from tests.support.pubsub import PROJECT, PubSubEmulator, running_pubsub
from tests.support.services import settings
from tests.support.truths import truth_of

_TABLES: Final = ("Customers", "Orders", "Payments")
_WAIT_S_MAX: Final = 600


def prove(
    stream: ChangeStream, folder: Path, pubsub: PubSubEmulator, *, kills: int, seed: int
) -> str:
    """Kill a pipeline at any moment, and compare what was sent with the truth.

    Args:
        stream: of the demo's tables, in GoogleSQL, with whole rows.
        folder: for all files; its name begins the topics'.
        pubsub: the emulator.
        kills: how many.
        seed: of the moments.
    """
    choose, topics = random.Random(seed), [f"{folder.name}-{table}" for table in _TABLES]
    pubsub.create(*topics, is_ordered=False)
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    values = settings(stream, folder, format_rfc3339(start_ns))
    values["sink"] = {
        "kind": "pubsub",
        "project": PROJECT,
        "checkpoint": str(folder / "checkpoint"),
        "topic": f"{folder.name}-{{table}}",
        "envelope": "datastream",
        "resolved": "0s",
        "batch_messages": 50,
    }
    service = Service(values, folder, os.environ | {"PUBSUB_EMULATOR_HOST": pubsub.host})
    stop = threading.Event()
    load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=seed)
    writing = threading.Thread(
        target=load.run,
        kwargs={"transactions_per_second": 10, "seconds": 3_600, "stop": stop},
    )
    service.start()
    writing.start()
    try:
        for _ in range(kills):
            reached_ns = connection.strong_read_timestamp_ns()
            service.wait_for_watermark(reached_ns, seconds_max=_WAIT_S_MAX)
            time.sleep(choose.uniform(0, 2))
            service.kill()
            service.start()
    finally:
        stop.set()
        writing.join()
    end_ns = connection.strong_read_timestamp_ns()
    service.wait_for_watermark(end_ns, seconds_max=_WAIT_S_MAX)
    assert service.drain() == 0
    sent = {topic: sorted(pubsub.pull(topic), key=_number) for topic in topics}
    repeated = _require_truth(sent, truth_of(stream, start_ns, end_ns))
    total = sum(map(len, sent.values()))
    return f"{kills} kills, {total} messages, {repeated} of them repeated"


def _number(message: PubsubMessage) -> int:
    return int(message.message_id)


def _require_truth(sent: dict[str, list[PubsubMessage]], truth: Truth) -> int:
    """Require every change once, in order; return how many messages came again."""
    places: set[Any] = set()
    repeated = 0
    for messages in sent.values():
        known: set[str] = set()
        newest: dict[str, str] = {}
        resolved = ""
        for message in messages:
            attributes, value = message.attributes, json.loads(message.data)
            if "resolved" in value:
                resolved = max(resolved, attributes["low_watermark"])
                continue
            assert attributes["uuid"] == value["uuid"]
            if attributes["uuid"] in known:
                repeated += 1
                continue
            known.add(attributes["uuid"])
            committed = attributes["commit_timestamp"]
            assert committed > resolved, "a change after it was resolved"
            assert committed >= newest.get(message.ordering_key, ""), "a key out of order"
            newest[message.ordering_key] = committed
            places.add(tuple(value["sort_keys"][1:]))
        assert resolved, "no resolved message"
    expected = {
        (record.server_transaction_id, record.record_sequence, number)
        for record in truth.records
        for number in range(len(record.mods))
    }
    assert places == expected, (len(places - expected), len(expected - places))
    return repeated


def main() -> None:
    """Prove it once."""
    options = parsed_options(__doc__, kills=20, seed=1)
    with (
        tempfile.TemporaryDirectory(prefix="pubsub-") as folder,
        # On a slow machine partitions of two seconds multiply faster than they are read.
        own_database(statements=whole_row_ddl(), partition_alive_seconds=6) as stream,
        running_pubsub() as pubsub,
    ):
        print(prove(stream, Path(folder), pubsub, kills=options.kills, seed=options.seed))


if __name__ == "__main__":
    main()
