"""The output of whole lines to standard output, with a clean end when its reader goes away."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final

_CHECK_EVERY_S: Final = 0.5
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)


class _EndError(BaseException):
    """The reader or the operator wants no more output.

    This is not a failure: as a BaseException it passes every `except Exception`.
    """


class Terminal:
    """A context that ends quietly on Ctrl-C, SIGTERM or when the pipe's reader has gone.

    Lines that are being written when a signal arrives are written to their end.
    """

    def __init__(self) -> None:
        self._is_writing = False
        self._is_over = False
        self._previous_handlers: dict[signal.Signals, Any] = {}
        self._has_exited = threading.Event()

    def __enter__(self) -> Terminal:
        handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = dict.fromkeys(
            _SIGNALS, self._on_signal
        )
        self._previous_handlers = {
            number: signal.signal(number, handler) for number, handler in handlers.items()
        }
        threading.Thread(target=self._watch_pipe, name="tail-terminal", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._has_exited.set()
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        if isinstance(error, (_EndError, BrokenPipeError)):
            # At exit Python flushes what is still buffered, and would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return True
        return False

    def write(self, text: str) -> None:
        """Write whole lines; end the context if a signal has arrived meanwhile."""
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

    def _watch_pipe(self) -> None:
        """End when the pipe has lost its reader; the next write may be a long time away."""
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        while not self._has_exited.wait(_CHECK_EVERY_S):
            if any(state & select.POLLERR for _, state in poll.poll(0)):
                os.kill(os.getpid(), signal.SIGPIPE)
                return
