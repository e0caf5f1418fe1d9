"""SIGTERM and Ctrl-C: both ask the process to drain."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def termination_signals() -> "Iterator[TerminationSignals]":
    """Catch SIGTERM and SIGINT for the time of the context."""
    signals = TerminationSignals()
    previous = {sig: signal.getsignal(sig) for sig in _SIGNALS}
    signals.listen()
    try:
        yield signals
    finally:
        for sig, handler in previous.items():
            signal.signal(sig, handler)


class TerminationSignals(threading.Event):
    """An event that is set when the process is asked to end."""

    def listen(self) -> None:
        """Take the signals; again after Spark has started, because its handler cancels epochs."""
        for sig in _SIGNALS:
            signal.signal(sig, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        # Not here: the wait() that the signal interrupts may hold the lock that set() takes.
        threading.Thread(target=self.set, name="signalled", daemon=True).start()
