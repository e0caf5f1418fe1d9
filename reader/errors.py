"""The errors of reading from Spanner, each with a hint at what to do about it.

ReaderError
|- ChangeStreamNameError      user: a project, instance, database or stream name is malformed
|- NotFoundError              user: the name is well-formed but does not exist
|- PermissionDeniedError      tried again, exit code 2: the credentials are valid but not sufficient
|- UnauthenticatedError       tried again, exit code 2: there are no credentials
|- StartTooOldError           user: the start is before the retention period or the stream
|- StartInFutureError         user: the start is after Spanner's clock
|- InvalidQueryError          user: Spanner refused an argument
|- UnsupportedStreamError     user: this reader can't read a stream of this form
|- PlacementDroppedError      user: a placement was dropped before all of its changes were read
|- StreamAlteredError         world: the stream's read functions are others than a moment ago
|- StartOutsidePartitionError the partition ended before the start: it is read from an earlier one
|- DecodeError                world: Spanner's answer is not what its documentation says
|- ColumnTypeError            world: a value is not of its column's type in typed columns
`- UnavailableError           world: Spanner could not be reached, or kept failing
"""

from __future__ import annotations


class ReaderError(Exception):
    """The root of the reader's errors.

    Attributes:
        message: what is wrong, and where.
        hint: what to do about it; may be empty.
        user_error: True if the user's input is at fault, False if the environment is.
        needs_user: True if a user has to act although the input may be right, and although a
            pipeline that runs tries again.
    """

    user_error = False
    needs_user = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[type[ReaderError], tuple[str, str]]:
        """Return what pickle needs: errors cross from Spark's workers to the driver."""
        return (type(self), (self.message, self.hint))


class ChangeStreamNameError(ReaderError):
    """A name is malformed, so that it can't exist in Spanner; nothing was sent."""

    user_error = True


class NotFoundError(ReaderError):
    """The project, instance, database, role or change stream does not exist: correct the name."""

    user_error = True


class PermissionDeniedError(ReaderError):
    """The credentials may not read the stream: grant roles/spanner.databaseReader or the role."""

    needs_user = True


class UnauthenticatedError(ReaderError):
    """No usable credentials: provide Application Default Credentials."""

    needs_user = True


class StartTooOldError(ReaderError):
    """The records at the start are gone, or the stream did not exist: start later."""

    user_error = True


class StartInFutureError(ReaderError):
    """The start is after Spanner's clock: start now or earlier."""

    user_error = True


class InvalidQueryError(ReaderError):
    """Spanner refused the query's arguments."""

    user_error = True


class UnsupportedStreamError(ReaderError):
    """The change stream exists in a form that this version can't read."""

    user_error = True


class PlacementDroppedError(ReaderError):
    """A placement's read function is gone, and with it changes that may not have been read."""

    user_error = True


class StreamAlteredError(ReaderError):
    """The stream has other read functions than when the epoch was planned: plan it again."""


class StartOutsidePartitionError(ReaderError):
    """The partition ended before the start: read it again from an earlier start."""


class DecodeError(ReaderError):
    """A row is not as Spanner documents it: report this; no record was skipped."""


class ColumnTypeError(ReaderError):
    """A value is not of its column's type, which was changed after the columns were asked for."""


class UnavailableError(ReaderError):
    """Spanner could not be reached, or kept failing after all retries: try again later."""
