"""The metadata store goes away in the middle of an epoch and comes back: nothing is lost."""

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.testing.compare import read_changelog
from slackwater.timestamp import format_rfc3339
from tests.support.emulators import NewDatabase
from tests.support.services import settings
from tests.support.truths import require_equal, truth_of
from tests.support.tunnels import blind, cut, postgres_socket, through, tunnel

# Longer than the store is tried for, so that what needs it fails and has to be done again.
OUTAGE_S = 34


class Wire:
    """What leads to a PostgreSQL server's socket, and can be cut."""

    def __init__(self, url: sa.URL) -> None:
        self._url = url
        self._open: set[socket.socket] = set()
        self._is_cut = False
        self._lock = threading.Lock()

    def connect(self, near: socket.socket) -> socket.socket | None:
        with self._lock:
            if self._is_cut:
                return None
            far = postgres_socket(self._url)
            self._open |= {near, far}
            return far

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            cut(*self._open)
            self._open.clear()

    def mend(self) -> None:
        with self._lock:
            self._is_cut = False


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_epoch_is_retried_when_the_store_comes_back(
    new_database: NewDatabase, new_postgres_url: Callable[[], str], tmp_path: Path
) -> None:
    url = sa.make_url(new_postgres_url())
    wire = Wire(url)
    with tunnel(wire.connect, blind) as port:
        require_every_change(new_database(), through(url, port), wire, tmp_path)


def require_every_change(stream: ChangeStream, url: str, wire: Wire, tmp_path: Path) -> None:
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    pipeline_settings = settings(stream, tmp_path, format_rfc3339(start_ns))
    pipeline_settings["state"] = {"url": url}
    service = Service(pipeline_settings, tmp_path, os.environ)
    service.start()
    service.wait_for_watermark(start_ns, seconds_max=90)
    stop = threading.Event()
    load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=9)
    writer = threading.Thread(
        target=load.run,
        kwargs={"transactions_per_second": 30, "seconds": 200, "stop": stop},
    )
    writer.start()
    time.sleep(3)
    wire.cut()
    time.sleep(OUTAGE_S)
    wire.mend()
    end_ns = connection.strong_read_timestamp_ns()
    service.wait_for_watermark(end_ns, seconds_max=120)
    stop.set()
    writer.join()
    end_ns = connection.strong_read_timestamp_ns()
    service.wait_for_watermark(end_ns, seconds_max=60)
    assert service.drain() == 0
    assert "does not answer" in service.log.read_text()
    truth = truth_of(stream, start_ns, end_ns)
    output = read_changelog(tmp_path / "changes")
    require_equal(output, truth)
