"""Reports a task's open partition queries, so that operators see them during a long epoch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from slackwater.state.errors import StateError
from slackwater.state.models import OpenQuery
from slackwater.state.open_queries import report_queries
from slackwater.state.store import Store

_log = logging.getLogger(__name__)

_EVERY_S: Final = 2.0
# A task may have a thousand queries open; those furthest behind are the ones of interest.
_REPORTED_MAX: Final = 20


class OpenQueryReporter:
    """Writes the open queries of a task to the metadata store every two seconds.

    In a shorter epoch nothing is written. An error of the store here does not fail the task: the
    task's own writes meet the same store.

    Args:
        store: the metadata store.
        plan_id, task: the plan's id and the task's number in it.
        look: returns the open queries.
    """

    def __init__(
        self, store: Store, plan_id: str, task: int, look: Callable[[], Sequence[OpenQuery]]
    ) -> None:
        self._store = store
        self._plan_id = plan_id
        self._task = task
        self._look = look
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)

    def start(self) -> None:
        """Start reporting."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reporting, and remove the last report from the store."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        has_reported = False
        while not self._stopped.wait(_EVERY_S):
            furthest_behind = sorted(self._look(), key=lambda query: query.watermark_ns)
            self._report(furthest_behind[:_REPORTED_MAX])
            has_reported = True
        if has_reported:
            self._report([])

    def _report(self, queries: Sequence[OpenQuery]) -> None:
        try:
            report_queries(self._store, self._plan_id, self._task, queries)
        except StateError as error:
            _log.debug("the open queries were not reported: %s", error)
