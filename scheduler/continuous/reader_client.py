"""Asks this host's reader process, and starts it where there is none."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Client
from pathlib import Path
from typing import Final

from slackwater.scheduler.continuous.frames import Frame, Request

_FOLDER: Final = f"slackwater-readers-{os.getuid()}"
# Of a socket's path, on Linux and macOS.
_PATH_LENGTH_MAX: Final = 100


class ReaderClient:
    """Asks the reader process of this process group, which is that of Spark's Python workers.

    Args:
        folder: where the sockets are; None for a folder of this user's among the temporary files.
        parent_pid: the process with which the reader process ends; None for this one's parent,
            which is the daemon of Spark's workers.
    """

    def __init__(self, folder: Path | None = None, parent_pid: int | None = None) -> None:
        self._folder = folder
        self._parent_pid = parent_pid

    def take(self, request: Request) -> Iterator[Frame]:
        """Yield the frames of the answer.

        Raises:
            OSError, EOFError: there is no reader process, or it has ended.
        """
        with Client(str(self._socket()), "AF_UNIX") as connection:
            connection.send(request)
            while (frame := connection.recv()) is not None:
                yield frame

    def start_if_missing(self) -> None:
        """Start the reader process unless it runs, without waiting until it answers.

        Raises:
            OSError: it can't be started.
        """
        socket = self._socket()
        with socket.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            module = "slackwater.scheduler.continuous.reader_process"
            subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-m", module, str(socket), str(self._parent_pid or os.getppid())],
                # gRPC's own lines about connections are no lines of this program's log.
                env={"GRPC_VERBOSITY": "NONE", **os.environ},
                stdin=subprocess.DEVNULL,
                # The daemon of Spark's workers speaks with the JVM over its standard output.
                stdout=subprocess.DEVNULL,
                # With the open file it holds the lock, until it ends.
                pass_fds=(lock.fileno(),),
            )

    def _socket(self) -> Path:
        """Return the socket of the reader process; there is one for each process group."""
        folder = self._folder or _own_folder()
        return folder / f"{os.getpgid(0)}.sock"


def _own_folder() -> Path:
    """Return a folder that only this user can enter.

    Raises:
        OSError: there is one of that name that others can enter.
    """
    folder = Path(tempfile.gettempdir()) / _FOLDER
    if len(str(folder)) > _PATH_LENGTH_MAX:
        folder = Path("/tmp") / _FOLDER  # noqa: S108 - checked below
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not this user's alone")
    return folder
