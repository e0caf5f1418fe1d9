"""The meaning of a failed call for the user, by Spanner's code and message."""

import grpc
import pytest
from google.api_core.exceptions import GoogleAPICallError, InvalidArgument, NotFound, OutOfRange

from slackwater.reader.change_stream import ChangeStream
from slackwater.reader.errors import (
    InvalidQueryError,
    NotFoundError,
    ReaderError,
    ReadTooOldError,
    StartInFutureError,
    StartOutsidePartitionError,
    StartTooOldError,
)
from slackwater.reader.query_outcome import earliest_start_ns
from slackwater.reader.transport.answers import ANSWERS, Reaction, answer_of
from slackwater.reader.transport.grpc_errors import (
    is_retryable,
    is_session_lost,
    to_reader_error,
)
from slackwater.reader.transport.stream_call import CallError
from slackwater.timestamp import parse_rfc3339
from tests.support.repository import DOCS

STREAM = ChangeStream("project", "instance", "database", "S")
# As the emulator answered: in GoogleSQL, in PostgreSQL, and to a query that was open.
NO_STREAM = (
    InvalidArgument(
        "Table-valued function not found: READ_S [at 1:26]\n"
        "SELECT ChangeRecord FROM `READ_S`(start_timestamp => @start_timestamp, end_ti...\n"
        "                         ^"
    ),
    NotFound(
        "[ERROR] function spanner.read_json_S(timestamp with time zone, timestamp with time zone,"
        " text, bigint, unknown) does not exist\nHint: No function matches the given name and"
        " argument types. You might need to add explicit type casts."
    ),
    NotFound("[ERROR] function spanner.read_proto_bytes_S(text, bigint, unknown) does not exist"),
    NotFound("Change Stream not found: S"),
)
FOREIGN_TOKEN = InvalidArgument(
    "Specified partition_token is invalid, as it does not belong to the Change Stream associated"
    " with the TVF. Received partition_token: abc."
)
TOO_OLD = OutOfRange(
    "Specified start_timestamp is too far in the past. Please specify a start_timestamp within the"
    " earliest read timestamp: 2026-11-21T06:20:38.374977317+00:00. Received start_timestamp:"
    " 2026-11-21T06:20:38.3272215+00:00."
)

FUTURE = (
    "Specified start_timestamp is too far in the future. Please specify a start_timestamp within"
    " the earliest read timestamp: 2026-11-21T02:39:07.337992527+00:00, and the current maximum"
    " start timestamp: 2026-11-21T02:49:29.252170643+00:00. Received start_timestamp: x."
)
EXPIRED = (
    "This partition is no longer valid. All Change Stream records associated with this partition"
    " have expired and have been deleted, as specified by the Change Stream retention period."
)
STALE = (
    "Read-only transaction timestamp 2026-11-21T02:39:07+00:00 has exceeded the maximum timestamp"
    " staleness"
)
# The codes whose answer is about the request or the caller.
ONCE = {
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "OUT_OF_RANGE",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
}


@pytest.mark.parametrize("answer", NO_STREAM, ids=lambda answer: str(answer)[:30])
def test_a_stream_that_was_dropped_is_named_in_one_line(answer: GoogleAPICallError) -> None:
    error = to_reader_error(answer, STREAM)
    assert isinstance(error, NotFoundError)
    assert error.user_error
    assert "does not exist, or no longer" in error.message
    assert STREAM.path in error.message
    assert "\n" not in str(error)
    assert "its records are gone" in error.hint


def test_another_name_that_is_missing_is_not_taken_for_the_stream() -> None:
    error = to_reader_error(NotFound("Database not found: projects/p"), STREAM)
    assert isinstance(error, NotFoundError)
    assert "change stream" not in error.message
    assert "gone" not in error.hint


@pytest.mark.parametrize(
    ("answer", "kind"), [(FOREIGN_TOKEN, InvalidQueryError), (TOO_OLD, StartTooOldError)]
)
def test_a_stream_created_again_stops_the_pipeline_with_a_way_to_go_on(
    answer: GoogleAPICallError, kind: type[ReaderError]
) -> None:
    error = to_reader_error(answer, STREAM)
    assert type(error) is kind
    assert error.user_error
    assert "dropped and created again" in str(error)
    assert "are gone. To continue without them" in error.hint
    assert "another name and a new checkpoint" in error.hint
    assert STREAM.path in error.message


@pytest.mark.parametrize("message", ["something went wrong", "", "Received RST_STREAM", "404 page"])
@pytest.mark.parametrize("code", list(grpc.StatusCode), ids=lambda code: str(code.name))
def test_no_code_that_a_proxy_can_produce_stops_a_pipeline_for_good(
    code: grpc.StatusCode, message: str
) -> None:
    error = to_reader_error(CallError(code, message), STREAM)
    assert not error.user_error
    assert error.message
    assert error.hint
    assert not isinstance(error, StartOutsidePartitionError)


@pytest.mark.parametrize("code", ["OUT_OF_RANGE", "INVALID_ARGUMENT"])
def test_a_start_after_the_partitions_end_is_looked_into_under_either_code(code: str) -> None:
    message = (
        "Specified start_timestamp is invalid for the partition. Please specify a start_timestamp"
        " within 2026-11-21T02:39:25.568679+00:00 and 2026-11-21T02:39:29.65607+00:00."
    )
    error = to_reader_error(CallError(grpc.StatusCode[code], message), STREAM)
    assert isinstance(error, StartOutsidePartitionError)
    assert not error.user_error


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("OUT_OF_RANGE", FUTURE, StartInFutureError),
        ("OUT_OF_RANGE", EXPIRED, StartTooOldError),
        ("NOT_FOUND", "Database not found: projects/p/instances/i/databases/d", NotFoundError),
        ("NOT_FOUND", "Instance not found: projects/p/instances/i", NotFoundError),
        ("OUT_OF_RANGE", "heartbeat_milliseconds must be within min 100", InvalidQueryError),
        ("INVALID_ARGUMENT", "Unrecognized name: Nothing [at 1:8]", InvalidQueryError),
        ("INVALID_ARGUMENT", '[ERROR] column "nothing" does not exist', InvalidQueryError),
        ("FAILED_PRECONDITION", STALE, ReadTooOldError),
    ],
)
def test_spanners_own_refusals_stop_a_pipeline(
    code: str, message: str, kind: type[ReaderError]
) -> None:
    error = to_reader_error(CallError(grpc.StatusCode[code], message), STREAM)
    assert type(error) is kind
    assert error.user_error


@pytest.mark.parametrize("code", [c for c in grpc.StatusCode if c.name not in ONCE])
def test_a_broken_call_is_repeated_at_once(code: grpc.StatusCode) -> None:
    assert is_retryable(CallError(code, "something went wrong"))


@pytest.mark.parametrize("code", sorted(ONCE))
def test_a_refusal_is_not_repeated_at_once(code: str) -> None:
    assert not is_retryable(CallError(grpc.StatusCode[code], "something went wrong"))


def test_a_lost_session_is_tried_again_with_another_one() -> None:
    lost = NotFound("Session not found: projects/p/instances/i/databases/d/sessions/s")
    assert is_session_lost(lost)
    assert is_retryable(lost)
    assert not to_reader_error(lost, STREAM).user_error
    assert not is_session_lost(NotFound("Database not found: projects/p"))


def test_a_code_that_is_not_grpcs_is_tried_again() -> None:
    assert answer_of("CODE_17", "a later version's").reaction is Reaction.REOPEN


def test_who_reads_a_time_that_is_too_old_is_not_told_to_begin_a_pipeline_again() -> None:
    """Only an initial scan has to: rescans and verify wait, tail takes another time."""
    error = to_reader_error(CallError(grpc.StatusCode.FAILED_PRECONDITION, STALE), STREAM)
    assert "another pipeline name" not in error.hint
    assert "catch up first" in error.hint


def test_the_documentation_shows_the_same_table() -> None:
    text = (DOCS / "reliability.md").read_text()
    lines = text.split("| code | message contains |")[1].split("\n\n")[0].splitlines()[2:]
    assert lines == [
        f"| {', '.join(answer.codes) or 'every other code'}"
        f" | {'; '.join(f'`{text}`' for text in answer.messages) or 'anything else'}"
        f" | {answer.meaning.value} | {answer.reaction.value} |"
        for answer in ANSWERS
    ]


def test_the_earliest_start_is_in_the_hint_and_can_be_read_from_the_message() -> None:
    error = to_reader_error(TOO_OLD, STREAM)
    assert "starts at 2026-11-21T06:20:38.374978Z or later" in error.hint
    assert earliest_start_ns(error.message) == parse_rfc3339("2026-11-21T06:20:38.374978Z")
