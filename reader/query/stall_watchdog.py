"""Stalls: a partition query that has sent neither record nor heartbeat for several heartbeats.

Spanner sends a heartbeat at least once an interval while a query is open ("Heartbeat records" in
its documentation), so a longer silence says that the query is lost though its connection is not.
"""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol

from slackwater.timestamp import ms_to_seconds

# One interval may be missed by chance; after three the query is given up.
STALL_HEARTBEATS: Final = 3
# A query that stalls again without having moved may only be slow: it gets twice the time, so that
# opening it again can't keep it from ever answering.
_DOUBLINGS_MAX: Final = 5
_CHECK_INTERVAL_S: Final = 0.25


def silence_max_s(heartbeat_ms: int, stalls_in_a_row: int) -> float:
    """How long a query may be silent, in seconds.

    Args:
        heartbeat_ms: the heartbeat interval asked of Spanner.
        stalls_in_a_row: how often it stalled since it last moved.
    """
    doublings = min(stalls_in_a_row, _DOUBLINGS_MAX)
    return ms_to_seconds(STALL_HEARTBEATS * heartbeat_ms * 2**doublings)


class WatchedQuery(Protocol):
    """What a StallWatchdog looks at."""

    def cancel_if_stalled(self, now_s: float) -> None:
        """Cancel the running call if it has been silent too long, by the monotonic clock."""


class StallWatchdog:
    """One thread that looks at all running queries of a process, started with the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: set[WatchedQuery] = set()
        self._thread: threading.Thread | None = None

    def add(self, query: WatchedQuery) -> None:
        """Look at this query from now on."""
        with self._lock:
            self._watched.add(query)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stalls", daemon=True)
                self._thread.start()

    def remove(self, query: WatchedQuery) -> None:
        """Look at it no more."""
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
