"""Records on their way from the threads that query to the one that writes, within a bound."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class ClosedError(Exception):
    """The receiver is gone: whoever puts shall stop."""


class ByteQueue(Generic[T]):
    """A queue bounded by bytes, that ends when all senders are done or one has failed.

    queue.Queue bounds the number of items, and one item may be a heartbeat or ten megabytes.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._ended = False
        self._closed = False
        self._failure: BaseException | None = None

    def put(self, item: T, size_bytes: int) -> None:
        """Add an item, waiting for room; one larger than the bound passes alone.

        Raises:
            ClosedError: the receiver has gone.
        """
        with self._changed:
            while self._bytes and self._bytes + size_bytes > self._bytes_max and not self._closed:
                self._changed.wait()
            if self._closed:
                raise ClosedError
            self._items.append((item, size_bytes))
            self._bytes += size_bytes
            self._changed.notify_all()

    def end(self) -> None:
        """No more items will come."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """The receiver shall raise this error; the first one counts."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def close(self) -> None:
        """The receiver goes; senders that wait are released."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __iter__(self) -> Iterator[T]:
        """The items in the order they came.

        Raises:
            BaseException: what a sender failed with.
        """
        while True:
            with self._changed:
                while not (self._items or self._ended or self._failure):
                    self._changed.wait()
                if self._failure is not None:
                    raise self._failure
                if not self._items:
                    return
                item, size_bytes = self._items.popleft()
                self._bytes -= size_bytes
                self._changed.notify_all()
            yield item
