"""The errors of reading from Spanner, each with a hint at what to do about it.

ReaderError
|- ChangeStreamNameError      user: a project, instance, database or stream name is malformed
|- NotFoundError              user: the name is well-formed but does not exist
|- PermissionDeniedError      tried again, exit code 2: the credentials are valid but not sufficient
|- UnauthenticatedError       tried again, exit code 2: there are no credentials
|- TlsFileError               tried again, exit code 2: a file of the endpoint's can't be used
|- UntrustedError             tried again, exit code 2: the server's certificate is not trusted
|- StartTooOldError           user: the start is before the retention period or the stream
|- StartInFutureError         user: the start is after Spanner's clock
|- InvalidQueryError          user: Spanner refused an argument
|  `- ReadTooOldError         user: Spanner has no more rows of the time
|- UnsupportedStreamError     user: this reader can't read a stream of this form
|- PlacementDroppedError      user: a placement was dropped before all of its changes were read
|- StreamAlteredError         world: the stream's read functions are others than a moment ago
|- StartOutsidePartitionError the partition ended before the start: it is read from an earlier one
|- DecodeError                world: Spanner's answer is not what its documentation says
|- ColumnTypeError            world: a value is not of its column's type in typed columns
`- UnavailableError           world: Spanner could not be reached, or kept failing
"""

from slackwater.own_error import OwnError, UserError


class ReaderError(OwnError):
    """The root of the reader's errors.

    Attributes:
        needs_user: True if a user has to act although the input may be right, and although a
            pipeline that runs tries again.
    """

    needs_user = False


class ChangeStreamNameError(ReaderError, UserError):
    """A name is malformed, so that it can't exist in Spanner; nothing was sent."""


class NotFoundError(ReaderError, UserError):
    """The project, instance, database, role or change stream does not exist: correct the name."""


class PermissionDeniedError(ReaderError):
    """The credentials may not read the stream: grant roles/spanner.databaseReader or the role."""

    needs_user = True


class UnauthenticatedError(ReaderError):
    """No usable credentials: provide Application Default Credentials."""

    needs_user = True


class TlsFileError(ReaderError):
    """A certificate or key of the endpoint's can't be used: name or renew it."""

    needs_user = True


class UntrustedError(ReaderError):
    """The server's certificate is not trusted, is another host's or expired: name its authority."""

    needs_user = True


class StartTooOldError(ReaderError, UserError):
    """The records at the start are gone, or the stream did not exist: start later."""


class StartInFutureError(ReaderError, UserError):
    """The start is after Spanner's clock: start now or earlier."""


class InvalidQueryError(ReaderError, UserError):
    """Spanner refused the query's arguments."""


class ReadTooOldError(InvalidQueryError):
    """Spanner no longer has the rows of the time at which they were to be read."""


class UnsupportedStreamError(ReaderError, UserError):
    """The change stream exists in a form that this version can't read."""


class PlacementDroppedError(ReaderError, UserError):
    """A placement's read function is gone, and with it changes that may not have been read."""


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
