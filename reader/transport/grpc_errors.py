"""The reader's errors for failed calls: the library's exceptions, by the table of answers."""

from typing import Any, Final

import grpc
from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import GoogleAuthError

from slackwater.endpoint import Endpoint
from slackwater.reader.change_stream import ChangeStream
from slackwater.reader.errors import (
    InvalidQueryError,
    NotFoundError,
    PermissionDeniedError,
    ReaderError,
    ReadTooOldError,
    StartInFutureError,
    StartOutsidePartitionError,
    StartTooOldError,
    UnauthenticatedError,
    UnavailableError,
    UntrustedError,
)
from slackwater.reader.query_outcome import earliest_start_ns
from slackwater.reader.transport.answers import Answer, Meaning, Reaction, answer_of
from slackwater.timestamp import format_rfc3339

CALL_ERRORS: Final = (grpc.RpcError, GoogleAPICallError, GoogleAuthError)
_PROVIDE_CREDENTIALS: Final = (
    "Provide Application Default Credentials: gcloud auth application-default login, or"
    " GOOGLE_APPLICATION_CREDENTIALS; or name a file in source.credentials_file. For an emulator"
    " set SPANNER_EMULATOR_HOST=HOST:PORT"
)
# The program replaces `slackwater run` by its own command line.
_GO_ON: Final = (
    "`slackwater run --skip-to earliest`, which records the gap; in a notebook give the pipeline"
    " another name and a new checkpoint, and use start: earliest"
)


def is_retryable(error: BaseException) -> bool:
    """Return True if the same request may succeed in a moment."""
    return isinstance(error, CALL_ERRORS) and _answer(error).reaction is Reaction.REOPEN


def is_session_lost(error: BaseException) -> bool:
    """Return True if a call failed because Spanner has forgotten the session."""
    return isinstance(error, CALL_ERRORS) and _answer(error).meaning is Meaning.SESSION_LOST


def code_of(error: BaseException) -> grpc.StatusCode:
    """Return the gRPC status code of an error of grpcio, google-api-core or google-auth."""
    if isinstance(error, GoogleAuthError):
        return grpc.StatusCode.UNAUTHENTICATED
    code = error.grpc_status_code if isinstance(error, GoogleAPICallError) else _call(error).code()
    return code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN


def details_of(error: BaseException) -> str:
    """Return the status message, without the library's additions."""
    if isinstance(error, GoogleAPICallError):
        return str(error.message)
    return str(error) if isinstance(error, GoogleAuthError) else str(_call(error).details() or "")


def _answer(error: BaseException) -> Answer:
    return answer_of(code_of(error).name, details_of(error))


def _call(error: BaseException) -> Any:
    return error


def to_reader_error(error: BaseException, change_stream: ChangeStream) -> ReaderError:
    """Return the error to raise for a failed call, with a hint at what to do about it."""
    code, message = code_of(error), details_of(error)
    where = f"Spanner answered {code.name} for {change_stream.path}: {message}"
    match answer_of(code.name, message).meaning:
        case Meaning.START_TOO_OLD:
            return _start_too_old(message, where)
        case Meaning.START_IN_FUTURE:
            return StartInFutureError(f"the start lies in the future: {message}", "Use start: now")
        case Meaning.ENDED_BEFORE_START:
            return StartOutsidePartitionError(message)
        case Meaning.OTHER_STREAM:
            return _foreign_token(where)
        case Meaning.OTHER_PLACEMENT:
            return UnavailableError(
                f"a partition of the pipeline does not belong to the placement by which it is read."
                f" {where}",
                "The epoch is planned again. If the answer stays the same, the placement was"
                f" dropped and created again, and changes in it are gone. To continue: {_GO_ON}",
            )
        case Meaning.NO_STREAM:
            return _no_stream(where)
        case Meaning.NO_DATABASE:
            return NotFoundError(where, "Correct the name, or create it")
        case Meaning.INVALID_QUERY:
            return InvalidQueryError(where)
        case Meaning.READ_TOO_OLD:
            return ReadTooOldError(
                where,
                "The database's version_retention_period has passed since that time. A pipeline"
                " that is behind has to catch up first; else name a later time",
            )
        case Meaning.NOT_PERMITTED:
            return PermissionDeniedError(
                where,
                "Grant roles/spanner.databaseReader on the database, or SELECT on the change"
                " stream and EXECUTE on its read function to the database role",
            )
        case Meaning.NOT_AUTHENTICATED:
            return UnauthenticatedError(where, _PROVIDE_CREDENTIALS)
        case Meaning.NOT_TRUSTED:
            return UntrustedError(
                f"there is no secure connection to {change_stream.endpoint.target}. {message}",
                "Name the authority that signed the server's certificate in source.ca_certificate,"
                " and the server in source.endpoint as its certificate does. For a server without"
                " TLS set source.plaintext",
            )
        case Meaning.NOT_SPANNERS:
            return UnavailableError(
                where,
                "The message is not one of Spanner's known refusals, so the request is made again."
                " If the answer stays the same, correct what it names; look also at the proxies"
                " between here and Spanner",
            )
        case _:
            return UnavailableError(
                where,
                _check_network(change_stream.endpoint),
            )


def _check_network(endpoint: Endpoint) -> str:
    if endpoint.host is None:
        return (
            "Check the network, the proxies between here and Spanner, and the service; an emulator"
            " is named by SPANNER_EMULATOR_HOST"
        )
    tls = "has no TLS" if endpoint.plaintext else "takes the client's certificate, if any"
    return f"Check that it runs at {endpoint.target}, that it {tls}, and the network"


def _no_stream(where: str) -> ReaderError:
    return NotFoundError(
        # The lines after the first show the query, not what is wrong.
        f"the change stream does not exist, or no longer exists. {where.splitlines()[0]}.",
        "Correct change_stream, or create the stream. If it was dropped, its records are gone. To"
        f" continue without them, create it, then: {_GO_ON}",
    )


def _foreign_token(where: str) -> ReaderError:
    return InvalidQueryError(
        f"a partition of the pipeline does not belong to the change stream. {where}",
        "If the stream was dropped and created again under its name, the records before its last"
        f" creation are gone. To continue without them: {_GO_ON}",
    )


def _start_too_old(message: str, where: str) -> ReaderError:
    earliest_ns = earliest_start_ns(message)
    earliest = "" if earliest_ns is None else f" at {format_rfc3339(earliest_ns)} or later"
    return StartTooOldError(
        "the start lies before the change stream's retention period or its creation; a"
        f" stream that was dropped and created again begins at its last creation. {where}",
        f"A new pipeline starts{earliest or ' later'}: use start: earliest. If it has run before,"
        " the records from its low watermark to then are gone. To continue without them:"
        f" {_GO_ON}",
    )
