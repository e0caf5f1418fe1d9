"""Threads that have much to receive take turns.

Receiving a message that has already arrived takes a few microseconds, and each time the thread
lets go of the interpreter. With many threads at it, another one takes it every time, and the
hand-over costs more than the message: sixteen busy streams cost four times what one costs. So a
thread that finds its messages waiting goes on alone for a while, as long as they are; those of the
others wait meanwhile where they arrive, within the flow control's windows. Nobody waits long: it is
about cost, and nothing goes wrong without it.
"""

from __future__ import annotations

import threading
import time
from typing import Final

# A message that was there takes less, one that had to be waited for more.
WAS_THERE_S: Final = 200e-6

# Whoever has the turn may come upon a stream that has gone silent.
_SILENT_S: Final = 0.05
_WITHOUT_S: Final = 1.0
_TURN_BYTES: Final = 1024 * 1024

_ONE_AT_A_TIME: Final = threading.Lock()


class Receiving:
    """The one that has the turn.

    Attributes:
        last_s: when it received its last message, by the monotonic clock. An instance holds it,
            because setting an attribute of a class costs three times as much.
    """

    __slots__ = ("last_s",)

    def __init__(self) -> None:
        self.last_s = 0.0


RECEIVING: Final = Receiving()


class Turn:
    """One thread's part in it, for one stream.

    Attributes:
        is_mine: no other thread has the turn.
    """

    __slots__ = ("_left", "_without_until_s", "is_mine")

    def __init__(self) -> None:
        self.is_mine = False
        self._left = 0
        self._without_until_s = 0.0

    def take(self, now_s: float) -> bool:
        """Wait for the turn, as long as the one that has it receives; False without waiting.

        Args:
            now_s: by the monotonic clock.
        """
        if now_s < self._without_until_s:
            return False
        while not _ONE_AT_A_TIME.acquire(timeout=_SILENT_S):
            if time.monotonic() - RECEIVING.last_s > _SILENT_S:
                self._without_until_s = now_s + _WITHOUT_S
                return True
        self.is_mine = True
        self._left = _TURN_BYTES
        RECEIVING.last_s = time.monotonic()
        return True

    def used(self, size_bytes: int) -> None:
        """So much was received; after enough of it another one has the turn."""
        self._left -= size_bytes
        if self._left < 0:
            self.leave()

    def leave(self) -> None:
        """Let another one have it; nothing happens where it is not mine."""
        if self.is_mine:
            self.is_mine = False
            _ONE_AT_A_TIME.release()
