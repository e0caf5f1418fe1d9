"""The service under churn and load, killed at random: the output equals the truth."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from reader.change_stream import ChangeStream, Dialect
from reader.connection import Connection
from reader.timestamp import format_rfc3339
from slackwater.demo.load import Load, LoadResult
from slackwater.demo.service import Service
from slackwater.proof import read_changelog
from tests.emulators import NewDatabase
from tests.truths import require_equal, truth_of

SECONDS = 20
TRANSACTIONS_PER_SECOND = 60
KILLS = 2
SEED = 20261121


def settings(stream: ChangeStream, folder: Path, start: str) -> dict[str, Any]:
    return {
        "pipeline": "orders",
        "source": {
            "project": stream.project,
            "instance": stream.instance,
            "database": stream.database,
            "change_stream": stream.change_stream,
            "start": start,
        },
        "epoch": {"trigger": "0s"},
        "sink": {"path": str(folder / "changes"), "checkpoint": str(folder / "checkpoint")},
        "state": {"url": f"sqlite:///{folder / 'state.db'}"},
        "spark": {"master": "local[2,4]"},
    }


@pytest.mark.timeout(400)
# GoogleSQL has tests/spark/test_kills.py, which chooses its moments.
@pytest.mark.parametrize("dialect", [Dialect.POSTGRESQL], ids=str)
def test_kills_of_the_whole_tree_lose_nothing_and_double_nothing(
    dialect: Dialect, new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database(dialect)
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    service = Service(settings(stream, tmp_path, format_rfc3339(start_ns)), tmp_path, os.environ)
    service.start()
    service.wait_for_watermark(start_ns, seconds_max=60)
    written: list[LoadResult] = []

    def write() -> None:
        load = Load(stream, dialect, seed=SEED)
        written.append(load.run(transactions_per_second=TRANSACTIONS_PER_SECOND, seconds=SECONDS))

    writer = threading.Thread(target=write)
    writer.start()
    moments = random.Random(f"{SEED} {dialect}")
    for _ in range(KILLS):
        # From the middle of a start to a dozen epochs after it.
        time.sleep(moments.uniform(6, 13))
        service.kill()
        service.start()
    writer.join()
    end_ns = connection.strong_read_timestamp_ns()
    service.wait_for_watermark(end_ns, seconds_max=120)
    assert service.drain() == 0
    truth = truth_of(stream, start_ns, end_ns, dialect)
    output = read_changelog(tmp_path / "changes")
    assert written[0].transactions >= SECONDS * TRANSACTIONS_PER_SECOND * 0.9
    assert len({(r[0], r[1]) for r in truth.records}) == written[0].transactions
    assert len(truth.partitions) >= SECONDS / 4, "the partitions did not churn"
    require_equal(output, truth)
