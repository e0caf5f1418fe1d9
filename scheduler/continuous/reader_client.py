"""The client of the reader process beside these workers, which it also starts."""

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from slackwater.own_folder import own_folder
from slackwater.scheduler.continuous.frames import Frame, Request

_FOLDER: Final = f"slackwater-readers-{os.getuid()}"
# macOS allows 103 characters in a socket's path, and Linux 107.
_PATH_LENGTH_MAX: Final = 100
# A process that has not answered for so long is not asked again for a while.
_ANSWER_S_MAX: Final = 20.0
_NOT_ASKED_S: Final = 300.0
# A process that keeps ending is not started more often than this.
_START_EVERY_S: Final = 10.0


class ReaderClient:
    """A client of the reader process of this process group, that of Spark's Python workers.

    Args:
        folder: where the sockets are; None for a folder of this user's among the temporary files.
        parent_pid: the process with which the reader process ends; None for this one's parent,
            which is the daemon of Spark's workers.
    """

    def __init__(self, folder: Path | None = None, parent_pid: int | None = None) -> None:
        self._folder = folder
        self._parent_pid = parent_pid
        self._not_before_s = self._start_not_before_s = 0.0

    def read(self, request: Request) -> Iterator[Frame]:
        """Yield the frames of the answer.

        Raises:
            OSError, EOFError: there is no reader process, or it has ended.
        """
        if time.monotonic() < self._not_before_s:
            raise TimeoutError("the reader process did not answer a while ago")
        with _connected(self._socket()) as connection:
            connection.send(request)
            while (frame := self._received(connection, request.wait_s)) is not None:
                yield frame

    def _received(self, connection: Connection, wait_s: float) -> Frame | None:
        if not connection.poll(wait_s + _ANSWER_S_MAX):
            self._not_before_s = time.monotonic() + _NOT_ASKED_S
            raise TimeoutError("the reader process does not answer")
        frame: Frame | None = connection.recv()
        return frame

    def start_if_missing(self) -> None:
        """Start the reader process unless it runs, without waiting until it answers.

        Raises:
            OSError: it can't be started.
        """
        if time.monotonic() < self._start_not_before_s:
            return
        self._start_not_before_s = time.monotonic() + _START_EVERY_S
        path = self._socket()
        with path.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            module = "slackwater.scheduler.continuous.reader_process"
            subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", module, str(path), str(self._parent_pid or os.getppid())],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                # The daemon of Spark's workers speaks with the JVM over its standard output.
                stdout=subprocess.DEVNULL,
                # With the open file it holds the lock, until it ends.
                pass_fds=(lock.fileno(),),
            )

    def _socket(self) -> Path:
        """Return the socket of the reader process; there is one for each process group."""
        name = f"{os.getpgid(0)}.sock"
        return (self._folder or _own_folder(len(name))) / name


def _connected(path: Path) -> Connection:
    """Connect, with a timeout for a process that accepts no connections."""
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(_ANSWER_S_MAX)
        made.connect(str(path))
        made.settimeout(None)
        return Connection(made.detach())


def _environment() -> dict[str, str]:
    """Return this environment, in which the same modules are found as here."""
    # Spark's workers look in more places than they were started with.
    places = os.pathsep.join(place for place in sys.path if place)
    # gRPC would write lines about connections into this program's log.
    return {"GRPC_VERBOSITY": "NONE", **os.environ, "PYTHONPATH": places}


def _own_folder(name_length: int) -> Path:
    """Return a folder that only this user can enter.

    Args:
        name_length: of the socket's name in it.

    Raises:
        OSError: there is such a folder, and others can enter it.
    """
    folder = Path(tempfile.gettempdir()) / _FOLDER
    if len(str(folder)) + 1 + name_length > _PATH_LENGTH_MAX:
        folder = Path("/tmp") / _FOLDER  # noqa: S108 - checked below
    return own_folder(folder)
