"""One thread that receives the messages of many calls, in turn with the work that uses them.

With a thread for each call, a message costs switches between threads: thousands of idle partitions
cost half as much again, and sixteen busy streams four times as much as one. In a loop each work is
written as if it had a thread of its own. It is a greenlet: where it waits for messages, the loop
goes on with another whose messages have come.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final, Protocol, TypeVar

import grpc
from greenlet import getcurrent, greenlet

T = TypeVar("T")

# Spanner's front end allows 100 streams on a connection.
STREAMS_PER_CHANNEL_MAX: Final = 90
# Of a loop that was busy for so long, the time is not the server's silence.
_BUSY_S: Final = 0.25

_LOCAL: Final = threading.local()


class LoopedCall(Protocol):
    """A call whose events a loop waits for."""

    def cancel(self) -> None:
        """End the call early."""

    def leave_out(self, busy_s: float) -> None:
        """Do not count a time in which its loop did not look as the server's silence."""

    def nudge(self, tag: Callable[[object], None]) -> bool:
        """Have an event with a tag come on the channel; return whether the call still can."""


class NumberedChannels(Protocol):
    """The channels to one server."""

    def channel(self, number: int) -> grpc.Channel:
        """Return the channel of a number, opened with the present credentials."""


def current_loop() -> ReceiveLoop | None:
    """Return the loop that runs in this thread."""
    loop: ReceiveLoop | None = getattr(_LOCAL, "loop", None)
    return loop


def wait_aside(blocking: Callable[[], T]) -> T:
    """Return what a call that blocks returns; a loop goes on meanwhile, and a thread waits."""
    loop = current_loop()
    return blocking() if loop is None else loop.wait_for(blocking)


class ReceiveLoop:
    """A thread with works, of which others go on while one waits for messages.

    Args:
        size: how many works there may be at once.
        number: of its channel, which no other loop of the process uses meanwhile.

    Attributes:
        is_waiting: it has nothing to do but to wait for events.
    """

    def __init__(self, size: int, number: int) -> None:
        self.is_waiting = False
        self._size = size
        self._number = number
        self._channels: NumberedChannels | None = None
        self._channel: Any = None
        self._condition = threading.Condition()
        # Of any thread, under the condition.
        self._submitted: deque[Callable[[], object]] = deque()
        self._is_closed = False
        self._is_woken = False
        self._calls: set[LoopedCall] = set()
        # Of them no event has come. A channel that is closed would wait for it.
        self._nudges = 0
        # Any thread adds works that can go on, and then wakes the loop.
        self._ready: deque[Any] = deque()
        self._works: set[Any] = set()
        self._error: BaseException | None = None
        self._is_broken = False
        self._thread = threading.Thread(target=self._run, name="receiving", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[..., object], /, *args: object) -> None:
        """Have work done, from any thread."""
        with self._condition:
            self._submitted.append(lambda: work(*args))
        self._wake()

    def end(self) -> None:
        """Wait until all work is done.

        Raises:
            BaseException: what a work has raised.
        """
        with self._condition:
            self._is_closed = True
        self._wake()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def channel_of(self, channels: NumberedChannels) -> grpc.Channel | None:
        """Return the channel for the loop's calls to a server; None if it waits for another's.

        The channel stays the same while calls run on it: its events come from one queue.
        """
        with self._condition:
            is_free = not (self._calls or self._nudges)
        if is_free:
            self._channels, self._channel = channels, channels.channel(self._number)
        return self._channel if self._channels is channels else None

    def add(self, call: LoopedCall) -> None:
        """Wait for the events of a call, too."""
        with self._condition:
            self._calls.add(call)

    def remove(self, call: LoopedCall) -> None:
        """Wait for no more events of a call."""
        with self._condition:
            self._calls.discard(call)

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
            self._wake()

        threading.Thread(target=call, name="aside", daemon=True).start()
        self.go_on()
        return outcome.result()

    def _wake(self) -> None:
        """Have the loop look at what other threads have added."""
        with self._condition:
            self._is_woken = True
            self._condition.notify()
            # If all have ended, the loop gets to know by an event that is there already.
            self._nudges += any(call.nudge(self._on_nudge) for call in self._calls)

    def _on_nudge(self, _event: object) -> None:
        with self._condition:
            self._nudges -= 1

    def _run(self) -> None:
        _LOCAL.loop = self
        self._hub = getcurrent()
        try:
            self._take_turns()
        except BaseException as error:  # noqa: BLE001 - raised in all works, and by end()
            self._error, self._is_broken = error, True
            for work in list(self._works):
                # One that has not begun raises it here.
                with suppress(BaseException):
                    work.throw(error)
            # A channel that is closed would wait for the events of all calls.
            for call in list(self._calls):
                call.cancel()
            while self._calls or self._nudges:
                event = self._channel._channel.next_call_event()
                with suppress(BaseException):
                    event.tag(event)

    def _take_turns(self) -> None:
        while True:
            busy_since_s = time.monotonic()
            self._run_ready()
            with self._condition:
                if self._ready or (self._submitted and len(self._works) < self._size):
                    continue
                self._is_woken = False
                if not (self._calls or self._nudges):
                    if self._is_closed and not self._works:
                        return
                    self._condition.wait()
                    continue
                if (busy_s := time.monotonic() - busy_since_s) > _BUSY_S:
                    for call in self._calls:
                        call.leave_out(busy_s)
            self.is_waiting = True
            self._take_events(self._channel._channel.next_call_event)
            self.is_waiting = False

    def _take_events(self, next_event: Callable[[], Any]) -> None:
        """Take events until a work can go on, or another thread has something to say."""
        while True:
            event = next_event()
            # Without one, gRPC has only looked whether the process was forked.
            if event.tag is not None:
                event.tag(event)
            if self._ready or self._is_woken or not self._calls:
                return

    def _run_ready(self) -> None:
        """Run all works that can go on, each until it waits again."""
        while True:
            while self._ready:
                self._ready.popleft().switch()
            with self._condition:
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


_NUMBERS_LOCK: Final = threading.Lock()
_NUMBERS: Final = set[int]()


@contextmanager
def _number() -> Iterator[int]:
    """Take the first number that no other loop of the process has."""
    with _NUMBERS_LOCK:
        number = next(n for n in range(len(_NUMBERS) + 1) if n not in _NUMBERS)
        _NUMBERS.add(number)
    try:
        yield number
    finally:
        with _NUMBERS_LOCK:
            _NUMBERS.remove(number)


class ReceiveLoops:
    """Loops for a number of works, as many as the connections that their calls need."""

    def __init__(self, loops: list[ReceiveLoop]) -> None:
        self._loops = deque(loops)

    def submit(self, work: Callable[..., object], /, *args: object) -> None:
        """Have work done by one of the loops."""
        loop = self._loops[0]
        self._loops.rotate()
        loop.submit(work, *args)


@contextmanager
def receive_loops(size: int) -> Iterator[ReceiveLoops]:
    """Give loops for a number of works at once, and wait for all work at the end."""
    with ExitStack() as stack:
        loops = []
        for begin in range(0, size, STREAMS_PER_CHANNEL_MAX):
            number = stack.enter_context(_number())
            loop = ReceiveLoop(min(STREAMS_PER_CHANNEL_MAX, size - begin), number)
            stack.callback(loop.end)
            loops.append(loop)
        yield ReceiveLoops(loops)
