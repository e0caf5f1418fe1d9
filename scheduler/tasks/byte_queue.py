"""A bounded queue for records on their way from the threads that query to the one that writes."""

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from slackwater.scheduler.tasks.threads import PYTHON_THREADS, Threads

T = TypeVar("T")


class ClosedError(Exception):
    """The receiver is gone: the sender has to stop."""


class ByteQueue(Generic[T]):
    """A queue bounded by bytes; it ends when all senders are done or one has failed.

    queue.Queue bounds the number of items, and an item may be anything from one record to ten
    megabytes.

    Args:
        bytes_max: how much may wait in it.
        threads: makes its condition variable.
    """

    def __init__(self, bytes_max: int, threads: Threads = PYTHON_THREADS) -> None:
        self._bytes_max = bytes_max
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._changed = threads.condition()
        self._ended = False
        self._closed = False
        self._failure: BaseException | None = None

    def put(self, item: T, size_bytes: int) -> None:
        """Add an item, waiting for room; an item larger than the bound passes alone.

        Raises:
            ClosedError: the receiver is gone.
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
        """End the queue: no more items will come."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Make the receiver raise this error; the first one counts."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def close(self) -> None:
        """Close the receiving end; waiting senders raise ClosedError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __iter__(self) -> Iterator[T]:
        """Yield the items in the order they came.

        Raises:
            BaseException: the error that a sender passed to fail().
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
