"""Auditing by column finds what auditing one by one finds; the cut is kept both ways."""

import random
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.decode.arrow import data_columns
from slackwater.reader.query.rows import Rows
from slackwater.reader.records import DataChangeRecord, HeartbeatRecord
from slackwater.scheduler.audit import PartialTransactions, PartitionAudit, task_counts
from slackwater.scheduler.epoch import Cut, cut_of
from slackwater.scheduler.tasks import cut_filter as module
from slackwater.scheduler.tasks.cut_filter import CutFilter, audit_rows
from slackwater.state.models import Plan, TaskCounts
from tests.unit.scheduler.test_audit import PLAN, make_epoch, record, shapes

LATE_PLAN = Plan("plan", "orders", 2_500, 100_500)


def rows(records: list[DataChangeRecord], *, is_partition: bool = True) -> Rows:
    """Return rows of a partition, all or some, amid others of the same transactions."""
    before, after = records[:1], records[-1:]
    batch = data_columns([*before, *records, *after])
    begin, end = len(before), len(before) + len(records)
    begins = [begin, end] if is_partition else []
    return Rows.of(batch, np.array([0, *begins])).part(begin, end)


def audited(
    plan: Plan,
    batches: list[list[DataChangeRecord]],
    *,
    by_column: bool,
    is_partition: bool = True,
) -> TaskCounts:
    partial_transactions = PartialTransactions()
    audit = PartitionAudit("p", cut_of(plan), partial_transactions)
    for batch in batches:
        if by_column:
            audit_rows(audit, rows(batch, is_partition=is_partition))
        else:
            audit.feed(batch)
    audit.end()
    return task_counts([audit], partial_transactions)


def split(records: list[DataChangeRecord], choose: random.Random) -> list[list[DataChangeRecord]]:
    batches = []
    while records:
        size = choose.randint(1, len(records))
        batches.append(records[:size])
        records = records[size:]
    return batches


@given(shapes, st.sampled_from([PLAN, LATE_PLAN]), st.randoms(use_true_random=False))
def test_whole_and_broken_partitions_get_the_same_verdict(
    shape: list[list[int]], plan: Plan, choose: random.Random
) -> None:
    records = make_epoch(shape)[0]
    for _ in range(choose.choice((0, 0, 1, 2))):
        if not records:
            break
        disturb(records, choose.choice(WAYS), *(choose.randrange(len(records)) for _ in "12"))
    require_same_verdict(plan, split(records, choose))


OF_TWO_RECORDS = ("swap", "time")
WAYS = (*OF_TWO_RECORDS, "drop", "double", "open", "states", "torn")


def disturb(records: list[DataChangeRecord], way: str, at: int, other: int) -> None:
    """Break a promise of the change stream at a record."""
    match way:
        case "drop":
            del records[at]
        case "double":
            records.insert(at, records[at])
        case "swap":
            records[at], records[other] = records[other], records[at]
        case "open":
            flag = records[at].is_last_record_in_transaction_in_partition
            records[at] = records[at]._replace(is_last_record_in_transaction_in_partition=not flag)
        case "states":
            records[at] = records[at]._replace(number_of_records_in_transaction=9)
        case "time":
            at_ns = records[other].commit_timestamp_ns
            records[at] = records[at]._replace(commit_timestamp_ns=at_ns)
        case "torn":
            records[at] = records[at]._replace(is_last_record_in_transaction_in_partition=True)
            records[-1] = records[-1]._replace(commit_timestamp_ns=90_000)


def require_same_verdict(plan: Plan, batches: list[list[DataChangeRecord]]) -> None:
    one_by_one = audited(plan, batches, by_column=False)
    for is_partition in (True, False):
        by_column = audited(plan, batches, by_column=True, is_partition=is_partition)
        assert by_column.violations == one_by_one.violations
        if not one_by_one.violations:
            key = TaskCounts(by_column.records, by_column.late_records)
            assert key == TaskCounts(one_by_one.records, one_by_one.late_records)
            assert set(by_column.partial_transactions) == set(one_by_one.partial_transactions)


@pytest.mark.parametrize("way", WAYS)
def test_each_broken_record_in_the_middle_gets_the_same_verdict(way: str) -> None:
    whole = make_epoch([[2, 0], [3, 0], [2, 1], [1, 0], [1, 2], [2, 0]])[0]
    others = range(len(whole) if way in OF_TWO_RECORDS else 1)
    for at, other in product(range(len(whole)), others):
        records = list(whole)
        disturb(records, way, at, other)
        for begin in (0, 1):
            require_same_verdict(PLAN, [records[begin:]])


def test_what_is_usual_is_audited_by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the property above would compare the plain way with itself."""
    one_by_one = []
    plain = module._feed_each

    def noted(audit: PartitionAudit, rows: Rows) -> None:
        one_by_one.append(len(rows))
        plain(audit, rows)

    monkeypatch.setattr(module, "_feed_each", noted)
    records = make_epoch([[3, 2, 0, 0]] * 50 + [[4, 0, 0, 0]] * 50)[0]
    found = audited(PLAN, [records], by_column=True)
    assert found.records == len(records)
    assert len(found.partial_transactions) == 50
    assert sum(one_by_one) == 4, "only the last transaction may go on in another batch"


def test_rows_outside_the_cut_are_neither_delivered_nor_audited() -> None:
    partial_transactions = PartialTransactions()
    audit = PartitionAudit("p", cut_of(PLAN), partial_transactions)
    consumer = CutFilter("p", Cut(1_500, 3_500), audit)
    records = [record(t, 0, records=1, partitions=1, is_last=True) for t in (1, 2, 3, 4)]
    inside = consumer.take_rows(rows(records))
    assert inside is not None
    assert inside.tolist() == [False, True, True, False]
    assert consumer.take_rows(rows(records[1:3])) is None
    assert consumer.take_records([*records, HeartbeatRecord(3_000)]) == records[1:3]
    assert consumer.is_done, "the last record lies after the cut"
    assert audit.records == 6


def test_without_an_audit_nothing_is_delivered() -> None:
    consumer = CutFilter("p", Cut(500, 9_500), None)
    records = [record(1, 0, records=1, partitions=1, is_last=True)]
    inside = consumer.take_rows(rows(records))
    assert inside is not None
    assert not inside.any()
    assert consumer.take_records(records) == ()
