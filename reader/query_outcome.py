"""The outcome of a partition query that ended with OK.

A query ends in one of three ways: it returned records that end its partition, it reached its
end_timestamp, or it shows neither and has to be made again. Other readers confused
these and lost partitions or queried forever (debezium/debezium-connector-spanner pull requests 172
and 175, apache/beam issue 40232).

The meaning of other status codes is decided in reader.transport.answers.
"""

import re
from collections.abc import Iterable

from slackwater.reader.records import (
    ChildPartitionsRecord,
    PartitionEndRecord,
    PartitionRecord,
)
from slackwater.timestamp import HALF_MICROSECOND_NS, ceil_to_us, parse_rfc3339

_EARLIEST = re.compile(r"earliest read timestamp: (\S+?)[.,]?(?:\s|$)")


def earliest_start_ns(message: str) -> int | None:
    """Return the earliest start that Spanner's refusal of a start names, in nanoseconds, if any.

    It is rounded up to a whole microsecond, as commit timestamps are, with half a microsecond to
    spare: the low watermark of a start lies half a microsecond before it, and Spanner would refuse
    that too.
    """
    named_ns = named_start_ns(message)
    return None if named_ns is None else ceil_to_us(named_ns + HALF_MICROSECOND_NS)


def named_start_ns(message: str) -> int | None:
    """Return the earliest start that Spanner's refusal of a start names, as it stands there."""
    match = _EARLIEST.search(message)
    try:
        return parse_rfc3339(match.group(1)) if match else None
    except ValueError:
        return None


def end_of(records: Iterable[PartitionRecord]) -> int | None:
    """Return the end of a partition as its own records show it, in nanoseconds; None if none does.

    With partition_mode MUTABLE_KEY_RANGE an end record ends it, otherwise a child partitions
    record, whose children go on at that time.

    Raises:
        ValueError: the records show several ends.
    """
    ends = {
        record.end_timestamp_ns
        if isinstance(record, PartitionEndRecord)
        else record.start_timestamp_ns
        for record in records
        if isinstance(record, ChildPartitionsRecord | PartitionEndRecord)
    }
    if len(ends) > 1:
        raise ValueError(f"one partition ends at several times: {sorted(ends)}")
    return ends.pop() if ends else None
