"""Cancelling of stalled queries: those without a record or heartbeat for several intervals.

While a query is open, Spanner sends a heartbeat at least once in each interval ("Heartbeat records"
in its documentation). After a longer silence the query is lost, although its connection is not.
"""

import threading
import time
from typing import Final, Protocol

from slackwater.timestamp import ms_to_seconds

# One heartbeat may be missed by chance; after three the call is given up.
STALL_HEARTBEATS: Final = 3
# A query that stalls again without progress may only be slow: it gets twice the time, so that it
# can answer before it is opened again.
_DOUBLINGS_MAX: Final = 5
_CHECK_INTERVAL_S: Final = 0.25


def silence_max_s(heartbeat_ms: int, stalls_in_a_row: int) -> float:
    """Return how long a query may be silent, in seconds.

    Args:
        heartbeat_ms: the heartbeat interval in the query.
        stalls_in_a_row: how often the query stalled since its last progress.
    """
    doublings = min(stalls_in_a_row, _DOUBLINGS_MAX)
    return ms_to_seconds(STALL_HEARTBEATS * heartbeat_ms * 2**doublings)


class WatchedQuery(Protocol):
    """A query that a StallWatchdog checks."""

    def cancel_if_stalled(self, now_s: float) -> None:
        """Cancel the running call if it has been silent too long, by the monotonic clock."""


class StallWatchdog:
    """A thread that checks all running queries of a process, started with the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: set[WatchedQuery] = set()
        self._thread: threading.Thread | None = None

    def add(self, query: WatchedQuery) -> None:
        """Check this query from now on."""
        with self._lock:
            self._watched.add(query)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stalls", daemon=True)
                self._thread.start()

    def remove(self, query: WatchedQuery) -> None:
        """Stop checking this query."""
        with self._lock:
            self._watched.discard(query)

    def _run(self) -> None:
        while True:
            time.sleep(_CHECK_INTERVAL_S)
            with self._lock:
                if not self._watched:
                    self._thread = None
                    return
                watched = list(self._watched)
            now_s = time.monotonic()
            for query in watched:
                query.cancel_if_stalled(now_s)


WATCHDOG: Final = StallWatchdog()
