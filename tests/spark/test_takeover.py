"""One owner: a standby takes over soon, and a first owner that was only frozen does no harm."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from reader.change_stream import ChangeStream, Dialect
from reader.connection import Connection
from reader.timestamp import format_rfc3339
from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.proof import read_changelog
from tests.emulators import NewDatabase
from tests.spark.test_exactly_once import settings
from tests.truths import require_equal, truth_of

TAKEOVER_S_MAX = 15.0
TRANSACTIONS_PER_SECOND = 30


class Pair:
    """Two services on one pipeline, and a load that goes on meanwhile."""

    def __init__(self, stream: ChangeStream, folder: Path, **lease: Any) -> None:
        self.stream = stream
        self.folder = folder
        self.connection = Connection(stream)
        self.start_ns = self.connection.strong_read_timestamp_ns()
        given = settings(stream, folder, format_rfc3339(self.start_ns)) | {"lease": lease}
        self.first = Service(given, folder / "first", os.environ)
        self.second = Service(given, folder / "second", os.environ)
        self._stop = threading.Event()
        self._writer = threading.Thread(target=self._write)

    def begin(self) -> None:
        """The first runs and has read something, the second stands by."""
        self.first.start()
        self.first.wait_for_watermark(self.start_ns, seconds_max=60)
        self.second.start()
        self._writer.start()
        wait_for(self.second, "standing by", seconds_max=60)

    def _write(self) -> None:
        Load(self.stream, Dialect.GOOGLE_STANDARD_SQL, seed=8).run(
            transactions_per_second=TRANSACTIONS_PER_SECOND, seconds=120, stop=self._stop
        )

    def end(self, service: Service) -> None:
        """Let the load end and the service catch up and drain; the output equals the truth."""
        self._stop.set()
        self._writer.join()
        end_ns = self.connection.strong_read_timestamp_ns()
        service.wait_for_watermark(end_ns, seconds_max=90)
        assert service.drain() == 0
        truth = truth_of(self.stream, self.start_ns, end_ns)
        output = read_changelog(self.folder / "changes")
        require_equal(output, truth)


def wait_for(service: Service, text: str, *, seconds_max: float) -> None:
    until = time.monotonic() + seconds_max
    while text not in service.log.read_text():
        assert time.monotonic() < until, service.log.read_text()[-2_000:]
        time.sleep(0.05)


def tree(service: Service) -> list[psutil.Process]:
    process = psutil.Process(service.pid)
    return [process, *process.children(recursive=True)]


@pytest.mark.timeout(300)
def test_a_standby_takes_over_within_fifteen_seconds_of_a_kill(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    pair = Pair(new_database(), tmp_path)
    pair.begin()
    killed_ns = pair.connection.strong_read_timestamp_ns()
    killed_at = time.monotonic()
    pair.first.kill()
    pair.second.wait_for_watermark(killed_ns, seconds_max=60)
    assert time.monotonic() - killed_at < TAKEOVER_S_MAX
    pair.end(pair.second)


@pytest.mark.timeout(300)
def test_a_frozen_owner_that_wakes_after_a_takeover_commits_nothing_more(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    pair = Pair(new_database(), tmp_path, duration="3s")
    pair.begin()
    frozen = tree(pair.first)
    for process in frozen:
        process.send_signal(signal.SIGSTOP)
    frozen_ns = pair.connection.strong_read_timestamp_ns()
    pair.second.wait_for_watermark(frozen_ns, seconds_max=60)
    for process in reversed(frozen):
        process.send_signal(signal.SIGCONT)
    # It learns that it was replaced, and stands by.
    wait_for(pair.first, "standing by", seconds_max=60)
    time.sleep(3)
    pair.end(pair.second)
    # The former owner is the standby now, and free to take over what was left to it.
    assert pair.first.drain() == 0
    assert "took over" in pair.second.log.read_text()
