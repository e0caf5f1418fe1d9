"""Dead letters in an object store: no process takes any away."""

import json
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import SinkError
from slackwater.spark_sink.output.bucket_place import Bucket
from slackwater.spark_sink.output.dead_letters import FOLDER, DeadLetters
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.latest_changes import latest_changes
from tests.support.epoch_rows import frame, low_watermark, record
from tests.support.object_stores import STORES, ServedStore, nothing

TABLE = "sales.Orders"


@pytest.fixture(scope="module", params=["s3", "gs"])
def store(request: pytest.FixtureRequest) -> Iterator[ServedStore]:
    with STORES[request.param]() as served:
        yield served


def set_aside(spark: SparkSession, place: Bucket) -> None:
    """Set a record aside as a process does that has none of the former ones."""
    columns = {"Id": "INT64", "A": "INT64"}
    rows: Any = [({"Id": str(n)}, {"A": a}, {}) for n, a in enumerate(("5", "x", "y"))]
    changes = frame(spark, [record("INSERT", rows, columns, at=1)])
    typed = (Column("Id", "INT64", True), Column("A", "INT64", False))
    checked = latest_changes(changes, TABLE, typed, is_checked=True)
    letters = DeadLetters(place, is_enabled=True)
    good = letters.set_aside(changes, TABLE, checked, low_watermark(1))
    assert [row["key"] for row in good.collect()] == ['{"Id": "0"}']


def test_a_former_owner_that_wakes_up_takes_no_letters_away(
    session: SparkSession, store: ServedStore, tmp_path: Path
) -> None:
    folder = f"tables-{uuid.uuid4().hex}"
    place = Bucket(f"{store.path}/{folder}", store.options)
    is_replayed = False

    def before(_: str, name: str) -> None:
        nonlocal is_replayed
        # The former owner has its letters, and gives them their name.
        if f"{FOLDER}/2026" in name:
            store.before = nothing
            place.remove(place.staged())
            set_aside(session, place)
            is_replayed = True

    store.before = before
    try:
        with suppress(SinkError):
            set_aside(session, place)
    finally:
        store.before = nothing
    assert is_replayed
    # As after a crash.
    set_aside(session, place)
    (name,) = store.names(f"{folder}/{FOLDER}")
    with place.local_files([name.partition("/")[2]]) as (copy,):
        lines = copy.read_text().splitlines()
    keys = [json.loads(line)["key"] for line in lines]
    assert sorted(keys) == ['{"Id": "1"}', '{"Id": "2"}']
    assert store.names(f"{folder}/_staging") == []
