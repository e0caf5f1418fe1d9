"""The signs by which an epoch, or a scan, shows progress."""

from collections.abc import Callable, Hashable
from typing import Final

from pyspark.sql import SparkSession

from slackwater.pipeline.spanner_clock import SpannerClock
from slackwater.pipeline.spark.jvm import work_done
from slackwater.pipeline.transitions import State
from slackwater.state.errors import StateError
from slackwater.state.open_queries import latest_open_queries
from slackwater.state.store import Store
from slackwater.timestamp import ms_to_seconds

_WORKING: Final = frozenset({State.STARTING, State.RUNNING, State.DRAINING})


class ProgressSigns:
    """The signs of progress of a pipeline that this process owns.

    Args:
        session: the pipeline's.
        store: the metadata store, where tasks report their open queries.
        pipeline: its name.
        state: returns its state.
        clock: returns the source's, once there is one. A silent source is reported elsewhere.
    """

    def __init__(
        self,
        session: SparkSession,
        store: Store,
        pipeline: str,
        state: Callable[[], State],
        clock: Callable[[], SpannerClock | None],
    ) -> None:
        self._session = session
        self._store = store
        self._pipeline = pipeline
        self._state = state
        self._clock = clock

    def sign(self) -> Hashable | None:
        """Return a value that changes with each record read, file written and task that ends.

        Returns:
            None if there is nothing to wait for: no epoch, or source, or the metadata store.

        Raises:
            Py4JError: the JVM does not answer.
        """
        clock = self._clock()
        is_silent = clock is not None and clock.silent_s is not None
        if self._state() not in _WORKING or is_silent:
            return None
        work = work_done(self._session)
        try:
            queries = latest_open_queries(self._store, self._pipeline)
        except StateError:
            return None
        return None if work is None else (work, *((q.token, q.watermark_ns) for q in queries))

    def standstill(self, seconds: float) -> str:
        """Return a description of the standstill, as sentences."""
        try:
            queries = latest_open_queries(self._store, self._pipeline)
        except StateError:
            queries = []
        silent = max(queries, key=lambda query: query.silent_ms, default=None)
        waits = (
            f" The query of partition {silent.token} has been silent for"
            f" {ms_to_seconds(silent.silent_ms):.0f} s."
            if silent is not None
            else ""
        )
        return (
            f"for {seconds:.0f} s no record was read, no file was written and no task ended.{waits}"
            " Spark is started anew; epoch.progress_deadline says after how long."
        )
