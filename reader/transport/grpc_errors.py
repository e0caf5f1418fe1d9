"""The reader's errors for gRPC status codes, and which codes are worth another try."""

from __future__ import annotations

import re
from typing import Any, Final

import grpc
from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import GoogleAuthError

from slackwater.reader.change_stream import ChangeStream
from slackwater.reader.errors import (
    InvalidQueryError,
    NotFoundError,
    PermissionDeniedError,
    ReaderError,
    StartInFutureError,
    StartOutsidePartitionError,
    StartTooOldError,
    UnauthenticatedError,
    UnavailableError,
)
from slackwater.reader.query_outcome import OutOfRange, earliest_start_ns, out_of_range
from slackwater.timestamp import format_rfc3339

RETRYABLE: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        # A stream that is reset arrives as INTERNAL or UNKNOWN, depending on gRPC's version.
        # Reading again is safe; for a real internal error, it ends when the retries are used up.
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)
CALL_ERRORS: Final = (grpc.RpcError, GoogleAPICallError, GoogleAuthError)
# In GoogleSQL, in PostgreSQL, and where the stream was dropped while its query was open.
_NO_STREAM: Final = re.compile(
    r"table-valued function not found|function \S*read_json_.* does not exist"
    r"|change stream not found",
    re.IGNORECASE,
)
_FOREIGN_TOKEN: Final = "partition_token is invalid"  # noqa: S105 - part of a message
_GO_ON: Final = (
    "run with --skip-to earliest, or give the pipeline another name and a new checkpoint, and use"
    " start: earliest"
)


def is_retryable(error: BaseException) -> bool:
    """Return True if the same request may succeed later."""
    return isinstance(error, CALL_ERRORS) and (
        code_of(error) in RETRYABLE or _is_session_lost(error)
    )


def code_of(error: BaseException) -> grpc.StatusCode:
    """Return the gRPC status code of an error of grpcio, google-api-core or google-auth."""
    if isinstance(error, GoogleAuthError):
        return grpc.StatusCode.UNAUTHENTICATED
    code = error.grpc_status_code if isinstance(error, GoogleAPICallError) else _call(error).code()
    return code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN


def details_of(error: BaseException) -> str:
    """Return the status message, without what the library adds to it."""
    if isinstance(error, GoogleAPICallError):
        return str(error.message)
    return str(error) if isinstance(error, GoogleAuthError) else str(_call(error).details() or "")


def _is_session_lost(error: BaseException) -> bool:
    return code_of(error) is grpc.StatusCode.NOT_FOUND and is_session_lost(details_of(error))


def is_session_lost(message: str) -> bool:
    """Return True for the message of a NOT_FOUND that a new session resolves."""
    return "Session not found" in message


def _call(error: BaseException) -> Any:
    return error


def to_reader_error(error: BaseException, change_stream: ChangeStream) -> ReaderError:
    """Return the error to raise for a failed call, with a hint at what to do about it."""
    code, message = code_of(error), details_of(error)
    where = f"Spanner answered {code.name} for {change_stream.path}: {message}"
    match code:
        case grpc.StatusCode.OUT_OF_RANGE:
            return _out_of_range(message, where)
        case _ if _NO_STREAM.search(message):
            return _no_stream(where)
        case grpc.StatusCode.NOT_FOUND:
            return NotFoundError(where, "Correct the name, or create it")
        case grpc.StatusCode.INVALID_ARGUMENT if _FOREIGN_TOKEN in message:
            return _foreign_token(where)
        case grpc.StatusCode.PERMISSION_DENIED:
            return PermissionDeniedError(
                where,
                "Grant roles/spanner.databaseReader on the database, or SELECT on the change"
                " stream and EXECUTE on its read function to the database role",
            )
        case grpc.StatusCode.UNAUTHENTICATED:
            return UnauthenticatedError(
                where,
                "Provide Application Default Credentials:"
                " gcloud auth application-default login, or GOOGLE_APPLICATION_CREDENTIALS",
            )
        case _ if code in RETRYABLE:
            return UnavailableError(
                where,
                "Check the network and the service; for an emulator, check that it runs at"
                f" {change_stream.emulator_host or 'the host in SPANNER_EMULATOR_HOST'}",
            )
        case grpc.StatusCode.INVALID_ARGUMENT:
            return InvalidQueryError(where)
        case _:
            # A proxy can answer with any code, so one that says nothing of the user's input is
            # never the end of a pipeline: the epoch is tried again.
            return UnavailableError(where, "If it stays so, ask Spanner's support, with this code")


def _no_stream(where: str) -> ReaderError:
    return NotFoundError(
        # The lines after the first show the query, not what is wrong.
        f"the change stream does not exist, or no longer exists. {where.splitlines()[0]}.",
        "Correct change_stream, or create the stream. If it was dropped, its records are gone. To"
        f" continue without them, create it, {_GO_ON}",
    )


def _foreign_token(where: str) -> ReaderError:
    return InvalidQueryError(
        f"a partition of the pipeline does not belong to the change stream. {where}",
        "If the stream was dropped and created again under its name, the records before its last"
        f" creation are gone. To continue without them, {_GO_ON}",
    )


def _out_of_range(message: str, where: str) -> ReaderError:
    match out_of_range(message):
        case OutOfRange.START_TOO_OLD:
            earliest_ns = earliest_start_ns(message)
            earliest = "" if earliest_ns is None else f" at {format_rfc3339(earliest_ns)} or later"
            return StartTooOldError(
                "the start lies before the change stream's retention period or its creation; a"
                f" stream that was dropped and created again begins at its last creation. {where}",
                f"Start{earliest}, or use start: earliest. If the pipeline has run before, the"
                " records from its low watermark to then are gone. To continue without them,"
                f" {_GO_ON}",
            )
        case OutOfRange.START_IN_FUTURE:
            return StartInFutureError(f"the start lies in the future: {message}", "Use start: now")
        case OutOfRange.START_OUTSIDE_PARTITION:
            return StartOutsidePartitionError(message)
        case _:
            return InvalidQueryError(where)
