from collections.abc import Sequence

import pytest

from slackwater.reader.query_outcome import earliest_start_ns, end_of
from slackwater.reader.records import (
    ChildPartition,
    ChildPartitionsRecord,
    PartitionEndRecord,
    PartitionRecord,
    PartitionStartRecord,
)
from slackwater.scheduler.epoch import watermark_for_start
from slackwater.timestamp import parse_rfc3339

A = ChildPartition("a", frozenset({"p"}))
B = ChildPartition("b", frozenset({"p", "q"}))


START, END = PartitionStartRecord(6, "1", ("other",)), PartitionEndRecord(7, "2", "p")


@pytest.mark.parametrize(
    ("records", "end_ns"),
    [
        ([ChildPartitionsRecord(7, "1", (B,)), ChildPartitionsRecord(7, "2", (A,))], 7),
        ([START, END], 7),
        # The start of others says nothing of this one.
        ([START], None),
        ([], None),
    ],
)
def test_a_partition_ends_where_its_own_records_say(
    records: Sequence[PartitionRecord], end_ns: int | None
) -> None:
    assert end_of(records) == end_ns


def test_children_that_start_at_two_times_are_a_contradiction() -> None:
    with pytest.raises(ValueError, match="several times"):
        end_of([ChildPartitionsRecord(7, "1", (A,)), ChildPartitionsRecord(8, "2", (B,))])


# As the emulator answered.
TOO_OLD = (
    "Specified start_timestamp is too far in the past. Please specify a start_timestamp within the"
    " earliest read timestamp: 2026-11-21T02:39:07.337992527+00:00. Received start_timestamp:"
    " 2020-01-01T00:00:00+00:00."
)


def test_the_earliest_possible_start_is_read_from_the_message() -> None:
    assert earliest_start_ns(TOO_OLD) == parse_rfc3339("2026-11-21T02:39:07.337994Z")
    assert earliest_start_ns("Specified start_timestamp is invalid for the partition.") is None


@pytest.mark.parametrize("nanoseconds", [0, 1, 499, 500, 501, 999])
def test_the_low_watermark_before_the_earliest_start_is_not_refused_again(nanoseconds: int) -> None:
    named = f"2026-11-21T02:39:07.337992{nanoseconds:03}Z"
    start_ns = earliest_start_ns(f"the earliest read timestamp: {named}. Received: x")
    assert start_ns is not None
    assert watermark_for_start(start_ns) >= parse_rfc3339(named)
    assert start_ns - parse_rfc3339(named) < 1_500
