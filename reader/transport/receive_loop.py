"""One thread that receives the messages of many calls, in turn with the work that uses them.

With a thread for each call, a message costs switches between threads: thousands of idle partitions
cost half as much again, and sixteen busy streams four times as much as one. In a loop each work is
written as if it had a thread of its own. It is a greenlet: where it waits for messages, the loop
goes on with another whose messages have come.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Final, Protocol, TypeVar

from greenlet import enable_optional_cleanup, getcurrent, greenlet

from slackwater.reader.transport.transfers import Transfers, transfers

T = TypeVar("T")

# Of a loop that was busy for so long, the time is not the server's silence.
_BUSY_S: Final = 0.25

_LOCAL: Final = threading.local()

# When a thread ends, greenlet asks gc.get_referrers() who holds the thread's main greenlet, and
# drops a reference if it finds nobody. It does not find what gc.freeze() has put aside, and would
# free a greenlet that is in use.
enable_optional_cleanup(False)


class Loop(Protocol):
    """The loop in which the works of a thread wait.

    Attributes:
        transfers: those of its calls.
        is_waiting: it has nothing to do but to wait for messages.
    """

    transfers: Transfers
    is_waiting: bool

    def current_work(self) -> object:
        """Return the work that runs, for resume()."""

    def go_on(self) -> None:
        """Let others go on until this work is resumed. After current_work()."""

    def resume(self, work: object) -> None:
        """Let a work go on soon; called in the loop's thread."""

    def wait_for(self, blocking: Callable[[], T]) -> T:
        """Return what a call in another thread returns, or raise what it raises."""


def current_loop() -> Loop | None:
    """Return the loop that runs in this thread."""
    loop: Loop | None = getattr(_LOCAL, "loop", None)
    return loop


def set_loop(loop: Loop) -> None:
    """Have a loop be that of this thread."""
    _LOCAL.loop = loop


def wait_aside(blocking: Callable[[], T]) -> T:
    """Return what a call that blocks returns; a loop goes on meanwhile, and a thread waits."""
    loop = current_loop()
    return blocking() if loop is None else loop.wait_for(blocking)


class ReceiveLoop:
    """A thread with works, of which others go on while one waits for messages.

    Args:
        size: how many works there may be at once.
        moved: the transfers of their calls.

    Attributes:
        transfers, is_waiting: see Loop.
    """

    def __init__(self, size: int, moved: Transfers) -> None:
        self.transfers = moved
        self.is_waiting = False
        self._size = size
        # Any thread adds to both, and then wakes the loop.
        self._submitted: deque[Callable[[], object]] = deque()
        self._ready: deque[Any] = deque()
        self._is_closed = False
        self._works: set[Any] = set()
        self._error: BaseException | None = None
        self._is_broken = False
        self._thread = threading.Thread(target=self._run, name="receiving", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[..., object], /, *args: object) -> None:
        """Have work done, from any thread."""
        self._submitted.append(lambda: work(*args))
        self.transfers.wake()

    def end(self) -> None:
        """Wait until all work is done.

        Raises:
            BaseException: what a work has raised.
        """
        self._is_closed = True
        self.transfers.wake()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def current_work(self) -> object:
        """Return the work that runs, for resume()."""
        return getcurrent()

    def go_on(self) -> None:
        """Let others go on until this work is resumed."""
        if self._is_broken:
            raise RuntimeError("the loop that receives has failed") from self._error
        self._hub.switch()

    def resume(self, work: object) -> None:
        """Let a work go on soon; called in the loop's thread."""
        self._ready.append(work)

    def wait_for(self, blocking: Callable[[], T]) -> T:
        """Return what a call in another thread returns, or raise what it raises."""
        work, outcome = getcurrent(), Future[T]()

        def call() -> None:
            try:
                outcome.set_result(blocking())
            except BaseException as error:  # noqa: BLE001 - raised below
                outcome.set_exception(error)
            self._ready.append(work)
            self.transfers.wake()

        threading.Thread(target=call, name="aside", daemon=True).start()
        self.go_on()
        return outcome.result()

    def _run(self) -> None:
        set_loop(self)
        self._hub = getcurrent()
        try:
            self._take_turns()
        except BaseException as error:  # noqa: BLE001 - raised in all works, and by end()
            self._error, self._is_broken = error, True
            for work in list(self._works):
                # One that has not begun raises it here.
                with suppress(BaseException):
                    work.throw(error)

    def _take_turns(self) -> None:
        while True:
            busy_since_s = time.monotonic()
            self._run_ready()
            if self._is_closed and not (self._works or self._submitted):
                return
            if (busy_s := time.monotonic() - busy_since_s) > _BUSY_S:
                for transfer in self.transfers.running:
                    transfer.leave_out(busy_s)
            self.is_waiting = True
            self.transfers.move()
            self.is_waiting = False

    def _run_ready(self) -> None:
        """Run all works that can go on, each until it waits again."""
        while True:
            while self._ready:
                self._ready.popleft().switch()
            while self._submitted and len(self._works) < self._size:
                work = greenlet(self._work(self._submitted.popleft()))
                self._works.add(work)
                self._ready.append(work)
            if not self._ready:
                return

    def _work(self, work: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised by end()
                self._error = self._error or error
            finally:
                self._works.discard(getcurrent())

        return run


@contextmanager
def receive_loop(size: int) -> Iterator[ReceiveLoop]:
    """Give a loop for a number of works at once, and wait for all work at the end."""
    with transfers() as moved:
        loop = ReceiveLoop(size, moved)
        try:
            yield loop
        finally:
            loop.end()
