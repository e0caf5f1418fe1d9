"""The meaning of a failure of the streaming query: try again after a while, or give up."""

import re
from dataclasses import replace
from typing import Final

from slackwater.worker_errors import ErrorRecord, WorkerError, decode, record_of

_DELAY_FIRST_S: Final = 1.0
_DELAY_MAX_S: Final = 60.0
# Enough to reach the longest delay; a pipeline may fail thousands of times in a row.
_DOUBLINGS_MAX: Final = 10
# How py4j begins the text of a Java exception.
_JAVA_RAISED: Final = "An error occurred while calling"
# A line of a trace that names an exception, except one that only holds another trace.
_RAISED: Final = re.compile(
    r"(?:Caused by: )?((?:[\w$]+\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Failure)"
    r"(?!.*Traceback \(most recent call last\):$)(?:: .*)?)$"
)
# The text before such a trace, which adds nothing.
_TRACE: Final = re.compile(
    r"(An exception was raised by the Python Proxy\. Return Message: )?"
    r"Traceback \(most recent call last\):$"
)
# Spark recognizes py4j's text by this.
_OF_PY4J: Final = "py4j.protocol.Py4JJavaError:"
_MESSAGE_MAX: Final = 1_000


def diagnose(error: BaseException | str) -> ErrorRecord:
    """Return what made a streaming query fail: an error of ours, or of Spark's that may carry one.

    Of an error that is not one of ours the class is empty, and the message is that of summary().
    user_error means that another try can't help until an operator changes something.

    Args:
        error: as it was raised, or the text of Spark's exception.
    """
    record = None if isinstance(error, str) else record_of(error)
    text = str(error)
    return record or decode(text) or ErrorRecord("", summary(text), "", user_error=False)


def encoded(error: Exception) -> WorkerError:
    """Return the error that a callback raises to Spark in place of another one.

    Spark keeps only its text, and searches that for an interruption with an expression that
    overflows the stack where the text holds a stack trace of Java's. So it is short, and is marked
    as Java's where it comes from Java.
    """
    if isinstance(error, WorkerError):
        return error
    failure = diagnose(error)
    message = failure.message
    error_class = failure.error_class or type(error).__name__
    if not failure.error_class:
        from_java = f"{_OF_PY4J} {_JAVA_RAISED}: {message[:_MESSAGE_MAX]}"
        message = from_java if is_java_text(str(error)) else f"{error_class}: {message}"
    return WorkerError(replace(failure, error_class=error_class, message=message))


def is_java_text(text: str) -> bool:
    """Return whether a text is that of a Java exception that a call of Python's met."""
    return text.startswith(_JAVA_RAISED)


def summary(text: str) -> str:
    """Return an error's text in one line, with the class and message of its cause.

    The texts of Python and of Java hold each other: a trace of Python's in a message of Java's in
    one of Python's. The first error is the last.
    """
    lines = text.strip().splitlines() or ["no message"]
    raised = lines[0]
    if is_java_text(text) and len(lines) > 1:
        raised = lines[1].removeprefix(": ")
    raised = _TRACE.sub("", raised)
    causes = [match[1] for line in lines if (match := _RAISED.match(line))]
    if not causes or causes[-1] in raised:
        return raised
    return f"{raised} ({causes[-1]})"


def delay_s(failures_in_a_row: int) -> float:
    """Return how long to wait before the next try: 1 s, doubled each time, at most a minute."""
    doublings = min(failures_in_a_row - 1, _DOUBLINGS_MAX)
    return float(min(_DELAY_MAX_S, _DELAY_FIRST_S * 2**doublings))
