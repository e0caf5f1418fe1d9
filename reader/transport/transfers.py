"""The HTTP/2 transfers that one thread moves, by libcurl.

They share connections: a connection carries as many calls as the server allows, and others are
opened for more. Connections stay open for the next transfers of any thread, one thread at a time.
"""

import ctypes
import os
import selectors
import socket
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, Protocol
from weakref import WeakSet

import pycurl

_TO_READ: Final = selectors.EVENT_READ
_TO_WRITE: Final = selectors.EVENT_WRITE
_WATCHED: Final = {
    pycurl.POLL_IN: _TO_READ,
    pycurl.POLL_OUT: _TO_WRITE,
    pycurl.POLL_INOUT: _TO_READ | _TO_WRITE,
}


class Transfer(Protocol):
    """A call that is transferred."""

    handle: pycurl.Curl

    def notice(self) -> None:
        """Go on with what has come. After touch()."""

    def leave_out(self, busy_s: float) -> None:
        """Do not count a time in which nobody looked as the server's silence."""

    def end(self, error: int, text: str) -> None:
        """End with a code of libcurl's, 0 for none, and its text."""


class Transfers:
    """Transfers, and their connections.

    A connection may be dead though nobody says so, as behind a router that has lost it. Once a call
    is given up because the server was silent, the next ones use other connections.

    All methods are those of the thread that has them, but for wake() and end_soon().
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._woken, _TO_READ)
        # By the monotonic clock: when libcurl wants to be called without an event.
        self._due_s: dict[pycurl.CurlMulti, float] = {}
        self._running: dict[pycurl.Curl, tuple[Transfer, pycurl.CurlMulti]] = {}
        self._touched: list[Transfer] = []
        self._to_end: deque[tuple[Transfer, bool]] = deque()
        # Each has connections of its own; the last one takes new transfers.
        self._multis = [self._opened()]
        _MADE.add(self)

    @property
    def running(self) -> list[Transfer]:
        """The transfers that have not ended."""
        return [transfer for transfer, _ in self._running.values()]

    @property
    def due_s(self) -> float | None:
        """When move() is to be called though nothing happens, by the monotonic clock."""
        return min(self._due_s.values(), default=None)

    def fileno(self) -> int:
        """Return a descriptor that can be read when there is something to do."""
        return self._selector.fileno()

    def touch(self, transfer: Transfer) -> None:
        """Have a transfer notice, within move(), what has come."""
        self._touched.append(transfer)

    def add(self, transfer: Transfer) -> None:
        """Begin a transfer."""
        self._running[transfer.handle] = transfer, self._multis[-1]
        self._multis[-1].add_handle(transfer.handle)

    def remove(self, transfer: Transfer) -> None:
        """Give a transfer up, unless it has ended."""
        if (running := self._running.pop(transfer.handle, None)) is not None:
            running[1].remove_handle(transfer.handle)

    def end_soon(self, transfer: Transfer, *, is_silent: bool) -> None:
        """Have a transfer end, as if it had been aborted; from any thread."""
        self._to_end.append((transfer, is_silent))
        self.wake()

    def wake(self) -> None:
        """Have move() return soon; from any thread."""
        with suppress(BlockingIOError):
            self._waker.send(b"\0")

    def move(self, *, is_waiting: bool = True) -> None:
        """Do what there is to do.

        Args:
            is_waiting: wait until there is something.
        """
        timeout_s = None if self.due_s is None else max(0.0, self.due_s - time.monotonic())
        events = self._selector.select(timeout_s if is_waiting else 0)
        for key, mask in events:
            if key.fileobj is self._woken:
                # What others added before is looked at after this.
                with suppress(BlockingIOError):
                    self._woken.recv(1024)
                continue
            action = pycurl.CSELECT_IN if mask & _TO_READ else 0
            action |= pycurl.CSELECT_OUT if mask & _TO_WRITE else 0
            key.data.socket_action(key.fd, action)
        now_s = time.monotonic()
        for multi in [multi for multi, due_s in self._due_s.items() if due_s <= now_s]:
            del self._due_s[multi]
            multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        touched, self._touched = self._touched, []
        for transfer in dict.fromkeys(touched):
            transfer.notice()
        self._end_all()

    def _end_all(self) -> None:
        while self._to_end:
            transfer, is_silent = self._to_end.popleft()
            running, multi = self._running.get(transfer.handle, (None, None))
            if running is transfer:
                self.remove(transfer)
                transfer.end(pycurl.E_ABORTED_BY_CALLBACK, "")
                self._leave(multi if is_silent else None)
        for multi in list(self._multis):
            waiting = 1
            while waiting:
                waiting, succeeded, failed = multi.info_read()
                for handle, error, text in [*((handle, 0, "") for handle in succeeded), *failed]:
                    transfer, _ = self._running.pop(handle)
                    multi.remove_handle(handle)
                    transfer.end(error, text)
                    self._leave(multi if error == pycurl.E_OPERATION_TIMEDOUT else None)
        for multi in self._multis[:-1]:
            if all(multi is not of_running for _, of_running in self._running.values()):
                self._multis.remove(multi)
                multi.close()
                self._due_s.pop(multi, None)

    def _opened(self) -> pycurl.CurlMulti:
        multi = pycurl.CurlMulti()
        multi.setopt(pycurl.M_PIPELINING, pycurl.PIPE_MULTIPLEX)
        multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        multi.setopt(pycurl.M_TIMERFUNCTION, partial(self._set_timer, multi))
        return multi

    def _leave(self, multi: pycurl.CurlMulti | None) -> None:
        """Let new transfers use other connections than these."""
        if multi is self._multis[-1]:
            self._multis.append(self._opened())

    def _watch(self, what: int, descriptor: int, multi: pycurl.CurlMulti, _data: object) -> None:
        """Do as libcurl says: watch a socket, or no longer."""
        with suppress(KeyError):
            self._selector.unregister(descriptor)
        if what != pycurl.POLL_REMOVE:
            self._selector.register(descriptor, _WATCHED[what], multi)

    def _set_timer(self, multi: pycurl.CurlMulti, milliseconds: int) -> None:
        self._due_s.pop(multi, None)
        if milliseconds >= 0:
            self._due_s[multi] = time.monotonic() + milliseconds / 1_000


_MADE: Final = WeakSet[Transfers]()


def _keep_in_child() -> None:
    """Keep all from being deleted at a child's exit: libcurl would read from their connections."""
    for made in list(_MADE):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))


os.register_at_fork(after_in_child=_keep_in_child)

# By process: one that was forked must not speak on its parent's connections, nor close them.
_IDLE: Final = defaultdict[int, deque[Transfers]](deque)


@contextmanager
def transfers() -> Iterator[Transfers]:
    """Give transfers to a thread, and keep their connections for the next one.

    After an error nothing is kept: a loop may still move them, or they are being deleted.
    """
    idle = _IDLE[os.getpid()]
    try:
        made = idle.pop()
    except IndexError:
        made = Transfers()
    yield made
    for transfer in made.running:
        made.remove(transfer)
    idle.append(made)
