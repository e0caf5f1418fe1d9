"""The scheduler's errors, each with its remedy.

SchedulerError
|- OptionError            user: an option of the Spark source is missing or malformed
|- ForeignCheckpointError user: the checkpoint belongs to another pipeline or change stream
|- CheckpointLostError    user: the pipeline has committed epochs, the checkpoint is empty
|- WatermarkRegressionError user: an epoch would end before it starts
`- AuditError             world: an epoch breaks what the change stream promises
"""

from __future__ import annotations

from collections.abc import Sequence


class SchedulerError(Exception):
    """The root of the scheduler's errors.

    Attributes:
        message: what is wrong, and where.
        hint: what to do about it; may be empty.
        user_error: True if the user's input is at fault, False if the environment is.
    """

    user_error = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        """Return what pickle needs: errors cross from Spark's workers to the driver."""
        return (_restore, (type(self), self.message, self.hint))


def _restore(kind: type[SchedulerError], message: str, hint: str) -> SchedulerError:
    error = kind.__new__(kind)
    SchedulerError.__init__(error, message, hint)
    return error


class OptionError(SchedulerError):
    """An option of the Spark source is missing, unknown or malformed: correct it."""

    user_error = True


class ForeignCheckpointError(SchedulerError):
    """The checkpoint belongs to another pipeline or change stream: give each its own."""

    user_error = True

    def __init__(self, actual: str, expected: str) -> None:
        super().__init__(
            f"the checkpoint belongs to {actual}, and this is {expected}.",
            "Give each pipeline its own checkpoint",
        )


class CheckpointLostError(SchedulerError):
    """The pipeline has committed epochs, but its checkpoint is empty: restore the checkpoint."""

    user_error = True

    def __init__(self, pipeline: str, low_watermark: str, remedy: str = "") -> None:
        super().__init__(
            f"pipeline {pipeline!r} has committed epochs up to {low_watermark},"
            " but its checkpoint is empty: starting over would write records twice.",
            "Restore the checkpoint, or continue with a new one:"
            f" {remedy or f'another pipeline name with start: {low_watermark}'}",
        )


class WatermarkRegressionError(SchedulerError):
    """An epoch would end before it starts: the end setting lies before the checkpoint."""

    user_error = True


class AuditError(SchedulerError):
    """An epoch breaks a promise of the change stream: nothing of it was committed."""

    def __init__(self, broken: Sequence[str]) -> None:
        super().__init__(
            f"the audit stopped an epoch before its commit: {'; '.join(broken)}.",
            "The epoch is read again; if it fails again, report it. To continue anyway, set"
            " epoch.audit: log",
        )
