"""One run of a pipeline's streaming query: watched, drained, paused, and tried again on failure."""

from collections.abc import Callable
from typing import Protocol

import structlog

from slackwater.pipeline.epochs.recorder import ProgressSource
from slackwater.pipeline.failures import diagnose
from slackwater.pipeline.lifecycle import POLL_S
from slackwater.pipeline.retries import Retries
from slackwater.pipeline.transitions import (
    Action,
    Event,
    ImpossibleTransitionError,
    ends_run,
    may_begin,
)
from slackwater.state.errors import LeaseLostError
from slackwater.worker_errors import ErrorRecord

_log = structlog.get_logger("slackwater.pipeline.query_runner")


class Query(ProgressSource, Protocol):
    """A streaming query that was started; slackwater.pipeline.spark.query has Spark's."""

    @property
    def is_active(self) -> bool:
        """False when it has ended."""

    @property
    def is_busy(self) -> bool:
        """True while it works on an epoch, or looks for one."""

    def error(self) -> BaseException | None:
        """Return why it failed; None if it did not."""

    def stop(self) -> None:
        """End it; a running epoch is left to be replayed."""

    def stop_and_wait(self) -> None:
        """End it, and wait for a while until the sink is not being written to.

        A callback may still be writing to the sink, and no new owner should start until it is done.
        """


class Epochs(Protocol):
    """The committed epochs; see EpochRecorder."""

    @property
    def epochs(self) -> int:
        """The number of epochs that have been committed."""

    @property
    def has_reached_end(self) -> bool:
        """True when the pipeline's end is reached."""

    def record_committed(self, query: ProgressSource) -> None:
        """Record the epochs that have been committed since the last call."""


class QueryRunner:
    """The runner of a pipeline's query, until the pipeline or its state asks for something else.

    Args:
        start: starts the query.
        epochs: records what it commits.
        retries: handles a failure; its lifecycle handles all other events.
        is_lease_lost: returns True when another process has taken the pipeline over.
        close_source: makes the source choose no further epoch.
    """

    def __init__(
        self,
        start: Callable[[], Query],
        epochs: Epochs,
        retries: Retries,
        is_lease_lost: Callable[[], bool],
        close_source: Callable[[], None],
    ) -> None:
        self._start = start
        self._epochs = epochs
        self._lifecycle = retries.lifecycle
        self._is_lease_lost = is_lease_lost
        self._close_source = close_source
        self._retries = retries
        self._epochs_before = 0

    @property
    def has_reached_end(self) -> bool:
        """True when the pipeline's end is reached."""
        return self._epochs.has_reached_end

    def run(self) -> Action:
        """Run the query, and return what to do when none runs any more.

        A query that fails is started again after a growing delay: Spark replays the epoch.

        Raises:
            PipelineFailedError: it was given up; nothing is lost, it can be run again.
            SparkFailedError: another query needs another Spark.
            StateError: the source could not be closed.
        """
        failures = 0
        while True:
            self._epochs_before = self._epochs.epochs
            query = self._start()
            try:
                outcome = self._watch(query)
            except BaseException:
                # No other process has it, and the lease is about to be released.
                query.stop_and_wait()
                raise
            if isinstance(outcome, Action):
                return outcome
            failures = 1 if self._has_epoch() else failures + 1
            action = self._retries.wait(outcome, failures)
            if action is not Action.START:
                return action

    def _watch(self, query: Query) -> Action | ErrorRecord:
        """Follow a query to its end, or end it; return what to do then, or why it failed."""
        lifecycle = self._lifecycle
        while not self._is_lease_lost():
            # In this order: a query that is idle, or has ended, has reported its last epoch; and
            # behind a source that is closed, an idle query stays idle. Spark is asked whether it
            # is busy only if that matters, because that is a call to the JVM.
            desired = lifecycle.desired_state()
            is_active = query.is_active
            if is_active and ends_run(desired):
                self._close_source()
            is_busy = may_begin(desired) or query.is_busy
            self._record_committed(query)
            if not is_active or self._epochs.has_reached_end:
                return self._ended(query) or lifecycle.on(Event.WORK_DONE)
            event = lifecycle.mode.with_query(is_busy=is_busy, has_epoch=self._has_epoch())
            match lifecycle.on(event, desired=desired):
                case Action.STOP_QUERY:
                    if is_busy:
                        _log.warning(
                            "stopped within an epoch, which is replayed at the next start",
                            pipeline=lifecycle.pipeline,
                        )
                    query.stop_and_wait()
                    if self._is_lease_lost():
                        return lifecycle.lease_lost()
                    return lifecycle.without_query()
                case Action.END_QUERY:
                    return self._ended(query) or lifecycle.without_query()
                case Action.CLOSE_SOURCE | Action.CONTINUE:
                    # The source was closed above.
                    pass
                case action:
                    raise ImpossibleTransitionError(f"{event.name} can't lead to {action.name}")
            lifecycle.clock.sleep(POLL_S)
        query.stop()
        return lifecycle.lease_lost()

    def _ended(self, query: Query) -> Action | ErrorRecord | None:
        """End a query that is between epochs, if it has not ended by itself.

        Returns:
            Why it failed, or what to do about a lost lease; None in all other cases.
        """
        if not self._is_lease_lost():
            self._record_committed(query)
        error = query.error()
        if error is None:
            query.stop_and_wait()
        failure = None if error is None else diagnose(error)
        if self._is_lease_lost() or (failure and failure.error_class == LeaseLostError.__name__):
            return self._lifecycle.lease_lost()
        return failure

    def _record_committed(self, query: Query) -> None:
        epochs = self._epochs.epochs
        self._epochs.record_committed(query)
        if self._epochs.epochs > epochs:
            self._lifecycle.on(Event.EPOCH_COMMITTED)

    def _has_epoch(self) -> bool:
        """Return True if the running query has committed one."""
        return self._epochs.epochs > self._epochs_before
