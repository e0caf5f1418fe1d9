"""An error of ours crosses from Spark's Python processes to the driver with all that it says."""

import pickle
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.commands.error_texts import exit_code, text_of
from slackwater.errors import PipelineFailedError
from slackwater.own_error import OwnError
from slackwater.pipeline.failures import delay_s, diagnose
from slackwater.reader.errors import NotFoundError, UnavailableError
from slackwater.scheduler.errors import AuditError, ForeignCheckpointError
from slackwater.spark_sink.errors import BadRecordError, MessageRefusedError
from slackwater.state.errors import LeaseLostError
from slackwater.worker_errors import (
    ErrorRecord,
    WorkerError,
    decode,
    encode,
    encoded_errors,
)

UGLY = 'one "line"\nand another: {"slackwater_error": {}}\r\n\tsnowman \u2603 \u2028 ${x} <y> \\'
# Any text, and what could be taken for the record itself.
texts = st.text() | st.sampled_from(
    [UGLY, encode(ErrorRecord("A", "b", "c", user_error=True)), '{"slackwater_error": ']
)
records = st.builds(
    ErrorRecord, st.from_regex(r"[A-Z]\w{0,20}Error", fullmatch=True), texts, texts, st.booleans()
)


def crossed(error: Exception) -> str:
    """What Spark is handed of an error that leaves a Python process: Python's text for it."""
    try:
        with encoded_errors():
            raise error
    except WorkerError:
        trace = traceback.format_exc()
    return f"[STREAM_FAILED] Query [id = 1] terminated with exception: {trace}\n\tat x.y.Z(Z.java)"


@given(records)
def test_a_record_is_one_line_of_ascii_and_reads_back_whole(record: ErrorRecord) -> None:
    line = encode(record)
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert decode(line) == record


@given(
    record=records,
    before=texts,
    after=st.text(st.characters(codec="utf-8", exclude_characters="{")),
)
def test_a_record_is_found_in_any_text_around_it(
    record: ErrorRecord, before: str, after: str
) -> None:
    text = f"{before}\n{WorkerError(record)}\n{after}"
    assert decode(text) == record
    assert decode(f"{text}\n{text}") == record


@given(message=texts, hint=texts)
def test_message_and_hint_reach_the_driver_as_they_were(message: str, hint: str) -> None:
    text = crossed(UnavailableError(message, hint))
    failure = diagnose(text)
    assert (failure.error_class, failure.message, failure.hint) == (
        "UnavailableError",
        message,
        hint,
    )
    assert not failure.user_error


def test_people_read_the_message_before_the_record() -> None:
    error = WorkerError(ErrorRecord("NotFoundError", "there is no 'x'.", "Make it", True))
    first, second = str(error).splitlines()
    assert first == "NotFoundError: there is no 'x'. Make it"
    assert decode(second) == error.record


@pytest.mark.parametrize(
    ("error", "is_permanent"),
    [
        (UnavailableError(UGLY, "Try again later"), False),
        (NotFoundError(UGLY, "Correct the name"), True),
        (ForeignCheckpointError("pipeline 'a'", "pipeline 'b'"), True),
        (AuditError(["one", "two"]), False),
        (BadRecordError(UGLY), True),
        (LeaseLostError("pipeline 'orders' was taken over."), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_what_an_error_means_is_the_same_on_both_sides(
    error: Exception, is_permanent: bool
) -> None:
    for failure in (diagnose(error), diagnose(crossed(error))):
        assert failure.error_class == type(error).__name__
        assert failure.text == str(error)
        assert failure.user_error == is_permanent


def test_the_last_of_several_errors_counts() -> None:
    """A sink may turn what failed in a task into an error of its own."""
    inner = crossed(UnavailableError("inner"))
    outer = crossed(NotFoundError("outer"))
    assert diagnose(f"{inner}\nThe above exception was the cause.\n{outer}").text == "outer"


def test_an_error_that_is_none_of_ours_passes_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), encoded_errors():
        raise ZeroDivisionError
    failure = diagnose("java.lang.OutOfMemoryError: Java heap space\n\tat x")
    assert (failure.error_class, failure.user_error) == ("", False)
    assert failure.message == "java.lang.OutOfMemoryError: Java heap space"
    assert diagnose("").message == "no message"


def test_of_a_java_exception_its_message_and_first_cause_are_said() -> None:
    raised = (
        "An error occurred while calling o66.exists.\n: java.io.IOException: can't read\n\tat x"
    )
    caused = f"{raised}\nCaused by: java.net.SocketException: reset\n\tat y\n\t... 3 more"
    first = f"{raised}\nCaused by: a.B: wrapped\n\tat y\nCaused by: java.net.SocketException: reset"
    assert diagnose(raised).message == "java.io.IOException: can't read"
    for text in (caused, first):
        expected = "java.io.IOException: can't read (java.net.SocketException: reset)"
        assert diagnose(text).message == expected
        assert text_of(RuntimeError(text)) == expected


def test_an_error_is_wrapped_once_and_can_be_pickled() -> None:
    error = WorkerError(ErrorRecord("NotFoundError", "m", "h", user_error=True))
    with pytest.raises(WorkerError) as caught, encoded_errors():
        raise error
    assert caught.value is error
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.record) == (str(error), error.record)


@pytest.mark.parametrize(
    "error",
    [
        LeaseLostError("taken over.", UGLY),
        ForeignCheckpointError("pipeline 'a'", "pipeline 'b'"),
        MessageRefusedError(UGLY, "Raise it", code="MSG_SIZE_TOO_LARGE", topic="orders"),
        PipelineFailedError("the pipeline failed.", user_error=True),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_can_be_pickled_whatever_it_is_made_of(error: OwnError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert again.user_error == error.user_error


def test_delays_grow_and_are_bounded() -> None:
    assert [delay_s(n) for n in (1, 2, 3, 20, 5_000)] == [1, 2, 4, 60, 60]


def test_the_command_line_shows_the_error_behind_sparks_and_its_exit_code() -> None:
    class SparkError(Exception):
        """As PySpark's, which asks a session for its text that may have stopped."""

        def __init__(self, text: str) -> None:
            self._desc = text

    ours = SparkError(crossed(NotFoundError("there is no 'x'.", "Create it")))
    assert text_of(ours) == "there is no 'x'.\n      Create it"
    assert exit_code(ours) == 2
    assert exit_code(SparkError(crossed(UnavailableError("m")))) == 1
    other = SparkError("Java heap space")
    assert (text_of(other), exit_code(other)) == ("SparkError: Java heap space", 1)
