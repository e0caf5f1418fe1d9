"""The errors of the program itself; the reader, the scheduler, the store and the sinks have theirs.

"User" means that the user has to change something, and the exit code is 2. "World" means that
something else failed, and the exit code is 1.

SlackwaterError
|- SettingsError          user: the settings file or its environment variables are wrong
|- JavaNotFoundError      user: Spark needs Java, and none is installed
|- EmulatorNotFoundError  user: the demo or a test needs the emulator, and none is installed
|- EmulatorFailedError    world: the emulator did not start
|- SparkFailedError       world: Spark's JVM did not start
|- ClassArchiveError      world: the JVM did not write its archive of classes
|- NoTableError           user: the database has no such table
|- NoChangeStreamError    user: the database has no such change stream
|- TailOptionError        user: an option of `slackwater tail` is wrong
|- CheckpointError        user: the checkpoint does not belong to the pipeline
|- PartsDisagreeError     user: checkpoint, metadata store and output do not agree
|- RecoveryError          user: the requested recovery does not fit the pipeline
|- PipelineNotStartedError user: the pipeline has never run, or with another metadata store
|- PipelineOwnedError     user: another process runs the pipeline
|- HttpError              user: the address can't be listened on
|- RequestTimeoutError    world: the pipeline's owner has not done in time what was requested
|- PipelinePausedError    user: the pipeline is paused
|- RescansLeftError       user: the pipeline has ended before tables were read again
`- PipelineFailedError    either: the streaming query failed; the instance says which
"""

from __future__ import annotations


class SlackwaterError(Exception):
    """The root of the program's errors.

    Attributes:
        message: what was wrong, and where.
        hint: what to do about it; may be empty.
        user_error: True if the exit code is 2, False if it is 1.
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
    """The Cloud Spanner emulator did not start: its log says why."""


class SparkFailedError(SlackwaterError):
    """Spark's JVM did not start: its own output says why."""


class ClassArchiveError(SlackwaterError):
    """The JVM did not write its archive of classes: its own output says why."""


class NoTableError(SlackwaterError):
    """The database has no such table: correct the name."""

    user_error = True


class NoChangeStreamError(SlackwaterError):
    """The database has no such change stream: create it by the statement in the hint."""

    user_error = True


class TailOptionError(SlackwaterError):
    """An option of `slackwater tail` is wrong: correct what the message names."""

    user_error = True


class CheckpointError(SlackwaterError):
    """The checkpoint does not belong to the pipeline: use the pipeline's own."""

    user_error = True


class PartsDisagreeError(SlackwaterError):
    """A pipeline's checkpoint, metadata store and output do not agree: do what the hint says."""

    user_error = True


class RecoveryError(SlackwaterError):
    """The requested recovery does not fit the pipeline: do what the hint says."""

    user_error = True


class PipelineNotStartedError(SlackwaterError):
    """The pipeline has never run, or with another metadata store: run it, or correct state.url."""

    user_error = True


class PipelineOwnedError(SlackwaterError):
    """Another process runs the pipeline: stop it there, or stand by."""

    user_error = True


class MissingExtraError(SlackwaterError):
    """A part of the program is not installed: the hint has the command."""

    user_error = True


class HttpError(SlackwaterError):
    """The address in http.listen can't be listened on: choose another."""

    user_error = True


class RequestTimeoutError(SlackwaterError):
    """The pipeline's owner has not done in time what was requested: look at its log."""


class PipelinePausedError(SlackwaterError):
    """The pipeline is paused: resume it first."""

    user_error = True


class RescansLeftError(SlackwaterError):
    """The pipeline has ended before tables were read again: let it go on, or stop the rescans."""

    user_error = True


class PipelineFailedError(SlackwaterError):
    """The streaming query failed; nothing is lost, it can be run again."""

    def __init__(self, message: str, hint: str = "", *, user_error: bool = False) -> None:
        super().__init__(message, hint)
        self.user_error = user_error
