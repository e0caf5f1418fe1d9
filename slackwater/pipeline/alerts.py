"""Warnings about a running pipeline: a partition that holds it back, retention running out."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from slackwater.pipeline.catch_up import RETENTION_WARNING, retention_used
from slackwater.state.errors import StateError
from slackwater.state.models import OpenQuery
from slackwater.state.open_queries import latest_open_queries
from slackwater.state.store import Store
from slackwater.timestamp import format_rfc3339, ms_to_seconds, ns_to_seconds

_log = structlog.get_logger("slackwater.pipeline.alerts")

_EVERY_S: Final = 2.0
_RETENTION_EVERY_S: Final = 30.0
_HELD_BACK_MS: Final = 5_000
_REMINDER_FIRST_S: Final = 60.0
_REMINDER_MAX_S: Final = 900.0


class Reminder:
    """The times at which to repeat a message: after a minute, then after twice as long each time.

    A condition that was absent for a minute is over; the next one is new.
    """

    def __init__(self) -> None:
        self._seen_s: float | None = None
        self._due_s = 0.0
        self._pause_s = _REMINDER_FIRST_S

    def is_due(self, now_s: float) -> bool:
        """Return True if the message is due; called each time the condition is seen.

        Args:
            now_s: a clock that never goes back.
        """
        if self._seen_s is None or now_s - self._seen_s > _REMINDER_FIRST_S:
            self._due_s, self._pause_s = now_s, _REMINDER_FIRST_S
        self._seen_s = now_s
        if now_s < self._due_s:
            return False
        self._due_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _REMINDER_MAX_S)
        return True


def held_back_by(queries: Sequence[OpenQuery]) -> OpenQuery | None:
    """Return the query that holds the low watermark back: of the slow ones the furthest behind.

    Args:
        queries: those that are open.

    Returns:
        None if none has been open for five seconds.
    """
    slow = [query for query in queries if query.open_ms >= _HELD_BACK_MS]
    return min(slow, key=lambda query: (query.watermark_ns, -query.silent_ms), default=None)


class Alerts:
    """A watch over a running pipeline in a thread of its own, which logs warnings for operators.

    Args:
        store: the metadata store.
        pipeline: its name.
        clock_ns: returns the source's clock at once.
        retention_ns: how long the change stream keeps records; None if that is not known.
    """

    def __init__(
        self, store: Store, pipeline: str, clock_ns: Callable[[], int], retention_ns: int | None
    ) -> None:
        self._store = store
        self._pipeline = pipeline
        self._clock_ns = clock_ns
        self._retention_ns = retention_ns
        self._silent, self._slow, self._retention = Reminder(), Reminder(), Reminder()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)

    def start(self) -> None:
        """Begin to check every two seconds, and the retention period every thirty."""
        if self._retention_ns is None:
            _log.warning(
                "the retention period is unknown, so nothing can warn before records are lost",
                pipeline=self._pipeline,
                hint="set the change stream's option retention_period",
            )
        self._thread.start()

    def stop(self) -> None:
        """Stop, without waiting for a check that is under way."""
        self._stopped.set()

    def _run(self) -> None:
        retention_at = time.monotonic()
        while not self._stopped.wait(_EVERY_S):
            try:
                self.look_at_queries()
                if time.monotonic() >= retention_at:
                    retention_at = time.monotonic() + _RETENTION_EVERY_S
                    self._look_at_retention()
            except StateError as error:
                _log.warning("can't look", pipeline=self._pipeline, error=error.message)

    def look_at_queries(self) -> None:
        """Log the query that holds the low watermark back, if that is due.

        Raises:
            StateError: the store can't be reached.
        """
        queries = latest_open_queries(self._store, self._pipeline)
        query = held_back_by(queries)
        if query is None:
            return
        # A query that sends records is at worst slow: a pipeline far behind has some in each epoch.
        is_silent = bool(query.stalls) or query.silent_ms >= _HELD_BACK_MS
        if (self._silent if is_silent else self._slow).is_due(time.monotonic()):
            (_log.warning if is_silent else _log.info)(
                "low watermark held back",
                pipeline=self._pipeline,
                partition=query.token,
                partition_watermark=format_rfc3339(query.watermark_ns),
                seconds=ms_to_seconds(query.open_ms),
                silent_seconds=ms_to_seconds(query.silent_ms),
                stalls=query.stalls,
                stalled_partitions=sum(bool(each.stalls) for each in queries),
            )

    def _look_at_retention(self) -> None:
        pipeline = self._store.pipeline(self._pipeline)
        retention_ns = self._retention_ns
        if pipeline is None or pipeline.low_watermark_ns is None or retention_ns is None:
            return
        used = retention_used(
            pipeline.low_watermark_ns,
            clock_ns=self._clock_ns(),
            retention_ns=retention_ns,
        )
        if used > RETENTION_WARNING and self._retention.is_due(time.monotonic()):
            _log.warning(
                "falling behind",
                pipeline=self._pipeline,
                retention_used=round(used, 3),
                hours_left=round(ns_to_seconds((1 - used) * retention_ns) / 3_600, 2),
            )
