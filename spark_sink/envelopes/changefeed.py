"""The envelopes wrapped, row and key_only, as CockroachDB's changefeeds define them.

Timestamps are nanoseconds since the Unix epoch, and behind the point a logical counter of ten
digits, which is always 0 here. In the envelopes row and key_only, what is no column stands under
__crdb__, the name that their consumers know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from slackwater.spark_sink.envelopes.event import Event
from slackwater.spark_sink.envelopes.message import MessageBody
from slackwater.timestamp import us_to_ns

METADATA_KEY: Final = "__crdb__"


def decimal_timestamp(time_ns: int) -> str:
    """As CockroachDB writes a timestamp, and takes it as a cursor."""
    return f"{time_ns}.0000000000"


def wrapped(event: Event, *, timestamp_names: Sequence[str]) -> MessageBody:
    """The row after the change in "after", null where it was deleted."""
    return _message(event, {"after": event.after, **_timestamps(event, timestamp_names)})


def row(event: Event, *, timestamp_names: Sequence[str]) -> MessageBody:
    """The row after the change alone; null where it was deleted."""
    if event.after is None:
        return _message(event, None)
    apart = {METADATA_KEY: _timestamps(event, timestamp_names)} if timestamp_names else {}
    return _message(event, {**event.after, **apart})


def key_only(event: Event) -> MessageBody:
    """The key, and no value."""
    return MessageBody(event.record["table_name"], _key(event), None, has_value=False)


def resolved(watermark_ns: int) -> MessageBody:
    """Nothing at or before this time will come any more."""
    return MessageBody(None, None, {"resolved": decimal_timestamp(watermark_ns)})


def resolved_under_metadata_key(watermark_ns: int) -> MessageBody:
    """The same where a value is the row itself."""
    return MessageBody(None, None, {METADATA_KEY: {"resolved": decimal_timestamp(watermark_ns)}})


def _message(event: Event, value: object) -> MessageBody:
    return MessageBody(event.record["table_name"], _key(event), value)


def _key(event: Event) -> list[Any]:
    return list(event.keys.values())


def _timestamps(event: Event, timestamp_names: Sequence[str]) -> dict[str, str]:
    return dict.fromkeys(timestamp_names, decimal_timestamp(us_to_ns(event.commit_us)))
