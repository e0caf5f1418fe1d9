"""The output of whole lines to standard output, with a clean end when its reader goes away."""

import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

Write = Callable[[str], None]
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# For a line that is being written to a reader that does not read.
_LINE_S_MAX: Final = 5.0
_REMOVALS: Final = 10


def write_until_ended(work: Callable[[Write, Path], None]) -> None:
    """Call work in a thread, and return when it has ended.

    On Ctrl-C, SIGTERM, or when the pipe's reader has gone, this process exits with 0 at once: no
    line is torn, unless its reader stalls, and the folder is removed. An exception that a signal's
    handler raises could come up in a library's clean-up, which would log it, or lose it.

    Args:
        work: takes a function that writes whole lines, and a folder for its files.

    Raises:
        Exception: what work raised.
    """
    result: Future[None] = Future()
    writing = threading.Lock()
    has_reader = True

    def write(text: str) -> None:
        nonlocal has_reader
        with writing:
            try:
                sys.stdout.write(text)
                sys.stdout.flush()
            except BrokenPipeError:
                has_reader = False
                raise

    with _wake_up_socket() as (reader, writer):
        folder = Path(tempfile.mkdtemp(prefix="slackwater-tail-"))

        def run() -> None:
            try:
                work(write, folder)
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is read
                result.set_exception(error)
            else:
                result.set_result(None)
            with suppress(OSError):
                writer.send(b"\0")

        threading.Thread(target=run, name="tail", daemon=True).start()
        _wait(reader)
        if not result.done() or not has_reader:
            writing.acquire(timeout=_LINE_S_MAX)
            _exit(folder)
    shutil.rmtree(folder, ignore_errors=True)
    result.result()


@contextmanager
def _wake_up_socket() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield a pair of which the first can be read from when a signal has arrived."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    previous = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
    signal.set_wakeup_fd(writer.fileno())
    try:
        yield reader, writer
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in previous.items():
            signal.signal(number, handler)
        reader.close()
        writer.close()


def _wait(reader: socket.socket) -> None:
    """Wait until the socket can be read from, or standard output has lost its reader."""
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    # The next write may be a long time away.
    poll.register(sys.stdout.fileno(), 0)
    poll.poll()


def _exit(folder: Path) -> None:
    """Leave the process while work goes on in its thread, which may complain of its lost files."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    # It may add a file meanwhile.
    for _ in range(_REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)
