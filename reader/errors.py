"""What can go wrong between us and Spanner, each with what to do about it.

ReaderError
|- ChangeStreamNameError      user: a project, instance, database or stream name is malformed
|- NotFoundError              user: it is well-formed and does not exist
|- PermissionDeniedError      world: the credentials are known and do not suffice
|- UnauthenticatedError       world: there are no credentials
|- StartTooOldError           user: start before the retention or the stream's creation
|- StartInFutureError         user: start after Spanner's clock
|- InvalidQueryError          user: Spanner refused an argument
|- UnsupportedStreamError     user: the stream has a form that this reader does not know
|- StartOutsidePartitionError the partition ended before the start: see reader.ending
|- DecodeError                world: Spanner answered something that its documents do not show
`- UnavailableError           world: Spanner could not be reached, or went on failing
"""

from __future__ import annotations


class ReaderError(Exception):
    """Root of the reader's errors.

    Attributes:
        message: what was wrong, and where.
        hint: what to do about it; may be empty.
        user_error: True where the user's input is at fault, False where the world is.
    """

    user_error = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[type[ReaderError], tuple[str, str]]:
        """Errors cross from Spark's workers to the driver, so they must pickle."""
        return (type(self), (self.message, self.hint))


class ChangeStreamNameError(ReaderError):
    """A name that Spanner could not have given; nothing was sent."""

    user_error = True


class NotFoundError(ReaderError):
    """The project, instance, database, role or change stream does not exist: correct the name."""

    user_error = True


class PermissionDeniedError(ReaderError):
    """The credentials may not read the stream: grant roles/spanner.databaseReader or the role."""


class UnauthenticatedError(ReaderError):
    """No usable credentials: provide Application Default Credentials."""


class StartTooOldError(ReaderError):
    """The records at the start are gone, or the stream did not exist: start later."""

    user_error = True


class StartInFutureError(ReaderError):
    """The start lies after Spanner's clock: start now or earlier."""

    user_error = True


class InvalidQueryError(ReaderError):
    """Spanner refused the query's arguments."""

    user_error = True


class UnsupportedStreamError(ReaderError):
    """The change stream exists in a form that this version does not read."""

    user_error = True


class StartOutsidePartitionError(ReaderError):
    """The partition ended before the start: read it again from an earlier start."""


class DecodeError(ReaderError):
    """A row has a shape that Spanner's documents do not show: report it, nothing was skipped."""


class UnavailableError(ReaderError):
    """Spanner could not be reached, or went on failing after all retries: try again later."""
