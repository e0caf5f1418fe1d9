"""Timestamps of rows: Python's datetime, of which a naive one is in the machine's own time zone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

# What becomes of a timestamp in a message.
Moment = Callable[[datetime], Any]

_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(moment: datetime) -> int:
    """Since the Unix epoch."""
    return (moment.astimezone(UTC) - _UNIX_EPOCH) // timedelta(microseconds=1)


def timestamp(time_ns: int) -> datetime:
    """Of nanoseconds since the Unix epoch, in whole microseconds before it."""
    return _UNIX_EPOCH + timedelta(microseconds=time_ns // 1_000)


def rfc3339(moment: datetime) -> str:
    """In UTC with six decimals and Z."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
