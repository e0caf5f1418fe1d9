"""What the scheduler refuses to do, each with the remedy.

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
    """Root of the scheduler's errors: message says what and where, hint what to do."""

    user_error = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross from Spark's workers to the driver, so they must pickle."""
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
            "Give every pipeline a checkpoint of its own",
        )


class CheckpointLostError(SchedulerError):
    """The pipeline has committed epochs and the checkpoint is empty: restore the checkpoint."""

    user_error = True

    def __init__(self, pipeline: str, low_watermark: str, remedy: str = "") -> None:
        super().__init__(
            f"pipeline {pipeline!r} has committed epochs up to {low_watermark},"
            " but its checkpoint is empty: starting over would write records twice.",
            "Restore the checkpoint, or go on with a new one:"
            f" {remedy or f'another pipeline name with start: {low_watermark}'}",
        )


class WatermarkRegressionError(SchedulerError):
    """An epoch would end before it starts: the end setting lies before the checkpoint."""

    user_error = True


class AuditError(SchedulerError):
    """An epoch breaks what the change stream promises: nothing of it was committed."""

    def __init__(self, broken: Sequence[str]) -> None:
        super().__init__(
            f"the audit stopped an epoch before its commit: {'; '.join(broken)}.",
            "The epoch is read again; if it fails again, report it. epoch.audit: log goes on",
        )
