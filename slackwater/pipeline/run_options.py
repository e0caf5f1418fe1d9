"""The options with which a process runs its pipelines."""

from dataclasses import dataclass

from slackwater.pipeline.recovery import Recovery
from slackwater.pipeline.transitions import RunMode


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a pipeline's run.

    Attributes:
        until_caught_up: end after the epoch that reaches the time of the start.
        recovery: the losses that the operator accepts.
        file_option: the option that names the settings file, with a space before it, for messages.
        names_pipeline: commands have to name the pipeline, because the file has several.
        stays: a failure that only an operator can overcome leaves the process running, to show it.
    """

    until_caught_up: bool
    recovery: Recovery
    stays: bool = False
    file_option: str = ""
    names_pipeline: bool = False

    def mode(self, *, stands_by: bool) -> RunMode:
        """Return how long the process stays with a pipeline.

        Args:
            stands_by: it waits for a lease that it has lost.
        """
        return RunMode(self.until_caught_up, self.stays, stands_by)
