"""The report of a task's open partition queries, for operators to see during a long epoch."""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from slackwater.scheduler.tasks.threads import Repetition, Threads
from slackwater.state.errors import StateError
from slackwater.state.models import OpenQuery
from slackwater.state.open_queries import report_queries
from slackwater.state.store import Store

_log = logging.getLogger(__name__)

_EVERY_S: Final = 2.0
# A task may have a thousand queries open; those furthest behind are the ones of interest.
_REPORTED_MAX: Final = 20


class OpenQueryReporter:
    """A thread that writes the open queries of a task to the metadata store every two seconds.

    In a shorter epoch nothing is written. An error of the store here does not fail the task, whose
    own writes would fail as well.

    Args:
        store: the metadata store.
        plan_id, task: the plan's id and the task's number in it.
        open_queries: returns them.
        threads: starts its thread.
    """

    def __init__(
        self,
        store: Store,
        plan_id: str,
        task: int,
        open_queries: Callable[[], Sequence[OpenQuery]],
        threads: Threads,
    ) -> None:
        self._store = store
        self._plan_id = plan_id
        self._task = task
        self._open_queries = open_queries
        self._threads = threads
        self._repetition: Repetition | None = None
        self._has_reported = False

    def start(self) -> None:
        """Start reporting."""
        self._repetition = self._threads.repeat(self._report_open, every_s=_EVERY_S)

    def stop(self) -> None:
        """Stop reporting, and remove the last report from the store."""
        if self._repetition is not None:
            self._repetition.stop()
        if self._has_reported:
            self._report([])

    def _report_open(self) -> None:
        furthest_behind = sorted(self._open_queries(), key=lambda query: query.watermark_ns)
        self._has_reported = True
        self._report(furthest_behind[:_REPORTED_MAX])

    def _report(self, queries: Sequence[OpenQuery]) -> None:
        try:
            report_queries(self._store, self._plan_id, self._task, queries)
        except StateError as error:
            _log.debug("the open queries were not reported: %s", error)
