"""How a partition query ended, and what OUT_OF_RANGE means: decided here and nowhere else.

A query ends in one of three ways: its child partitions records were seen (finished), its
end_timestamp was reached (alive), or neither can be shown (inconclusive: query again). Taking one
for another is how readers lost partitions or looped (debezium/debezium-connector-spanner pull
requests 172 and 175, apache/beam issue 40232).

Spanner answers OUT_OF_RANGE for records lost to retention, for a start in the future and for a
start after the partition's end alike; only its message tells them apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from slackwater.reader.records import ChildPartition, ChildPartitionsRecord
from slackwater.timestamp import HALF_MICROSECOND_NS, ceil_to_us, parse_rfc3339


class OutOfRange(Enum):
    """What an OUT_OF_RANGE answer means."""

    START_TOO_OLD = auto()
    START_IN_FUTURE = auto()
    START_OUTSIDE_PARTITION = auto()
    UNKNOWN = auto()


_MEANINGS = (
    ("too far in the past", OutOfRange.START_TOO_OLD),
    ("too far in the future", OutOfRange.START_IN_FUTURE),
    ("invalid for the partition", OutOfRange.START_OUTSIDE_PARTITION),
)
_EARLIEST = re.compile(r"earliest read timestamp: (\S+?)[.,]?(?:\s|$)")


def out_of_range(message: str) -> OutOfRange:
    """The meaning of an OUT_OF_RANGE answer, by Spanner's message."""
    return next(
        (meaning for text, meaning in _MEANINGS if text in message.lower()), OutOfRange.UNKNOWN
    )


def earliest_start_ns(message: str) -> int | None:
    """The earliest start that the message of a refused one leaves open, in nanoseconds, if any.

    A whole microsecond, as commit timestamps are, with half of one to spare: a low watermark lies
    half a microsecond before its start, and Spanner would refuse that too.
    """
    match = _EARLIEST.search(message)
    try:
        named_ns = parse_rfc3339(match.group(1)) if match else None
    except ValueError:
        return None
    return None if named_ns is None else ceil_to_us(named_ns + HALF_MICROSECOND_NS)


@dataclass(frozen=True, slots=True)
class Finished:
    """The partition ended at end_timestamp_ns and handed over to these partitions."""

    end_timestamp_ns: int
    children: tuple[ChildPartition, ...]


@dataclass(frozen=True, slots=True)
class Alive:
    """The partition was read through its query's end_timestamp and goes on."""

    through_ns: int


@dataclass(frozen=True, slots=True)
class Inconclusive:
    """The query ended with nothing to show for it: query again."""


QueryOutcome = Finished | Alive | Inconclusive


def outcome_of(
    child_partitions_records: Sequence[ChildPartitionsRecord], end_timestamp_ns: int | None
) -> QueryOutcome:
    """What a query that ended with status OK has shown.

    Args:
        child_partitions_records: all that the query returned.
        end_timestamp_ns: the query's end_timestamp, None where it had none.

    Raises:
        ValueError: child partitions records of one partition with several start timestamps.
    """
    if child_partitions_records:
        starts = {record.start_timestamp_ns for record in child_partitions_records}
        if len(starts) > 1:
            raise ValueError(f"one partition's children start at several times: {sorted(starts)}")
        children = {
            child.token: child
            for record in child_partitions_records
            for child in record.child_partitions
        }
        return Finished(starts.pop(), tuple(children[token] for token in sorted(children)))
    if end_timestamp_ns is not None:
        return Alive(end_timestamp_ns)
    return Inconclusive()
