import pytest

from slackwater.reader.query_outcome import (
    Alive,
    Finished,
    Inconclusive,
    earliest_start_ns,
    outcome_of,
)
from slackwater.reader.records import (
    ChildPartition,
    ChildPartitionsRecord,
    PartitionEndRecord,
    PartitionStartRecord,
)
from slackwater.scheduler.epoch import watermark_for_start
from slackwater.timestamp import parse_rfc3339

A = ChildPartition("a", frozenset({"p"}))
B = ChildPartition("b", frozenset({"p", "q"}))


def test_child_partitions_records_prove_that_a_partition_finished() -> None:
    records = [ChildPartitionsRecord(7, "1", (B,)), ChildPartitionsRecord(7, "2", (A,))]
    assert outcome_of(records, 9) == Finished(7)


def test_an_end_record_proves_that_a_partition_finished_and_a_start_of_others_does_not() -> None:
    start, end = PartitionStartRecord(6, "1", ("other",)), PartitionEndRecord(7, "2", "p")
    assert outcome_of([start], 9) == Alive(9)
    assert outcome_of([start, end], None) == Finished(7)


def test_ok_at_the_end_timestamp_means_alive() -> None:
    assert outcome_of([], 9) == Alive(9)


def test_ok_without_children_or_end_timestamp_is_premature() -> None:
    assert outcome_of([], None) == Inconclusive()


def test_children_that_start_at_two_times_are_a_contradiction() -> None:
    with pytest.raises(ValueError, match="several times"):
        outcome_of([ChildPartitionsRecord(7, "1", (A,)), ChildPartitionsRecord(8, "2", (B,))], 9)


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
