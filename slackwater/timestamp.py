"""The only module that knows units of time: timestamps and durations as integers, and their texts.

A timestamp is the whole number of nanoseconds (or microseconds, where a name ends in _us) since
the Unix epoch, UTC. Spanner's timestamps have nanoseconds; its commit timestamps are whole
microseconds. datetime stops at microseconds, and a low watermark lies half a microsecond after
one, so the program counts nanoseconds in an int.

A conversion to a coarser unit says how it rounds, and rounds times before 1970 in the same
direction as those after it. Integers stands for an int or a numpy array of int64.

The emulator writes years before 1000 with fewer than four digits; every parser takes both.
"""

import re
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

NANOSECONDS_PER_SECOND: Final = 1_000_000_000
NANOSECONDS_PER_MILLISECOND: Final = 1_000_000
NANOSECONDS_PER_MICROSECOND: Final = 1_000
HALF_MICROSECOND_NS: Final = 500
MICROSECONDS_PER_MILLISECOND: Final = 1_000
MILLISECONDS_PER_SECOND: Final = 1_000

Integers = TypeVar("Integers", int, "npt.NDArray[np.int64]")

_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_DAY: Final = r"\d{1,4}-\d{2}-\d{2}"
_DATE: Final = re.compile(_DAY, re.ASCII)
_RFC3339: Final = re.compile(
    rf"({_DAY})[Tt ](\d{{2}}:\d{{2}}:\d{{2}})(?:\.(\d{{1,9}}))?([Zz]|[+-]\d{{2}}:\d{{2}})",
    re.ASCII,
)
# A duration as text.
DURATION: Final = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)"
_DURATION: Final = re.compile(DURATION, re.ASCII)
_MILLISECONDS_OF: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_rfc3339(text: str) -> int:
    """Return the nanoseconds since the Unix epoch of an RFC 3339 timestamp, with Z or an offset.

    Raises:
        ValueError: text is not an RFC 3339 timestamp, or has more than nine decimals.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not an RFC 3339 timestamp such as 2026-01-31T09:00:00.123456Z"
        )
    day, clock, decimals, zone = match.groups()
    offset = "+00:00" if zone in "Zz" else zone
    whole = datetime.fromisoformat(f"{day:0>10}T{clock}{offset}") - _UNIX_EPOCH
    nanoseconds = int((decimals or "").ljust(9, "0"))
    return (whole.days * 86_400 + whole.seconds) * NANOSECONDS_PER_SECOND + nanoseconds


def parse_date(text: str) -> date:
    """Return the date of a text such as 2026-01-31.

    Raises:
        ValueError: text is not one.
    """
    if _DATE.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a date such as 2026-01-31")
    return date.fromisoformat(f"{text:0>10}")


def format_rfc3339(timestamp_ns: int) -> str:
    """Return the RFC 3339 text in UTC with Z: six decimals, or nine where six would lose some.

    Raises:
        OverflowError: the year lies outside 1 to 9999.
    """
    seconds, nanoseconds = divmod(timestamp_ns, NANOSECONDS_PER_SECOND)
    whole = (_UNIX_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]
    if nanoseconds % NANOSECONDS_PER_MICROSECOND:
        return f"{whole}.{nanoseconds:09d}Z"
    return f"{whole}.{nanoseconds // NANOSECONDS_PER_MICROSECOND:06d}Z"


def parse_duration_ms(value: object) -> int:
    """Return the milliseconds of a text such as 500ms, 1s, 1.5m, 2h or 1d; a bare 0 is allowed.

    Raises:
        ValueError: value is not a valid duration.
    """
    if value == 0 and not isinstance(value, bool):  # YAML reads no and off as False
        return 0
    match = _DURATION.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a valid duration such as 500ms, 1s or 10m")
    return round(Fraction(match.group(1)) * _MILLISECONDS_OF[match.group(2)])


def format_duration_ms(duration_ms: int) -> str:
    """Return the text, in the largest unit that divides it, that parse_duration_ms reads back."""
    unit = max(
        (unit for unit, ms in _MILLISECONDS_OF.items() if duration_ms % ms == 0),
        key=lambda unit: _MILLISECONDS_OF[unit],
    )
    return f"{duration_ms // _MILLISECONDS_OF[unit]}{unit}"


def datetime_to_rfc3339(timestamp: datetime) -> str:
    """Return the RFC 3339 text in UTC with six decimals and Z.

    A naive datetime is in the machine's own time zone, as in Spark's rows.
    """
    return f"{timestamp.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def datetime_to_us(timestamp: datetime) -> int:
    """Return microseconds since the Unix epoch; a naive datetime is in the machine's time zone."""
    return (timestamp.astimezone(UTC) - _UNIX_EPOCH) // _MICROSECOND


def datetime_to_ns(timestamp: datetime) -> int:
    """Return nanoseconds since the Unix epoch; a naive datetime is in the machine's time zone."""
    return datetime_to_us(timestamp) * NANOSECONDS_PER_MICROSECOND


def us_to_datetime(timestamp_us: int) -> datetime:
    """Return the datetime, in UTC, of microseconds since the Unix epoch."""
    return _UNIX_EPOCH + timedelta(microseconds=timestamp_us)


def ns_to_datetime(timestamp_ns: int) -> datetime:
    """Return the last datetime, in UTC, that is not after these nanoseconds since the epoch."""
    return us_to_datetime(ns_to_us(timestamp_ns))


def us_to_ns(us: Integers) -> Integers:
    """Return nanoseconds, exactly."""
    return us * NANOSECONDS_PER_MICROSECOND


def ns_to_us(ns: Integers) -> Integers:
    """Return whole microseconds, rounded down."""
    return ns // NANOSECONDS_PER_MICROSECOND


def floor_to_us(ns: int) -> int:
    """Return the nanoseconds of the last whole microsecond that is not after ns."""
    return ns // NANOSECONDS_PER_MICROSECOND * NANOSECONDS_PER_MICROSECOND


def ceil_to_us(ns: int) -> int:
    """Return the nanoseconds of the first whole microsecond that is not before ns."""
    return -(-ns // NANOSECONDS_PER_MICROSECOND) * NANOSECONDS_PER_MICROSECOND


def us_to_ms(us: int) -> int:
    """Return whole milliseconds, rounded down."""
    return us // MICROSECONDS_PER_MILLISECOND


def ns_to_ms(ns: int) -> int:
    """Return whole milliseconds, rounded down."""
    return ns // NANOSECONDS_PER_MILLISECOND


def ms_to_ns(ms: int) -> int:
    """Return nanoseconds, exactly."""
    return ms * NANOSECONDS_PER_MILLISECOND


def ms_to_seconds(ms: float) -> float:
    """Return seconds with their fraction."""
    return ms / MILLISECONDS_PER_SECOND


def seconds_to_ms(seconds: float) -> int:
    """Return milliseconds, rounded to the nearest."""
    return round(seconds * MILLISECONDS_PER_SECOND)


def ns_to_seconds(ns: float) -> float:
    """Return seconds with their fraction: exact to about a microsecond for a timestamp."""
    return ns / NANOSECONDS_PER_SECOND


def seconds_to_ns(seconds: float) -> int:
    """Return nanoseconds: exact for an int, rounded to the nearest for a float."""
    return round(seconds * NANOSECONDS_PER_SECOND)
