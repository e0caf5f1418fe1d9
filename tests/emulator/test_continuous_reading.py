"""Epochs read from a reader process, whose queries stay open, on the emulator."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from slackwater.demo.load import Load
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.scheduler.continuous import reader_client
from slackwater.scheduler.continuous.frames import Frame, Request
from slackwater.scheduler.continuous.reader_client import ReaderClient
from tests.simulation.continuous import STREAM
from tests.support.emulators import NewDatabase
from tests.support.epochs import EpochLoop
from tests.support.reader_processes import readers
from tests.support.reader_processes import short_folder as short_folder
from tests.support.reader_processes import sockets as sockets
from tests.support.truths import require_equal, truth_of
from tests.support.waiting import wait_until

_SECONDS_MAX = 300
# Most outlive an epoch on a busy machine, too, and some split and merge.
PARTITION_ALIVE_S = 6


class CountingReader(ReaderClient):
    """Counts the partitions that the reader process had, and those that it had not."""

    taken = missed = 0

    def read(self, request: Request) -> Iterator[Frame]:
        had: set[int] = set()
        for frame in super().read(request):
            had.update(entry.position for entry in frame.entries)
            yield frame
        self.taken += len(had)
        self.missed += len(request.wanted) - len(had)


# The reader process passes on what each dialect's decoder makes, which others of this folder read.
@pytest.mark.parametrize(
    "dialect",
    [Dialect.GOOGLE_STANDARD_SQL, pytest.param(Dialect.POSTGRESQL, marks=pytest.mark.long)],
)
def test_epochs_hold_every_record_once_and_most_partitions_are_not_asked_again(
    dialect: Dialect,
    sockets: Path,
    new_database: NewDatabase,
    new_store_url: Callable[[str], str],
) -> None:
    stream = new_database(dialect)
    start_ns = Connection(stream).strong_read_timestamp_ns()
    options = {"reading": "continuous"}
    loop = EpochLoop(stream, new_store_url("sqlite"), start_ns=start_ns, options=options)
    reader = loop.reader = CountingReader(sockets, os.getpid())
    load = Load(stream, dialect, seed=5)
    stop = threading.Event()
    writing = threading.Thread(
        target=load.run, kwargs={"transactions_per_second": 15, "seconds": 600, "stop": stop}
    )
    writing.start()
    try:
        epochs = [loop.epoch()]
        until_taken(loop, epochs, reader, 20)
        [process] = readers(sockets)
        process.kill()
        until_taken(loop, epochs, reader, reader.taken + 20)
    finally:
        stop.set()
        writing.join()
    end_ns = loop.connection.strong_read_timestamp_ns()
    epochs += loop.epochs(end_ns)
    assert len(readers(sockets)) == 1
    assert readers(sockets) != [process], "another one was started"
    output = pa.concat_tables(epochs)
    require_equal(output, truth_of(stream, start_ns, loop.watermark_ns or 0, dialect))
    assert output.num_rows > 100
    loop.close()


def until_taken(
    loop: EpochLoop, epochs: list[pa.Table], reader: CountingReader, partitions: int
) -> None:
    """Read epochs until the reader process had so many partitions."""
    until = time.monotonic() + _SECONDS_MAX
    while reader.taken < partitions:
        assert time.monotonic() < until, f"{reader.taken} taken, {reader.missed} missed"
        epochs.append(loop.epoch())
        time.sleep(0.2)


def started(sockets: Path, parent_pid: int) -> psutil.Process:
    """Start a reader process, and wait until it answers."""
    client = ReaderClient(sockets, parent_pid)
    client.start_if_missing()
    client.start_if_missing()
    wait_until(lambda: answers(client))
    [process] = readers(sockets)
    return process


def answers(client: ReaderClient) -> bool:
    try:
        list(client.read(Request(STREAM, (), 0, 0.0, is_suspect=True)))
    except OSError:
        return False
    return True


def test_there_is_one_reader_process_and_another_one_after_its_death(sockets: Path) -> None:
    first = started(sockets, os.getpid())
    assert started(sockets, os.getpid()) == first
    first.send_signal(signal.SIGKILL)
    first.wait(_SECONDS_MAX)
    client = ReaderClient(sockets, os.getpid())
    until = time.monotonic() + _SECONDS_MAX
    while not readers(sockets):
        client.start_if_missing()
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.long
def test_a_reader_process_ends_with_its_parent(sockets: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = started(sockets, parent.pid)
    parent.kill()
    parent.wait()
    process.wait(_SECONDS_MAX)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_reader_process_ends_when_it_is_told_to(number: signal.Signals, sockets: Path) -> None:
    process = started(sockets, os.getpid())
    process.send_signal(number)
    assert process.wait(_SECONDS_MAX) == 0
    assert not list(sockets.glob("*.sock"))


def test_one_that_does_not_answer_is_not_asked_again_for_a_while(
    sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = started(sockets, os.getpid())
    process.suspend()
    monkeypatch.setattr(reader_client, "_ANSWER_S_MAX", 0.5)
    client = ReaderClient(sockets, os.getpid())
    assert not answers(client)
    process.resume()
    monkeypatch.undo()
    assert answers(ReaderClient(sockets, os.getpid()))
    assert not answers(client)


def test_a_folder_that_others_can_enter_is_not_used(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_folder))
    client = ReaderClient()
    with pytest.raises(FileNotFoundError):
        list(client.read(Request(STREAM, (), 0, 0.0)))
    [made] = short_folder.iterdir()
    made.chmod(0o777)
    with pytest.raises(PermissionError, match="not this user's alone"):
        client.start_if_missing()
