"""The threads of a task: Python's, or those that a simulation schedules.

A task's other modules start threads, lock and wait only through these protocols, so that a
simulation can choose which thread goes on at every lock and every wait.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Protocol

from slackwater.reader.transport.receive_loop import receive_loop, wait_aside

Lock = AbstractContextManager[object]


class Condition(Protocol):
    """A condition variable, as threading.Condition explains it."""

    def __enter__(self) -> object:
        """Take the lock."""

    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> object:
        """Release the lock."""

    def wait(self) -> object:
        """Release the lock until notify_all() is called, and take it again."""

    def notify_all(self) -> None:
        """Wake all threads that wait."""


class Pool(Protocol):
    """Does work that is submitted, a bounded number of works at once."""

    def submit(self, work: Callable[..., object], /, *args: object) -> object:
        """Have work done."""


class Repetition(Protocol):
    """Work that is done again and again in a thread of its own."""

    def stop(self) -> None:
        """Stop it, after waiting for work in progress."""


class Threads(Protocol):
    """All that a task needs of threads."""

    def lock(self) -> Lock:
        """Return a new lock."""

    def condition(self) -> Condition:
        """Return a new condition variable with a lock of its own."""

    def pool(self, size: int) -> AbstractContextManager[Pool]:
        """Return a pool for this many works at once; its end waits for all submitted work."""

    def repeat(self, work: Callable[[], object], *, every_s: float) -> Repetition:
        """Start a thread that does work again and again, first after every_s seconds."""

    def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""


class PythonThreads:
    """Python's own threads."""

    def lock(self) -> Lock:
        """Return a new lock."""
        return threading.Lock()

    def condition(self) -> Condition:
        """Return a new condition variable with a lock of its own."""
        return threading.Condition()

    def pool(self, size: int) -> AbstractContextManager[Pool]:
        """Return a pool for this many works at once; its end waits for all submitted work."""
        return receive_loop(size)

    def repeat(self, work: Callable[[], object], *, every_s: float) -> Repetition:
        """Start a thread that does work again and again, first after every_s seconds."""
        return _Repetition(work, every_s)

    def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        wait_aside(lambda: time.sleep(seconds))


PYTHON_THREADS: Final = PythonThreads()


class _Repetition:
    def __init__(self, work: Callable[[], object], every_s: float) -> None:
        self._work = work
        self._every_s = every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            self._work()
