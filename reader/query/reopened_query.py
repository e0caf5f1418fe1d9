"""A query that is opened again as often as it breaks or stalls: one call after the other."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tenacity import RetryCallState, wait_random_exponential

from slackwater.reader.query.stall_watchdog import WATCHDOG, silence_max_s
from slackwater.reader.transport.receive_loop import wait_aside
from slackwater.reader.transport.stream_call import Call
from slackwater.timestamp import seconds_to_ms

_log = logging.getLogger(__name__)

# Attempts in a row without progress: about a minute, with the waits below.
ATTEMPTS_MAX: Final = 15
_WAIT = wait_random_exponential(multiplier=0.05, max=8)


class ReopenedQuery:
    """The calls of a query, of which one runs at a time.

    Args:
        partition: what is read, in words.
        heartbeat_ms: the heartbeat interval in the query.

    Attributes:
        retried: how often the query was opened again, by gRPC's status code.
        stalls: how often it stalled.
    """

    def __init__(self, partition: object, heartbeat_ms: int) -> None:
        self._partition = partition
        self._heartbeat_ms = heartbeat_ms
        self._call: Call | None = None
        self._cancelled = threading.Event()
        self._opened_s = time.monotonic()
        self._stalls_in_a_row = 0
        self._is_stalled = False
        self.retried: Counter[str] = Counter()
        self.stalls = 0

    def cancel(self) -> None:
        """End the query, from another thread; what reads it then raises an error."""
        self._cancelled.set()
        if (call := self._call) is not None:
            call.cancel()

    @property
    def open_ms(self) -> int:
        """The time since the query was made, milliseconds."""
        return seconds_to_ms(time.monotonic() - self._opened_s)

    @property
    def silent_ms(self) -> int:
        """The time for which the server has been silent; 0 while messages are used."""
        since_s = None if (call := self._call) is None else call.waiting_since_s
        return 0 if since_s is None else seconds_to_ms(time.monotonic() - since_s)

    def cancel_if_stalled(self, now_s: float) -> None:
        """Cancel the running call if the server has been silent too long; it is opened again."""
        call = self._call
        if call is None or self._is_stalled or (since_s := call.waiting_since_s) is None:
            return
        if now_s - since_s >= silence_max_s(self._heartbeat_ms, self._stalls_in_a_row):
            self._is_stalled = True
            call.cancel()

    @contextmanager
    def _running(self, call: Call) -> Iterator[None]:
        """Watch a call while its messages are taken, and cancel it then."""
        self._call = call
        # The last call may have ended well at the moment at which it was found silent.
        self._is_stalled = False
        try:
            WATCHDOG.add(self)
            if self._cancelled.is_set():
                # cancel() was called before there was a call to cancel.
                call.cancel()
            yield
        finally:
            WATCHDOG.remove(self)
            call.close()

    def _count_stall(self, *, has_moved: bool) -> bool:
        """Return whether the call ended because it was silent for too long, and count it."""
        if not self._is_stalled:
            return False
        self._is_stalled = False
        self.stalls += 1
        self._stalls_in_a_row = in_a_row = 1 if has_moved else self._stalls_in_a_row + 1
        # The first one, and then half as often each time.
        if in_a_row & (in_a_row - 1) == 0:
            _log.warning(
                "partition %s stalled: neither a record nor a heartbeat came; its query is opened"
                " again (%d in a row)",
                self._partition,
                in_a_row,
            )
        return True

    def _wait(self, code: str, failures: int) -> None:
        """Wait before the next call; cancel() ends the wait.

        Args:
            code: how the last call ended, by gRPC's name.
            failures: how many calls in a row made no progress.
        """
        self.retried[code] += 1
        state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
        state.attempt_number = failures
        seconds = _WAIT(state)
        wait_aside(lambda: self._cancelled.wait(seconds))
