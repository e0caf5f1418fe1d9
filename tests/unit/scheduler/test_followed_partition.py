"""A followed partition gives out each record once, and only when no more will come."""

import sys
from collections.abc import Sequence
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.decode.arrow import data_columns
from slackwater.reader.query.rows import Rows
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartition,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    Mod,
    PartitionEndRecord,
)
from slackwater.scheduler.continuous.followed_partition import FollowedPartition, Portion

STEP_NS = 1_000


def data(step: int, number: int = 0) -> DataChangeRecord:
    mods = (Mod('{"K": 1}', '{"V": "x"}', None),)
    time_ns = step * STEP_NS
    return DataChangeRecord(
        time_ns, "t", f"{number}", True, "T", (), mods, "INSERT", "NEW_ROW", 1, 1, "", False
    )


def children(step: int) -> ChildPartitionsRecord:
    child = ChildPartition("child", frozenset({"p"}))
    return ChildPartitionsRecord(step * STEP_NS, "0", (child,))


def rows(records: Sequence[DataChangeRecord]) -> Rows:
    return Rows.of(data_columns(records))


def watermark(step: int) -> int:
    return step * STEP_NS + STEP_NS // 2


def sequences(portion: Portion) -> list[str]:
    """The record_sequence of each data change record, in order."""
    batches = [*portion.rows]
    if portion.records:
        batches.append(data_columns(portion.records))
    whole = pa.Table.from_batches(batches) if batches else None
    return [] if whole is None else whole.column("record_sequence").to_pylist()


@pytest.fixture
def partition() -> FollowedPartition:
    return FollowedPartition("p", watermark(0))


@given(st.lists(st.integers(1, 12), max_size=12).map(sorted), st.integers(0, 2**32))
def test_the_portions_of_epochs_are_the_records_of_their_cuts(steps: list[int], seed: int) -> None:
    choose = Random(seed)
    truth = [data(step, number) for number, step in enumerate(steps)]
    partition = FollowedPartition("p", watermark(0))
    taken: list[str] = []
    sent = reached = 0
    while reached < 13:
        piece = truth[sent : sent + choose.randrange(4)]
        sent += len(piece)
        if piece and choose.random() < 0.5:
            partition.take_rows(rows(piece))
        elif piece:
            partition.take_records(piece)
        elif choose.random() < 0.5:
            # All records before the next one have come.
            next_ns = truth[sent].commit_timestamp_ns if sent < len(truth) else 14 * STEP_NS
            partition.take_records([HeartbeatRecord(next_ns - 1)])
        if choose.random() < 0.2:
            partition.compact()
        if choose.random() < 0.1:
            # Another query goes on.
            from_ns = partition.drop_incomplete()
            sent = sum(record.commit_timestamp_ns < from_ns for record in truth)
        end = choose.randint(reached, 13)
        start_ns, end_ns = watermark(reached), watermark(end)
        if partition.is_complete_through(end_ns):
            portion = partition.portion(start_ns, end_ns)
            assert portion == partition.portion(start_ns, end_ns), "a second attempt gets it again"
            taken += sequences(portion)
            partition.drop_before(end_ns)
            reached = end
    assert taken == [record.record_sequence for record in truth]
    assert partition.covers(watermark(13))


def test_a_record_does_not_show_that_no_other_one_has_its_time(
    partition: FollowedPartition,
) -> None:
    partition.take_records([data(5)])
    assert partition.is_complete_through(watermark(4))
    assert not partition.is_complete_through(watermark(5))
    partition.take_rows(rows([data(6)]))
    assert partition.is_complete_through(watermark(5))
    assert not partition.is_complete_through(watermark(6))
    partition.take_records([HeartbeatRecord(7 * STEP_NS)])
    assert partition.is_complete_through(7 * STEP_NS)


def test_a_partition_that_has_ended_is_complete_for_all_time(partition: FollowedPartition) -> None:
    partition.take_records([data(1), children(3)])
    assert not partition.is_complete_through(watermark(3)), "other children may be announced"
    assert partition.end()
    assert partition.is_complete_through(sys.maxsize)
    assert partition.portion(watermark(0), watermark(2)).others == ()
    assert partition.portion(watermark(0), watermark(3)).others == (children(3),)


def test_it_does_not_answer_for_a_start_after_the_partitions_end(
    partition: FollowedPartition,
) -> None:
    """Its answer would be empty, and say that the partition is alive."""
    partition.take_records([data(1), children(3)])
    # The end is seen before the query has ended.
    assert not partition.covers(watermark(3))
    partition.end()
    assert partition.covers(3 * STEP_NS)
    assert not partition.covers(watermark(3))


def test_the_end_of_a_query_alone_does_not_show_the_partitions_end(
    partition: FollowedPartition,
) -> None:
    partition.take_records([data(1)])
    assert not partition.end()
    assert not partition.is_complete_through(watermark(1))
    partition.take_records([PartitionEndRecord(2 * STEP_NS, "0", "p")])
    assert partition.end()


@given(st.integers(1, 9), st.booleans(), st.booleans())
def test_a_record_out_of_order_makes_it_useless(
    step: int, first_by_column: bool, second_by_column: bool
) -> None:
    partition = FollowedPartition("p", watermark(0))
    for record, by_column in ((data(10), first_by_column), (data(step), second_by_column)):
        if by_column:
            partition.take_rows(rows([record]))
        else:
            partition.take_records([record])
    assert not partition.covers(watermark(0))


@pytest.mark.parametrize(
    "sent",
    [
        [[PartitionEndRecord(2 * STEP_NS, "0", "p")], rows([data(2)])],
        [[PartitionEndRecord(2 * STEP_NS, "0", "q")]],
        [rows([data(3), data(2), data(4)])],
    ],
    ids=["records after its end", "another one's end", "rows out of order among themselves"],
)
def test_what_spanner_does_not_send_makes_it_useless(
    partition: FollowedPartition, sent: Sequence[Rows | list[ChangeRecord]]
) -> None:
    for one in sent:
        assert partition.covers(watermark(0))
        if isinstance(one, Rows):
            partition.take_rows(one)
        else:
            partition.take_records(one)
    assert not partition.covers(watermark(0))


def test_what_was_dropped_is_not_covered_and_takes_no_memory(partition: FollowedPartition) -> None:
    partition.take_rows(rows([data(1), data(2)]))
    partition.take_records([data(3)])
    full_bytes = partition.size_bytes
    partition.drop_before(watermark(2))
    assert partition.covers(watermark(2))
    assert not partition.covers(watermark(1))
    assert 0 < partition.size_bytes < full_bytes
    partition.drop_before(watermark(3))
    assert partition.size_bytes == 0


def test_a_partition_does_not_keep_the_memory_of_its_neighbours(
    partition: FollowedPartition,
) -> None:
    text = "x" * 1_000_000
    large = [data(step)._replace(server_transaction_id=text) for step in range(1, 11)]
    before = pa.total_allocated_bytes()
    all_rows = rows(large)
    partition.take_rows(all_rows.part(0, 1))
    del all_rows
    assert pa.total_allocated_bytes() - before > 10_000_000
    partition.compact()
    assert pa.total_allocated_bytes() - before < 2_000_000
    assert sequences(partition.portion(watermark(0), watermark(1))) == ["0"]


def test_several_records_may_share_a_time(partition: FollowedPartition) -> None:
    records: list[ChangeRecord] = [data(1, 0), data(1, 1)]
    partition.take_records(records)
    partition.take_rows(rows([data(1, 2), data(2, 3)]))
    assert partition.covers(watermark(0))
    assert sequences(partition.portion(watermark(0), watermark(1))) == ["0", "1", "2"]
