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

from slackwater.own_error import OwnError, UserError


class SlackwaterError(OwnError):
    """The root of the program's errors."""


class SettingsError(SlackwaterError, UserError):
    """The settings are wrong: correct what the message names."""


class JavaNotFoundError(SlackwaterError, UserError):
    """Spark needs Java 17 or 21: install it or set JAVA_HOME."""


class EmulatorNotFoundError(SlackwaterError, UserError):
    """The Cloud Spanner emulator is not installed: install it or point to it."""


class EmulatorFailedError(SlackwaterError):
    """The Cloud Spanner emulator did not start: its log says why."""


class SparkFailedError(SlackwaterError):
    """Spark's JVM did not start: its own output says why."""


class ClassArchiveError(SlackwaterError):
    """The JVM did not write its archive of classes: its own output says why."""


class NoTableError(SlackwaterError, UserError):
    """The database has no such table: correct the name."""


class NoChangeStreamError(SlackwaterError, UserError):
    """The database has no such change stream: create it by the statement in the hint."""


class TailOptionError(SlackwaterError, UserError):
    """An option of `slackwater tail` is wrong: correct what the message names."""


class CheckpointError(SlackwaterError, UserError):
    """The checkpoint does not belong to the pipeline: use the pipeline's own."""


class PartsDisagreeError(SlackwaterError, UserError):
    """A pipeline's checkpoint, metadata store and output do not agree: do what the hint says."""


class RecoveryError(SlackwaterError, UserError):
    """The requested recovery does not fit the pipeline: do what the hint says."""


class PipelineNotStartedError(SlackwaterError, UserError):
    """The pipeline has never run, or with another metadata store: run it, or correct state.url."""


class PipelineOwnedError(SlackwaterError, UserError):
    """Another process runs the pipeline: stop it there, or stand by."""


class MissingExtraError(SlackwaterError, UserError):
    """A part of the program is not installed: the hint has the command."""


class HttpError(SlackwaterError, UserError):
    """The address in http.listen can't be listened on: choose another."""


class RequestTimeoutError(SlackwaterError):
    """The pipeline's owner has not done in time what was requested: look at its log."""


class PipelinePausedError(SlackwaterError, UserError):
    """The pipeline is paused: resume it first."""


class RescansLeftError(SlackwaterError, UserError):
    """The pipeline has ended before tables were read again: let it go on, or stop the rescans."""


class PipelineFailedError(SlackwaterError):
    """The streaming query failed; nothing is lost, it can be run again."""

    def __init__(self, message: str, hint: str = "", *, user_error: bool = False) -> None:
        super().__init__(message, hint)
        self.user_error = user_error
