"""The reaction to a failed query or scan: another try after a growing delay, or an error."""

from collections.abc import Callable
from typing import Final

import structlog

from slackwater.errors import PipelineFailedError, SparkFailedError
from slackwater.pipeline.failures import delay_s
from slackwater.pipeline.lifecycle import Lifecycle
from slackwater.pipeline.observer import Observer
from slackwater.pipeline.recovery import with_command
from slackwater.pipeline.transitions import Action, Event
from slackwater.worker_errors import ErrorRecord

_log = structlog.get_logger("slackwater.pipeline.retries")

_HINT: Final = "Nothing is lost. When the cause is fixed: `slackwater run`"


class Retries:
    """A counter of failures, which records and logs them, and waits between two tries.

    Args:
        what: the work that is tried, as the subject of "failed".
        lifecycle: the pipeline's, which is in the state failed meanwhile.
        is_lease_lost: returns True when another process has taken the pipeline over.
        observer: is told of each failure.
        command: by which an operator lets the pipeline go on.
        spark_loss: returns why Spark can't be used any more; None while it can.
    """

    def __init__(
        self,
        what: str,
        lifecycle: Lifecycle,
        is_lease_lost: Callable[[], bool],
        observer: Observer,
        command: str,
        spark_loss: Callable[[], str | None],
    ) -> None:
        self._what = what
        self.lifecycle = lifecycle
        self._is_lease_lost = is_lease_lost
        self._observer = observer
        self._command = command
        self._spark_loss = spark_loss

    def wait(self, failure: ErrorRecord, failures: int) -> Action:
        """Record a failure and wait; return what to do then: to start, unless the state changed.

        Args:
            failure: why the last try failed.
            failures: how many tries in a row have failed.

        Raises:
            PipelineFailedError: only an operator can help, or it has failed too often.
            SparkFailedError: another try needs another Spark.
        """
        lifecycle = self.lifecycle
        failure = lifecycle.explained(failure)
        if not failure.user_error and (loss := self._spark_loss()):
            raise SparkFailedError(loss)
        self._observer.failed(lifecycle.pipeline)
        if failure.user_error or lifecycle.mode.is_last_try(failures):
            raise PipelineFailedError(
                f"{self._what} failed: {failure.message}",
                with_command(failure.hint or _HINT, self._command),
                user_error=failure.user_error,
            )
        lifecycle.on(Event.FAILED, failure.text)
        seconds = delay_s(failures)
        _log.error(
            "failed, will try again",
            pipeline=lifecycle.pipeline,
            what=self._what,
            seconds=seconds,
            error=failure.text,
        )
        return lifecycle.wait(self._is_lease_lost, seconds)
