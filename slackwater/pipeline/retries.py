"""What follows a failure of a query or a scan: another try after a growing delay, or an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import structlog

from slackwater.errors import PipelineFailedError
from slackwater.pipeline.failures import Failure, delay_s
from slackwater.pipeline.lifecycle import Lifecycle
from slackwater.pipeline.observer import Observer
from slackwater.pipeline.transitions import Action, Event

_log = structlog.get_logger("slackwater.pipeline.retries")

_HINT: Final = "Nothing is lost: run it again when the cause is fixed"


class Retries:
    """Counts, records and logs failures, and waits between two tries.

    Args:
        what: what is tried, as the subject of "failed".
        lifecycle: the pipeline's, which is in the state failed meanwhile.
        is_lease_lost: returns True when another process has taken the pipeline over.
        observer: is told of each failure.
        remedies: what to do about an error, by its class, if the error itself can't say.
    """

    def __init__(
        self,
        what: str,
        lifecycle: Lifecycle,
        is_lease_lost: Callable[[], bool],
        observer: Observer,
        remedies: Mapping[str, str],
    ) -> None:
        self._what = what
        self._lifecycle = lifecycle
        self._is_lease_lost = is_lease_lost
        self._observer = observer
        self._remedies = remedies

    def wait(self, failure: Failure, failures: int) -> Action:
        """Record a failure and wait; return what to do then, which is to start unless all changed.

        Args:
            failure: why the last try failed.
            failures: how many tries in a row have failed.

        Raises:
            PipelineFailedError: only an operator can help, or it has failed too often.
        """
        lifecycle = self._lifecycle
        self._observer.failed(lifecycle.pipeline)
        if failure.is_permanent or lifecycle.mode.is_last_try(failures):
            raise PipelineFailedError(
                f"{self._what} failed: {failure.message}",
                self._remedies.get(failure.error_class) or failure.hint or _HINT,
                user_error=failure.is_permanent,
            )
        lifecycle.on(Event.FAILED, failure.text)
        seconds = delay_s(failures)
        _log.error(
            f"{self._what} failed, will try again",
            pipeline=lifecycle.pipeline,
            seconds=seconds,
            error=failure.text,
        )
        return lifecycle.wait(self._is_lease_lost, seconds)
