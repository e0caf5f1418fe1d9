"""The scheduler's errors, each with its remedy.

SchedulerError
|- OptionError            user: an option of the Spark source is missing or malformed
|- ForeignCheckpointError user: the checkpoint belongs to another pipeline or change stream
|- CheckpointLostError    user: the pipeline has committed epochs, the checkpoint is empty
|- CheckpointBehindError  user: epochs that the checkpoint does not have were committed
|- WatermarkRegressionError user: an epoch would end before it starts
|- PositionsLostError    user: the metadata store lost where a table of Bigtable is read on
`- AuditError             world: an epoch breaks what the change stream promises
"""

from collections.abc import Sequence

from slackwater.own_error import OwnError, UserError


class SchedulerError(OwnError):
    """The root of the scheduler's errors."""


class OptionError(SchedulerError, UserError):
    """An option of the Spark source is missing, unknown or malformed: correct it."""


class ForeignCheckpointError(SchedulerError, UserError):
    """The checkpoint belongs to another pipeline or change stream: give each its own."""

    def __init__(self, actual: str, expected: str) -> None:
        super().__init__(
            f"the checkpoint belongs to {actual}, and this is {expected}.",
            "Give each pipeline its own checkpoint",
        )


class CheckpointLostError(SchedulerError, UserError):
    """The pipeline has committed epochs, but its checkpoint is empty: restore the checkpoint."""

    def __init__(self, pipeline: str, low_watermark: str) -> None:
        super().__init__(
            f"pipeline {pipeline!r} has committed epochs up to {low_watermark},"
            " but its checkpoint is empty: starting over would write records twice.",
            "Restore the checkpoint, or continue with a new one:"
            f" another pipeline name with start: {low_watermark}",
        )


class CheckpointBehindError(SchedulerError, UserError):
    """Epochs were committed that the checkpoint does not have: it was restored, or is another."""

    def __init__(self, pipeline: str, start: str, committed: str) -> None:
        super().__init__(
            f"the checkpoint of pipeline {pipeline!r} goes on after {start}, but epochs up to"
            f" {committed} were committed: going on would write records twice.",
            "Go on with a new checkpoint: `slackwater run --from-watermark last`; in a notebook"
            f" with start: {committed} and another pipeline name",
        )


class WatermarkRegressionError(SchedulerError, UserError):
    """An epoch would end before it starts: its end was chosen without regard to the checkpoint."""

    def __init__(self, start: str, end: str) -> None:
        super().__init__(
            f"the epoch after {start} would end at {end}, before it starts.",
            "Set end to a later time. If no end is set, the metadata store is older than the"
            f" checkpoint: use a new checkpoint and another pipeline name with start: {start}",
        )


class AuditError(SchedulerError):
    """An epoch breaks a promise of the change stream: nothing of it was committed."""

    def __init__(self, broken: Sequence[str]) -> None:
        super().__init__(
            f"the audit stopped an epoch before its commit: {'; '.join(broken)}.",
            "The epoch is read again; if it fails again, report it. To continue anyway, set"
            " epoch.audit: log",
        )


class PositionsLostError(SchedulerError, UserError):
    """The metadata store has no continuation tokens for an epoch's start: it was lost."""

    def __init__(self, pipeline: str, low_watermark: str) -> None:
        super().__init__(
            f"the metadata store has no positions of pipeline {pipeline!r} at {low_watermark}.",
            "Restore it. Or go on by time: `slackwater run --from-watermark last`, or in a notebook"
            f" a new checkpoint and start: {low_watermark}. Changes of the minute before then may"
            " come twice, and a partition that was further behind lacks some",
        )
