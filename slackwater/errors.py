"""What the program itself refuses or fails at.

SlackwaterError
|- SettingsError         user: the settings file or its environment variables are wrong
|- JavaNotFoundError     user: Spark needs Java and there is none
|- EmulatorNotFoundError user: the demo or a test needs the emulator and there is none
|- EmulatorFailedError   world: the emulator did not come up
|- SparkFailedError      world: Spark's JVM did not start
|- NoTableError          user: the database has no such table
|- TailOptionError       user: an option of `slackwater tail` is wrong
|- CheckpointError       user: the checkpoint does not fit the pipeline
|- RecoveryError         user: what an operator asks after a loss does not fit the pipeline
|- PipelineOwnedError    user: another process runs the pipeline
|- HttpError             user: the address can't be listened on
|- RequestTimeoutError   world: the pipeline's owner did not do in time what was requested
|- PipelinePausedError   user: the pipeline is paused
`- PipelineFailedError   the streaming query failed; whose fault it is, the instance says
"""

from __future__ import annotations


class SlackwaterError(Exception):
    """Root of the program's errors.

    Attributes:
        message: what was wrong, and where.
        hint: what to do about it; may be empty.
        user_error: True where the exit code is 2, False where it is 1.
    """

    user_error = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint


class SettingsError(SlackwaterError):
    """The settings are wrong: correct what the message names."""

    user_error = True


class JavaNotFoundError(SlackwaterError):
    """Spark needs Java 17 or 21: install it or set JAVA_HOME."""

    user_error = True


class EmulatorNotFoundError(SlackwaterError):
    """The Cloud Spanner emulator is not installed: install it or point to it."""

    user_error = True


class EmulatorFailedError(SlackwaterError):
    """The Cloud Spanner emulator did not come up: its log says why."""


class SparkFailedError(SlackwaterError):
    """Spark's JVM did not start: its own output says why."""


class NoTableError(SlackwaterError):
    """The database has no such table: correct the name."""

    user_error = True


class TailOptionError(SlackwaterError):
    """An option of `slackwater tail` is wrong: correct what the message names."""

    user_error = True


class CheckpointError(SlackwaterError):
    """The checkpoint does not fit the pipeline: use its own."""

    user_error = True


class RecoveryError(SlackwaterError):
    """What an operator asks after a loss does not fit what is known of the pipeline."""

    user_error = True


class PipelineOwnedError(SlackwaterError):
    """Another process runs the pipeline: stop it there, or stand by."""

    user_error = True


class HttpError(SlackwaterError):
    """The address of http.listen can't be listened on: choose another."""

    user_error = True


class RequestTimeoutError(SlackwaterError):
    """The pipeline's owner did not do what was requested in time: look at its log."""


class PipelinePausedError(SlackwaterError):
    """The pipeline is paused: resume it first."""

    user_error = True


class PipelineFailedError(SlackwaterError):
    """The streaming query failed; nothing is lost, it can be run again."""

    def __init__(self, message: str, hint: str = "", *, user_error: bool = False) -> None:
        super().__init__(message, hint)
        self.user_error = user_error
