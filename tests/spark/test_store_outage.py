"""The metadata store goes away in the middle of an epoch and comes back: nothing is lost."""

from __future__ import annotations

import contextlib
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
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.testing.compare import read_changelog
from slackwater.timestamp import format_rfc3339
from tests.support.emulators import NewDatabase
from tests.support.services import settings
from tests.support.truths import require_equal, truth_of

# Longer than the store is tried for, so that what needs it fails and has to be done again.
OUTAGE_S = 34


class Wire:
    """A TCP port that leads to a PostgreSQL server's socket, and can be cut."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._open: set[socket.socket] = set()
        self._is_cut = False
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def mend(self) -> None:
        with self._lock:
            self._is_cut = False

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            with self._lock:
                if self._is_cut:
                    near.close()
                    continue
                far = socket.socket(socket.AF_UNIX)
                far.connect(self._path)
                self._open |= {near, far}
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_epoch_is_retried_when_the_store_comes_back(
    new_database: NewDatabase, new_postgres_url: Callable[[], str], tmp_path: Path
) -> None:
    stream = new_database()
    url = sa.make_url(new_postgres_url())
    wire = Wire(f"{url.query['host']}/.s.PGSQL.5432")
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    pipeline_settings = settings(stream, tmp_path, format_rfc3339(start_ns))
    through = url.set(host="127.0.0.1", port=wire.port, query={})
    pipeline_settings["state"] = {"url": through.render_as_string(hide_password=False)}
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
