"""Standard output for one who may go away: whole lines, and a clean end."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final

_LOOK_EVERY_S: Final = 0.5
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)


class _EndError(BaseException):
    """Whoever reads or runs this wants no more; no error, and nothing shall catch it as one."""


class Terminal:
    """A context that ends quietly at Ctrl-C, SIGTERM or when the reader of the pipe has gone.

    Lines that are being written when a signal comes are written to their end.
    """

    def __init__(self) -> None:
        self._is_writing = False
        self._is_over = False
        self._former: dict[signal.Signals, Any] = {}
        self._left = threading.Event()

    def __enter__(self) -> Terminal:
        handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = dict.fromkeys(
            _SIGNALS, self._on_signal
        )
        self._former = {sig: signal.signal(sig, handler) for sig, handler in handlers.items()}
        threading.Thread(target=self._watch, name="tail-terminal", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._left.set()
        for sig, handler in self._former.items():
            signal.signal(sig, handler)
        if isinstance(error, (_EndError, BrokenPipeError)):
            # Python writes what is left once more at its end, and would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return True
        return False

    def write(self, text: str) -> None:
        """Write whole lines."""
        if not text:
            return
        self._is_writing = True
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        finally:
            self._is_writing = False
        if self._is_over:
            raise _EndError

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._is_over = True
        if not self._is_writing:
            raise _EndError

    def _watch(self) -> None:
        """A pipe without a reader is an error at the next write, which may be long in coming."""
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        while not self._left.wait(_LOOK_EVERY_S):
            if any(state & select.POLLERR for _, state in poll.poll(0)):
                os.kill(os.getpid(), signal.SIGPIPE)
                return
