"""A Spark that is of no use any more is started anew, and nothing is lost or doubled."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.testing.compare import read_changelog
from slackwater.timestamp import format_rfc3339
from tests.support.command_line import slackwater
from tests.support.emulators import NewDatabase
from tests.support.services import settings
from tests.support.truths import require_equal, truth_of

PARTITION_ALIVE_S = 20

_SECONDS_MAX = 300


def jvm_of(service: Service) -> psutil.Process:
    until = time.monotonic() + _SECONDS_MAX
    while time.monotonic() < until:
        for process in psutil.Process(service.pid).children():
            if process.name() == "java":
                return process
        time.sleep(0.1)
    pytest.fail("the service has no JVM")


@contextmanager
def running(stream: ChangeStream, folder: Path, deadline: str) -> Iterator[Callable[[], Service]]:
    """Run a service beside a load; in the end it has all changes, once."""
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    of_pipeline = settings(stream, folder, format_rfc3339(start_ns))
    of_pipeline["epoch"]["progress_deadline"] = deadline
    service = Service(of_pipeline, folder, os.environ)
    service.start()

    load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=2)

    def after_changes() -> Service:
        load.run(transactions_per_second=20, seconds=2)
        service.wait_for_watermark(connection.strong_read_timestamp_ns(), seconds_max=_SECONDS_MAX)
        return service

    try:
        yield after_changes
        after_changes()
        end_ns = connection.strong_read_timestamp_ns()
        service.wait_for_watermark(end_ns, seconds_max=_SECONDS_MAX)
        stopped = slackwater("stop", "-c", str(service.config))
        assert stopped.stdout.startswith("orders: has stopped")
        assert service.wait(_SECONDS_MAX) == 0
    finally:
        service.kill()
    require_equal(read_changelog(folder / "changes"), truth_of(stream, start_ns, end_ns))


def test_a_jvm_that_has_died_is_started_anew(new_database: NewDatabase, tmp_path: Path) -> None:
    with running(new_database(), tmp_path, "10m") as after_changes:
        service = after_changes()
        jvm_of(service).kill()
    assert "Spark's JVM has ended, with status -9" in service.log.read_text()


@pytest.mark.long
def test_a_jvm_that_hangs_is_ended_and_started_anew(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    with running(new_database(), tmp_path, "10s") as after_changes:
        service = after_changes()
        jvm_of(service).send_signal(signal.SIGSTOP)
    log = service.log.read_text()
    assert "for 10 s no record was read, no file was written and no task ended" in log
