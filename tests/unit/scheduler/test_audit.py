"""The audit: whole epochs pass, and whatever is missing, doubled or misplaced is found."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.records import DataChangeRecord
from slackwater.scheduler.audit import (
    PartialTransactions,
    PartitionAudit,
    SinkCounts,
    audit_epoch,
    task_counts,
)
from slackwater.scheduler.epoch import cut_of
from slackwater.state.models import Gap, Plan, TaskCounts

PLAN = Plan("plan", "orders", 500, 100_500)
# Of each partition the records in commit order; the partitions of a task.
Epoch = list[list[DataChangeRecord]]


def record(
    transaction: int, sequence: int, *, records: int, partitions: int, is_last: bool
) -> DataChangeRecord:
    return DataChangeRecord(
        transaction * 1_000,
        f"t{transaction}",
        f"{sequence:08}",
        is_last,
        "T",
        (),
        (),
        "INSERT",
        "NEW_ROW",
        records,
        partitions,
        "",
        False,
    )


def make_epoch(shapes: list[list[int]]) -> Epoch:
    """Transactions 1, 2, ...: of each, how many records lie in which partition."""
    partitions = max(map(len, shapes))
    epoch: Epoch = [[] for _ in range(partitions)]
    for number, shape in enumerate(shapes, start=1):
        counts = [count for count in shape if count]
        sequence = 0
        for partition, count in enumerate(shape):
            for i in range(count):
                epoch[partition].append(
                    record(
                        number,
                        sequence,
                        records=sum(counts),
                        partitions=len(counts),
                        is_last=i == count - 1,
                    )
                )
                sequence += 1
    return epoch


def audit(epoch: Epoch, *, tasks: int = 2, written: int | None = None) -> list[str]:
    """As a plan's tasks and then the daemon do."""
    counts_by_task = {}
    for task in range(tasks):
        audits = []
        partial_transactions = PartialTransactions()
        for token, records in enumerate(epoch):
            if token % tasks == task:
                audits.append(PartitionAudit(f"p{token}", cut_of(PLAN), partial_transactions))
                audits[-1].feed(records)
                audits[-1].end()
        counts_by_task[task] = task_counts(audits, partial_transactions)
    times = [r.commit_timestamp_ns for records in epoch for r in records]
    count = len(times) if written is None else written
    seen = SinkCounts(count, min(times, default=None), max(times, default=None))
    return audit_epoch(PLAN, counts_by_task, seen, low_watermark_ns=500)


shapes = st.lists(
    st.lists(st.integers(0, 3), min_size=4, max_size=4).filter(any), min_size=1, max_size=8
)


@given(shapes, st.integers(1, 3))
def test_a_whole_epoch_passes_however_it_is_spread(given: list[list[int]], tasks: int) -> None:
    assert audit(make_epoch(given), tasks=tasks) == []


@given(shapes, st.integers(1, 3), st.randoms())
def test_a_record_that_is_missing_or_comes_twice_is_found(
    given: list[list[int]], tasks: int, choose: random.Random
) -> None:
    for doubled in (False, True):
        epoch = make_epoch(given)
        partition = choose.choice([records for records in epoch if records])
        index = choose.randrange(len(partition))
        if doubled:
            partition.insert(index, partition[index])
        elif partition[index].number_of_records_in_transaction > 1:
            del partition[index]
        else:
            # Nothing that is left speaks of a transaction of one record.
            continue
        assert audit(epoch, tasks=tasks), "the audit passed a torn epoch"


@given(shapes, st.randoms())
def test_a_partition_that_is_missing_altogether_is_found_where_others_share_transactions(
    given: list[list[int]], choose: random.Random
) -> None:
    epoch = make_epoch(given)
    shared = [
        number
        for number, records in enumerate(epoch)
        if any(r.number_of_partitions_in_transaction > 1 for r in records)
    ]
    if shared:
        epoch[choose.choice(shared)] = []
        assert audit(epoch)


def test_rows_that_the_sink_lost_or_doubled_are_found() -> None:
    epoch = make_epoch([[2, 1]])
    assert audit(epoch, written=2) == ["the epoch's tasks read 3 record(s) and 2 were written"]
    assert audit(epoch, written=4)


@pytest.mark.parametrize(("time_us", "side"), [(0, "before"), (101, "after")])
def test_a_record_outside_the_cut_is_found(time_us: int, side: str) -> None:
    ns = time_us * 1_000
    counts_by_task = {0: TaskCounts(records=1)}
    broken = audit_epoch(PLAN, counts_by_task, SinkCounts(1, ns, ns), low_watermark_ns=None)
    assert [side in text for text in broken] == [True]


def test_a_low_watermark_that_would_go_back_is_found() -> None:
    broken = audit_epoch(PLAN, {}, SinkCounts(0, None, None), low_watermark_ns=200_500)
    assert "would go back" in broken[0]


@pytest.mark.parametrize(
    ("low_watermark_ns", "violation"),
    [
        (PLAN.start_ns, None),
        (PLAN.end_ns, None),
        (PLAN.start_ns + 1, "would repeat"),
        (PLAN.start_ns - 1, "would leave out"),
    ],
)
def test_an_epoch_has_to_go_on_where_the_last_one_ends(
    low_watermark_ns: int, violation: str | None
) -> None:
    broken = audit_epoch(PLAN, {}, SinkCounts(0, None, None), low_watermark_ns=low_watermark_ns)
    assert [violation in text for text in broken if violation] == ([True] if violation else [])
    assert bool(broken) == (violation is not None)


def test_an_epoch_may_begin_after_an_accepted_gap() -> None:
    gap = Gap("orders", PLAN.start_ns - 400, PLAN.start_ns, 0)
    nothing = SinkCounts(0, None, None)
    for low_watermark_ns, is_allowed in ((gap.start_ns, True), (gap.start_ns - 1, False)):
        broken = audit_epoch(PLAN, {}, nothing, low_watermark_ns=low_watermark_ns, gaps=[gap])
        assert (not broken) is is_allowed


def test_what_is_found_names_partition_and_transaction_and_no_values() -> None:
    partial_transactions = PartialTransactions()
    audited = PartitionAudit("p7", cut_of(PLAN), partial_transactions)
    audited.feed([record(3, 0, records=2, partitions=1, is_last=True)])
    audited.end()
    assert task_counts([audited], partial_transactions).violations == (
        "partition p7, 1970-01-01T00:00:00.000003Z: transaction t3 has 1 record(s) in 1"
        " partition(s) instead of 2 in 1",
    )
