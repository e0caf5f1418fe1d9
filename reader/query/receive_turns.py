"""Turns that threads take to receive, so that many busy streams cost no more than one.

Receiving a message that has already arrived takes a few microseconds, and each time the thread
releases Python's global interpreter lock. With many threads, another one takes it every time, and
the switch costs more than the message: sixteen busy streams cost four times as much as one. So a
thread whose messages are already there receives alone for a while, as long as they are. The
messages of the other streams wait in gRPC meanwhile, within the windows of its flow control. A
thread never waits long: this saves cost, and nothing depends on it.
"""

import threading
import time
from typing import Final

# Receiving a message that was already there takes less time, waiting for one takes more.
ALREADY_THERE_S: Final = 200e-6

# The thread whose turn it is may meet a stream that has gone silent: the others then go on.
_SILENT_S: Final = 0.05
_SKIP_S: Final = 1.0
_TURN_BYTES: Final = 1024 * 1024


class ReceiveLock:
    """The lock of the thread whose turn it is.

    Attributes:
        lock: held by that thread.
        last_received_s: when that thread received its last message, by the monotonic clock. It is
            an attribute of an instance because setting one of a class costs three times as much.
    """

    __slots__ = ("last_received_s", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.last_received_s = 0.0


RECEIVE_LOCK: Final = ReceiveLock()


class ReceiveTurn:
    """The turn of one stream's thread.

    Attributes:
        is_held: this thread holds RECEIVE_LOCK.
    """

    __slots__ = ("_bytes_left", "_skip_until_s", "is_held")

    def __init__(self) -> None:
        self.is_held = False
        self._bytes_left = 0
        self._skip_until_s = 0.0

    def acquire(self, now_s: float) -> bool:
        """Wait for the turn while the thread that has it receives; return whether this waited.

        If the thread that has the turn is silent, this one goes on without it, and does not wait
        again for a second.

        Args:
            now_s: by the monotonic clock.
        """
        if now_s < self._skip_until_s:
            return False
        while not RECEIVE_LOCK.lock.acquire(timeout=_SILENT_S):
            if time.monotonic() - RECEIVE_LOCK.last_received_s > _SILENT_S:
                self._skip_until_s = now_s + _SKIP_S
                return True
        self.is_held = True
        self._bytes_left = _TURN_BYTES
        RECEIVE_LOCK.last_received_s = time.monotonic()
        return True

    def charge(self, size_bytes: int) -> None:
        """Count bytes that were received, and end the turn after a megabyte."""
        self._bytes_left -= size_bytes
        if self._bytes_left < 0:
            self.release()

    def release(self) -> None:
        """End the turn, if it is held."""
        if self.is_held:
            self.is_held = False
            RECEIVE_LOCK.lock.release()
