"""Threads that have much to receive take turns.

Receiving a message that has already arrived takes a few microseconds, and each time the thread
lets go of the interpreter. With many threads at it, another one takes it every time, and the
hand-over costs more than the message: sixteen busy streams cost four times what one costs. So a
thread that finds its messages waiting goes on alone for a while, as long as they are; those of the
others wait meanwhile where they arrive, within the flow control's windows.
"""

from __future__ import annotations

import threading
from typing import Final

# A message that was there takes less, one that had to be waited for more.
WAS_THERE_S: Final = 200e-6
_TURN_BYTES: Final = 256 * 1024

_ONE_AT_A_TIME: Final = threading.Lock()


class Turn:
    """One thread's part in it, for one stream.

    Attributes:
        is_mine: no other thread has the turn.
    """

    __slots__ = ("_left", "is_mine")

    def __init__(self) -> None:
        self.is_mine = False
        self._left = 0

    def take(self) -> None:
        """Wait for the turn."""
        _ONE_AT_A_TIME.acquire()
        self.is_mine = True
        self._left = _TURN_BYTES

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
