"""What a failure of the streaming query means: try again after a while, or give up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slackwater.state.errors import LeaseLostError
from slackwater.worker_errors import ErrorRecord, decode, record_of

_DELAY_FIRST_S: Final = 1.0
_DELAY_MAX_S: Final = 60.0
# Enough to reach the longest delay; a pipeline may fail thousands of times in a row.
_DOUBLINGS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a streaming query failed.

    Attributes:
        error_class: the error's class; empty if it is not one of ours.
        message: our own error's if Spark's carries one, else the first line of Spark's.
        hint: our own error's; may be empty.
        is_permanent: True if trying again can't help until somebody changes something.
        is_lease_lost: True if another process took the pipeline over.
    """

    error_class: str
    message: str
    hint: str
    is_permanent: bool
    is_lease_lost: bool

    @property
    def text(self) -> str:
        """The message and the hint, as one text for people."""
        return f"{self.message} {self.hint}".strip()


def diagnose(error: BaseException | str) -> Failure:
    """Return what an error means: one of ours, or one of Spark's that may carry one of ours.

    Args:
        error: as it was raised, or the text of Spark's exception.
    """
    record = None if isinstance(error, str) else record_of(error)
    if record is None:
        text = str(error)
        record = decode(text)
        if record is None:
            lines = text.strip().splitlines()
            record = ErrorRecord("", lines[0] if lines else "no message", "", user_error=False)
    return Failure(
        error_class=record.error_class,
        message=record.message,
        hint=record.hint,
        is_permanent=record.user_error,
        is_lease_lost=record.error_class == LeaseLostError.__name__,
    )


def delay_s(failures_in_a_row: int) -> float:
    """Return how long to wait before the next try: 1 s, doubled each time, at most a minute."""
    doublings = min(failures_in_a_row - 1, _DOUBLINGS_MAX)
    return float(min(_DELAY_MAX_S, _DELAY_FIRST_S * 2**doublings))
