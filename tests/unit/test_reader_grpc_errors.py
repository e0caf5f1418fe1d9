"""The meaning of a failed call for the user, by Spanner's code and message."""

from __future__ import annotations

import grpc
import pytest
from google.api_core.exceptions import GoogleAPICallError, InvalidArgument, NotFound, OutOfRange

from slackwater.reader.change_stream import ChangeStream
from slackwater.reader.errors import InvalidQueryError, NotFoundError, ReaderError, StartTooOldError
from slackwater.reader.query_outcome import earliest_start_ns
from slackwater.reader.transport.grpc_errors import to_reader_error
from slackwater.timestamp import parse_rfc3339


class Answer(grpc.RpcError):  # type: ignore[misc]
    """What grpcio raises for a status."""

    def __init__(self, status: grpc.StatusCode) -> None:
        self.status = status

    def code(self) -> grpc.StatusCode:
        return self.status

    def details(self) -> str:
        return "something went wrong"


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


@pytest.mark.parametrize("code", list(grpc.StatusCode), ids=lambda code: str(code.name))
def test_no_code_that_a_proxy_can_produce_stops_a_pipeline_for_good(code: grpc.StatusCode) -> None:
    about_the_request = {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.OUT_OF_RANGE,
    }
    error = to_reader_error(Answer(code), STREAM)
    assert error.user_error is (code in about_the_request)
    assert error.message
    if code is not grpc.StatusCode.OK and not error.user_error:
        assert error.hint


def test_the_earliest_start_is_in_the_hint_and_can_be_read_from_the_message() -> None:
    error = to_reader_error(TOO_OLD, STREAM)
    assert "Start at 2026-11-21T06:20:38.374978Z or later" in error.hint
    assert earliest_start_ns(error.message) == parse_rfc3339("2026-11-21T06:20:38.374978Z")
