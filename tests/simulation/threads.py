"""Simulated threads: one goes on at a time, and the seed chooses which one.

They are greenlets. A thread gives way at each lock, wait and start, and wherever the simulation
calls Process.pause(); between these points it is not interrupted.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from greenlet import GreenletExit, getcurrent, greenlet

from slackwater.scheduler.tasks.threads import Condition, Lock, Pool, Repetition


class KilledError(GreenletExit):  # type: ignore[misc]
    """The process was killed: nothing that its threads still do has an effect."""


class Thread:
    """A simulated thread; it is ready to go on unless it waits."""

    def __init__(self, process: Process, work: Callable[[], object]) -> None:
        self.process = process
        self.greenlet = greenlet(work)
        self.is_over: Callable[[], bool] | None = None

    @property
    def is_ready(self) -> bool:
        """True if it does not wait for anything."""
        return not self.process.is_frozen and (self.is_over is None or self.is_over())


class Scheduler:
    """All threads of a simulation.

    Args:
        choose: the seed's choices.
    """

    def __init__(self, choose: random.Random) -> None:
        self._choose = choose
        self._threads: list[Thread] = []
        self._main = getcurrent()
        self.current: Thread | None = None
        self.is_in_transaction = False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Let no other thread go on: a transaction on SQLite excludes all others."""
        self.is_in_transaction = True
        try:
            yield
        finally:
            self.is_in_transaction = False

    def start(self, process: Process, work: Callable[[], object]) -> Thread:
        """Start a thread; it runs when it is chosen."""
        if process.is_dead:
            raise KilledError
        thread = Thread(process, work)
        thread.greenlet.parent = self._main
        self._threads.append(thread)
        return thread

    def step(self) -> bool:
        """Let one thread go on to where it gives way; return False if all of them wait."""
        self._end_killed()
        ready = [thread for thread in self._threads if thread.is_ready]
        if not ready:
            return False
        thread = self._choose.choice(ready)
        thread.is_over = None
        self.current = thread
        thread.greenlet.switch()
        self.current = None
        if thread.greenlet.dead:
            self._threads.remove(thread)
        return True

    def give_way(self, is_over: Callable[[], bool] | None = None) -> None:
        """Let other threads go on, until a condition holds."""
        thread = self.current
        if thread is None or self.is_in_transaction:
            assert is_over is None or is_over()
            return
        if thread.process.is_dead:
            raise KilledError
        thread.is_over = is_over
        self._main.switch()

    def kill(self, process: Process) -> None:
        """End all threads of a process where they stand, before another thread goes on."""
        process.is_dead = True
        if self.current is None:
            self._end_killed()

    def kill_all(self) -> None:
        """End all threads."""
        for thread in self._threads:
            thread.process.is_dead = True
        self._end_killed()

    def _end_killed(self) -> None:
        for thread in [thread for thread in self._threads if thread.process.is_dead]:
            self._threads.remove(thread)
            self.current = thread
            thread.greenlet.throw(KilledError)
            self.current = None
            assert thread.greenlet.dead


class Process:
    """A simulated process. It implements Threads of slackwater.scheduler.tasks.threads.

    Attributes:
        is_dead: it was killed.
        is_frozen: its threads stand still.
    """

    def __init__(self, scheduler: Scheduler, choose: random.Random) -> None:
        self.is_dead = self.is_frozen = False
        self.scheduler = scheduler
        self._choose = choose

    def start(self, work: Callable[[], object]) -> None:
        """Start a thread."""
        self.scheduler.start(self, work)

    def pause(self) -> None:
        """Let other threads go on."""
        self.scheduler.give_way()

    def wait_until(self, is_over: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        self.scheduler.give_way(is_over)

    def lock(self) -> Lock:
        return _Lock(self)

    def condition(self) -> Condition:
        return _Condition(self)

    @contextmanager
    def pool(self, size: int) -> Iterator[Pool]:
        pool = _Pool(self, size)
        try:
            yield pool
        finally:
            self.wait_until(lambda: not pool.is_busy)

    def repeat(self, work: Callable[[], object], *, every_s: float) -> Repetition:
        return _Repetition(self, work, times=int(self._choose.random() < 0.05))

    def sleep(self, seconds: float) -> None:
        self.pause()


class _Lock:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_held = False

    def __enter__(self) -> None:
        self._process.wait_until(lambda: not self._is_held)
        self._is_held = True

    def __exit__(self, *error: object) -> None:
        self._is_held = False


class _Condition(_Lock):
    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._notified = 0

    def wait(self) -> None:
        since = self._notified
        self._is_held = False
        self._process.wait_until(lambda: self._notified > since and not self._is_held)
        self._is_held = True

    def notify_all(self) -> None:
        self._notified += 1


class _Pool:
    def __init__(self, process: Process, size: int) -> None:
        self._process = process
        self._size = size
        self._waiting: deque[Callable[[], object]] = deque()
        self._workers = 0

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting or self._workers)

    def submit(self, work: Callable[..., object], /, *args: object) -> None:
        self._waiting.append(lambda: work(*args))
        if self._workers < self._size:
            self._workers += 1
            self._process.start(self._work)

    def _work(self) -> None:
        while self._waiting:
            self._waiting.popleft()()
        self._workers -= 1


class _Repetition:
    def __init__(self, process: Process, work: Callable[[], object], *, times: int) -> None:
        self._process = process
        self._left = times
        self._is_running = False
        if times:
            process.start(lambda: self._run(work))

    def stop(self) -> None:
        self._left = 0
        self._process.wait_until(lambda: not self._is_running)

    def _run(self, work: Callable[[], object]) -> None:
        while self._left:
            self._left -= 1
            self._is_running = True
            work()
            self._is_running = False
            self._process.pause()
