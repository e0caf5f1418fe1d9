"""The transfer of our errors from a Python process that Spark runs to the driver, whole.

Spark hands the driver nothing but the text that Python prints for an exception, somewhere inside a
text of its own. So at the boundary an error of ours is raised again as a WorkerError: the readable
text comes first, and the last line is a JSON object with class, message and hint, in which any
lines, quotes or letters are escaped. A Spark expression can raise the same text.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final

from slackwater.own_error import OwnError

_KEY: Final = "slackwater_error"
# Inside a JSON string the quotes would be escaped, so this begins nothing but a line of ours.
_MARKER: Final = f'{{"{_KEY}": '


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """An error of ours as it crosses a process boundary.

    Attributes:
        error_class: the name of its class.
        message: what was wrong, and where.
        hint: what to do about it; may be empty.
        user_error: True if the user's input is at fault.
    """

    error_class: str
    message: str
    hint: str
    user_error: bool

    @property
    def text(self) -> str:
        """The message and the hint, as one text for people."""
        return f"{self.message} {self.hint}".strip()


class WorkerError(Exception):
    """An error of ours, raised again at the boundary of a Python process that Spark runs."""

    def __init__(self, record: ErrorRecord) -> None:
        super().__init__(f"{record.error_class}: {record.text}\n{encode(record)}")
        self.record = record

    def __reduce__(self) -> "tuple[type[WorkerError], tuple[ErrorRecord]]":
        """Return what pickle needs to make the error again."""
        return (type(self), (self.record,))


@contextmanager
def encoded_errors() -> Iterator[None]:
    """Raise errors of ours as WorkerErrors; any other error passes unchanged."""
    try:
        yield
    except Exception as error:
        record = record_of(error)
        if record is None:
            raise
        raise WorkerError(record) from error


def record_of(error: BaseException) -> ErrorRecord | None:
    """Return the record of an error of ours, None for any other error."""
    if not isinstance(error, OwnError):
        return None
    return ErrorRecord(type(error).__name__, error.message, error.hint, error.user_error)


def encode(record: ErrorRecord) -> str:
    """Return the record as one line of JSON, in ASCII."""
    return json.dumps({_KEY: asdict(record)}, ensure_ascii=True)


def decode(text: str) -> ErrorRecord | None:
    """Return the last record in a text, such as Spark's exception; None if there is none."""
    decoder = json.JSONDecoder()
    at = text.rfind(_MARKER)
    while at >= 0:
        try:
            value, _ = decoder.raw_decode(text, at)
            return ErrorRecord(**value[_KEY])
        except (ValueError, TypeError):
            # A message that looks like a record; an earlier place may hold a whole one.
            at = text.rfind(_MARKER, 0, at)
    return None
