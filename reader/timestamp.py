"""RFC 3339 timestamps as whole nanoseconds since the Unix epoch, UTC.

Spanner's timestamps have nanoseconds; commit timestamps are whole microseconds. datetime stops at
microseconds, and a low watermark lies half a microsecond after one, so the program counts
nanoseconds in an int.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

NANOSECONDS_PER_SECOND = 1_000_000_000
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC3339 = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt ](\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?([Zz]|[+-]\d{2}:\d{2})"
)


def parse_rfc3339(text: str) -> int:
    """Nanoseconds since the Unix epoch of an RFC 3339 timestamp, with Z or an offset.

    Raises:
        ValueError: text is no RFC 3339 timestamp, or has more than nine decimals.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no RFC 3339 timestamp such as 2026-01-31T09:00:00.123456Z")
    day, clock, decimals, zone = match.groups()
    offset = "+00:00" if zone in "Zz" else zone
    whole = datetime.fromisoformat(f"{day}T{clock}{offset}") - _UNIX_EPOCH
    nanoseconds = int((decimals or "").ljust(9, "0"))
    return (whole.days * 86_400 + whole.seconds) * NANOSECONDS_PER_SECOND + nanoseconds


def format_rfc3339(timestamp_ns: int) -> str:
    """The RFC 3339 text, in UTC with Z, with six decimals or nine where six would lose some.

    Raises:
        OverflowError: the year lies outside 1 to 9999.
    """
    seconds, nanoseconds = divmod(timestamp_ns, NANOSECONDS_PER_SECOND)
    moment = (_UNIX_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    if nanoseconds % 1000:
        return f"{moment.rjust(19, '0')}.{nanoseconds:09d}Z"
    return f"{moment.rjust(19, '0')}.{nanoseconds // 1000:06d}Z"
