"""The processes that run on this machine."""

from collections.abc import Iterator
from contextlib import suppress

import psutil


def running() -> Iterator[psutil.Process]:
    """Yield them all.

    psutil.process_iter() has those of its last call, and takes a process that got the number of
    one of them for it: then it can't be killed.
    """
    for pid in psutil.pids():
        with suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def jvm_below(pid: int) -> psutil.Process:
    """Return the JVM that a process has started."""
    [jvm] = (child for child in psutil.Process(pid).children() if child.name() == "java")
    return jvm
