"""The loop of a pipeline in one process: own it, start it, wait, start it again, leave it."""

from collections.abc import Callable
from typing import Protocol

import structlog

from slackwater.errors import PipelineFailedError, PipelinePausedError, SparkFailedError
from slackwater.own_error import OwnError
from slackwater.pipeline.failures import delay_s, diagnose
from slackwater.pipeline.lifecycle import Lifecycle
from slackwater.pipeline.observer import Observer
from slackwater.pipeline.recovery import other_command
from slackwater.pipeline.transitions import Action, Event, State
from slackwater.spark_sink.output.dead_letters import spark_errors
from slackwater.state.errors import LeaseLostError, StateError
from slackwater.worker_errors import ErrorRecord

_log = structlog.get_logger("slackwater.pipeline.run_loop")

# The expected errors; any other is a defect and ends the process.
_ERRORS = (OwnError, *spark_errors())


class Lease(Protocol):
    """The lease of a pipeline; see LeaseHolder."""

    def acquire(
        self, *, wait: bool, until: Callable[[], bool], while_waiting: Callable[[], None]
    ) -> bool:
        """Become the owner; return False if until() became true first."""

    def is_lost(self) -> bool:
        """Return True when another process has taken the pipeline over."""

    def check(self) -> None:
        """Ask the store whether the lease is still held.

        Raises:
            LeaseLostError: another process owns the pipeline.
        """

    def release(self) -> None:
        """Leave the pipeline to another process."""


class Requests(Protocol):
    """The desired state of a pipeline; see DesiredStatePoller."""

    def start(self) -> None:
        """Begin to poll; requests to a former owner no longer count."""

    def stop(self) -> None:
        """Stop polling, and take back the requests that were obeyed."""

    def await_operator(self) -> None:
        """Make the pipeline wait until it is resumed, even if the store does not answer yet."""


class RunLoop:
    """The loop that follows the table of transitions, around the part that starts the query.

    Args:
        lifecycle: the pipeline's state.
        lease: the pipeline's.
        requests: to it.
        observer: is told of failures.
        start: starts the pipeline, and returns what to do when nothing runs any more.
        spark_loss: returns why Spark can't be used any more; None while it can.
        command: by which an operator lets the pipeline go on.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        lease: Lease,
        requests: Requests,
        observer: Observer,
        start: Callable[[], Action],
        spark_loss: Callable[[], str | None],
        command: str,
    ) -> None:
        self._lifecycle = lifecycle
        self._lease = lease
        self._requests = requests
        self._observer = observer
        self._start = start
        self._spark_loss = spark_loss
        self._command = command
        self._failures = 0
        self._losses = 0
        self._needs_spark = False

    def query_starts(self) -> None:
        """Note that a query is about to run: earlier failures to start no longer count."""
        self._failures = 0

    def run_while_owned(self, while_waiting: Callable[[], None]) -> Action:
        """Become the owner, and run until the end or until the lease is lost.

        Args:
            while_waiting: called once, if the lease has to be waited for.

        Returns:
            FINISH, STAND_BY or START_SPARK.

        Raises:
            PipelineOwnedError, LeaseLostError: another process runs it, and it is not to stand by.
            PipelinePausedError: it is to run until it has caught up, and is paused.
            ReaderError, StateError, SchedulerError, SinkError, SlackwaterError: it failed; if the
                process stays, only raised before it was owned.
        """
        lifecycle = self._lifecycle
        try:
            if not self._lease.acquire(
                wait=lifecycle.mode.stands_by,
                until=lambda: lifecycle.on(Event.LEASE_TAKEN_ELSEWHERE) is Action.FINISH,
                while_waiting=while_waiting,
            ):
                return Action.FINISH
            self._requests.start()
            try:
                return self._run()
            finally:
                self._requests.stop()
        finally:
            self._lease.release()

    def _run(self) -> Action:
        """Start and wait until the process is to leave the pipeline."""
        action = self._lifecycle.without_query()
        while True:
            match action:
                case Action.START if self._needs_spark:
                    self._needs_spark = False
                    action = self._lifecycle.on(Event.SPARK_LOST)
                case Action.START:
                    action = self._started()
                case Action.WAIT:
                    action = self._lifecycle.wait(self._lease.is_lost)
                case Action.RAISE:
                    raise LeaseLostError(
                        f"pipeline {self._lifecycle.pipeline!r} was taken over by another process."
                    )
                case Action.REFUSE:
                    raise PipelinePausedError(
                        f"pipeline {self._lifecycle.pipeline!r} is paused.",
                        f"Resume it: `{other_command(self._command, 'resume')}`",
                    )
                case _:
                    return action

    def _started(self) -> Action:
        """Start the pipeline; return what to do when nothing runs any more, or it failed."""
        try:
            # Another process may have taken it over while this one waited.
            self._lease.check()
            return self._start()
        except LeaseLostError:
            return self._lifecycle.lease_lost()
        except Exception as error:
            failure, event = self._reported(error)
            if event is Event.FAILED_PERMANENTLY and self._is_taken_over():
                # The new owner is not to wait for an operator because this one failed.
                return self._lifecycle.lease_lost()
            action = self._failed(event, failure.text)
            if action is Action.RAISE:
                if isinstance(error, OwnError):
                    raise
                raise PipelineFailedError(
                    failure.message, failure.hint, user_error=failure.user_error
                ) from error
        match action:
            case Action.AWAIT_OPERATOR:
                self._requests.await_operator()
                return self._lifecycle.without_query()
            case Action.RETRY:
                return self._lifecycle.wait(self._lease.is_lost, self._delay_s())
            case _:
                return action

    def _reported(self, error: Exception) -> tuple[ErrorRecord, Event]:
        """Explain a failure and report it, and check whether Spark is lost.

        Raises:
            Exception: the error, if it is neither of those that are expected nor Spark's loss.
        """
        # Its text is made here: Spark's errors ask the JVM for it, which stops on the way out.
        failure = diagnose(error)
        is_given_up = isinstance(error, PipelineFailedError)
        loss = None if is_given_up or failure.user_error else self._spark_loss()
        if loss is not None:
            failure = diagnose(SparkFailedError(loss))
        elif not isinstance(error, _ERRORS):
            raise error
        if not is_given_up:
            # An error of a query that was given up has been explained and reported already.
            failure = self._lifecycle.explained(failure)
            self._observer.failed(self._lifecycle.pipeline)
        self._needs_spark = loss is not None and not self._is_last_loss()
        if self._needs_spark:
            return failure, Event.FAILED
        return failure, self._lifecycle.mode.failed(
            is_permanent=failure.user_error, is_given_up=is_given_up or loss is not None
        )

    def _is_taken_over(self) -> bool:
        """Return True if the store shows another owner; False if it does not answer."""
        try:
            self._lease.check()
        except LeaseLostError:
            return True
        except StateError as error:
            _log.warning("lease not checked", error=error.message)
        return False

    def _is_last_loss(self) -> bool:
        """Note that Spark is lost; return True if it is not started again."""
        has_epoch = self._lifecycle.state is State.RUNNING
        self._losses = 1 if has_epoch else self._losses + 1
        return self._lifecycle.mode.is_last_try(self._losses)

    def _failed(self, event: Event, reason: str) -> Action:
        """Record a failure; return what to do."""
        name = self._lifecycle.pipeline
        action = self._lifecycle.on(event, reason)
        if action is Action.AWAIT_OPERATOR:
            _log.error("failed permanently", pipeline=name, error=reason)
        elif action is Action.RETRY:
            self._failures += 1
            _log.error(
                "failed, will try again", pipeline=name, seconds=self._delay_s(), error=reason
            )
        return action

    def _delay_s(self) -> float:
        """Return how long to wait before the next try."""
        return delay_s(max(self._failures, self._losses))
