"""The envelopes wrapped, row and key_only, as CockroachDB's changefeeds define them.

Timestamps are nanoseconds since the Unix epoch, and behind the point a logical counter of ten
digits, which is always 0 here. In the envelopes row and key_only, what is no column stands under
__crdb__, the name that their consumers know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from slackwater.spark_sink.envelopes.event import Event
from slackwater.spark_sink.envelopes.message import Content
from slackwater.timestamp import us_to_ns

APART: Final = "__crdb__"


def decimal_timestamp(time_ns: int) -> str:
    """As CockroachDB writes a timestamp, and takes it as a cursor."""
    return f"{time_ns}.0000000000"


def wrapped(event: Event, *, stamps: Sequence[str]) -> Content:
    """The row after the change in "after", null where it was deleted."""
    return _message(event, {"after": event.after, **_stamped(event, stamps)})


def row(event: Event, *, stamps: Sequence[str]) -> Content:
    """The row after the change alone; null where it was deleted."""
    if event.after is None:
        return _message(event, None)
    apart = {APART: _stamped(event, stamps)} if stamps else {}
    return _message(event, {**event.after, **apart})


def key_only(event: Event) -> Content:
    """The key, and no value."""
    return Content(event.record["table_name"], _key(event), None, has_value=False)


def resolved(watermark_ns: int) -> Content:
    """Nothing at or before this time will come any more."""
    return Content(None, None, {"resolved": decimal_timestamp(watermark_ns)})


def resolved_apart(watermark_ns: int) -> Content:
    """The same where a value is the row itself."""
    return Content(None, None, {APART: {"resolved": decimal_timestamp(watermark_ns)}})


def _message(event: Event, value: object) -> Content:
    return Content(event.record["table_name"], _key(event), value)


def _key(event: Event) -> list[Any]:
    return list(event.keys.values())


def _stamped(event: Event, stamps: Sequence[str]) -> dict[str, str]:
    return dict.fromkeys(stamps, decimal_timestamp(us_to_ns(event.commit_us)))
