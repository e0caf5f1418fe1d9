"""What a failure of the streaming query means: try again after a while, or give up."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Final

import slackwater.reader.errors
import slackwater.scheduler.errors
import slackwater.spark_sink.errors
import slackwater.state.errors
from slackwater.state.errors import LeaseLostError

_DELAY_FIRST_S: Final = 1.0
_DELAY_MAX_S: Final = 60.0
_LAST_LINE: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)+(\w+Error): (.+)$", re.MULTILINE)
_OURS: Final = {
    name: kind
    for module in (
        slackwater.reader.errors,
        slackwater.scheduler.errors,
        slackwater.spark_sink.errors,
        slackwater.state.errors,
    )
    for name, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, Exception)
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a streaming query failed.

    Attributes:
        kind: the error's class, empty where it is none of ours.
        message: our own error's where one stands behind Spark's, else the first line of Spark's.
        is_permanent: True where trying again can't help before somebody changes something.
        is_lease_lost: True where another process took the pipeline over.
    """

    kind: str
    message: str
    is_permanent: bool
    is_lease_lost: bool


def diagnose(text: str) -> Failure:
    """What stands behind the text of Spark's exception, which holds the Python worker's trace."""
    ours = _LAST_LINE.findall(text)
    if not ours:
        lines = text.strip().splitlines()
        return Failure("", lines[0] if lines else "no message", False, False)
    name, message = ours[-1]
    kind = _OURS.get(name)
    return Failure(
        kind=name if kind else "",
        message=message,
        is_permanent=bool(getattr(kind, "user_error", False)),
        is_lease_lost=kind is LeaseLostError,
    )


def delay_s(failures_in_a_row: int) -> float:
    """How long to wait before the next try: 1 s, doubled with each failure, at most a minute."""
    return float(min(_DELAY_MAX_S, _DELAY_FIRST_S * 2 ** (failures_in_a_row - 1)))
