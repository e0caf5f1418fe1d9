"""A task reads its partitions at the same time, children after all parents, within bounds."""

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from slackwater.reader.errors import StartOutsidePartitionError, UnavailableError
from slackwater.reader.records import (
    ChildPartition,
    ChildPartitionsRecord,
)
from slackwater.reader.transport.receive_loop import wait_aside
from slackwater.scheduler.change_source import Query
from slackwater.scheduler.epoch import watermark_for_end
from slackwater.scheduler.plan import Task
from slackwater.scheduler.read_options import AuditMode, Proof, ReadOptions
from slackwater.scheduler.tasks.open_query_reporter import OpenQueryReporter
from slackwater.scheduler.tasks.partition_reader import PartitionFacts
from slackwater.scheduler.tasks.task import read_task
from slackwater.scheduler.tasks.task_attempt import TaskAttempt
from slackwater.state.errors import PlanMissingError
from slackwater.state.models import Partition, Plan, TaskCounts
from slackwater.state.plans import begin_plan, sealed_plan_id
from slackwater.state.store import Store
from slackwater.state.task_counts import read_task_counts
from tests.support.scripted_stream import ScriptedQuery, ScriptedStream, data

PLAN = Plan("plan", "orders", watermark_for_end(0), watermark_for_end(100_000))


def read_options(queries: int) -> ReadOptions:
    return ReadOptions(queries, Proof.OK, AuditMode.STOP, traces=False)


def children(time_ns: int, **parents: set[str]) -> ChildPartitionsRecord:
    return ChildPartitionsRecord(
        time_ns, "0", tuple(ChildPartition(t, frozenset(p)) for t, p in parents.items())
    )


def root(token: str) -> Partition:
    """A partition that earlier epochs have read from its start."""
    return Partition(token, 0, start_confirmed_in_epoch_ns=0)


@pytest.fixture
def store(orders_store: Store) -> Store:
    begin_plan(orders_store, PLAN, tasks=1)
    return orders_store


def rows(store: Store, stream: ScriptedStream, *roots: Partition, queries: int = 8) -> list[int]:
    store.replace_partitions("orders", roots)
    batches = read_task(
        Task(PLAN, 0, roots), store=store, source=stream, options=read_options(queries)
    )
    return [ns for batch in batches for ns in batch.column(2).cast("int64").to_pylist()]


def test_a_merge_is_read_once_after_both_parents(store: Store) -> None:
    merge = children(50_000, c={"a", "b"})
    stream = ScriptedStream(a=[data(1_000), merge], b=[data(2_000), merge], c=[data(50_000)])
    got = rows(store, stream, root("a"), root("b"))
    assert sorted(got) == [1_000, 2_000, 50_000]
    assert stream.asked[-1] == ("c", 50_000, PLAN.end_ns)
    assert [token for token, *_ in stream.asked].count("c") == 1


def test_no_query_is_opened_before_the_epochs_end_has_passed(store: Store) -> None:
    plan = Plan("ahead", "orders", 500, watermark_for_end(time.time_ns() + 100_000_000))
    begin_plan(store, plan, tasks=1)
    stream = ScriptedStream(a=[data(1_000)])
    opened_ns: list[int] = []
    stream.gate = lambda query: opened_ns.append(time.time_ns())
    store.replace_partitions("orders", [root("a")])
    task = Task(plan, 0, (root("a"),))
    (batch,) = read_task(task, store=store, source=stream, options=read_options(8))
    assert batch.num_rows == 1
    assert len(opened_ns) == 1
    assert opened_ns[0] > plan.end_ns


def test_partition_queries_run_at_the_same_time(store: Store) -> None:
    stream = ScriptedStream(**{f"p{i}": [] for i in range(6)})
    barrier = threading.Barrier(6, timeout=30)
    stream.gate = lambda query: wait_aside(barrier.wait)
    assert rows(store, stream, *(root(f"p{i}") for i in range(6))) == []
    assert stream.most == 6


def test_more_partitions_than_queries_at_once_are_all_read(store: Store) -> None:
    stream = ScriptedStream(**{f"p{i}": [data(i * 1_000)] for i in range(1, 40)})
    got = rows(store, stream, *(root(f"p{i}") for i in range(1, 40)), queries=3)
    assert sorted(got) == [i * 1_000 for i in range(1, 40)]
    assert stream.most <= 3


def test_records_outside_the_cut_are_not_delivered(store: Store) -> None:
    stream = ScriptedStream(a=[data(0), data(1_000), data(100_000), data(101_000)])
    assert rows(store, stream, root("a")) == [1_000, 100_000]


def test_a_partition_that_ended_unseen_is_read_again_from_before_its_end(store: Store) -> None:
    """The query of an earlier epoch ended with OK and without the child partitions record."""
    plan_start = 10 * 10**9
    plan = Plan("later", "orders", watermark_for_end(plan_start), watermark_for_end(2 * plan_start))
    begin_plan(store, plan, tasks=1)
    ended = plan_start - 3 * 10**9
    stream = ScriptedStream(a=[children(ended, b={"a"})], b=[data(ended), data(plan_start + 1_000)])
    store.replace_partitions("orders", [root("a")])
    batches = read_task(
        Task(plan, 0, (root("a"),)), store=store, source=stream, options=read_options(2)
    )
    assert sum(batch.num_rows for batch in batches) == 2
    known = {p.token: p for p in store.partitions("orders")}
    assert known["a"].end_timestamp_ns == ended
    assert read_task_counts(store, "later") == {0: TaskCounts(records=2, late_records=1)}


def test_no_record_is_lost_when_a_start_is_refused_although_the_partition_ends_later(
    store: Store,
) -> None:
    """The look back takes no data change records, so what lies after the start is not read."""

    class Refusing(ScriptedStream):
        def query(self, token: str, start_ns: int, end_ns: int | None, function: str = "") -> Query:
            if start_ns >= plan.start_ns:
                self.asked.append((token, start_ns, end_ns))
                raise StartOutsidePartitionError("invalid for the partition")
            return super().query(token, start_ns, end_ns, function)

    plan = replace(PLAN, plan_id="later", start_ns=PLAN.start_ns + 10**9, end_ns=2 * 10**9)
    begin_plan(store, plan, tasks=1)
    stream = Refusing(a=[data(plan.start_ns + 1_000), children(plan.end_ns - 1, b={"a"})])
    store.replace_partitions("orders", [root("a")])
    task = Task(plan, 0, (root("a"),))
    with pytest.raises(UnavailableError, match="not all of it has been read"):
        list(read_task(task, store=store, source=stream, options=read_options(2)))
    assert {p.token: p.end_timestamp_ns for p in store.partitions("orders")} == {"a": None}


def test_a_failed_query_fails_the_task_and_ends_the_others(store: Store) -> None:
    stream = ScriptedStream(a=[], b=[])
    others: list[ScriptedQuery] = []

    def gate(query: ScriptedQuery) -> None:
        if not others:
            others.append(query)
            wait_aside(lambda: query.cancelled.wait(30))
        else:
            raise UnavailableError("gone")

    stream.gate = gate
    with pytest.raises(UnavailableError, match="gone"):
        rows(store, stream, root("a"), root("b"))
    assert others[0].cancelled.is_set()


def test_a_task_that_is_dropped_ends_its_queries(store: Store) -> None:
    stream = ScriptedStream(a=[data(i * 1_000) for i in range(1, 20_000)])
    store.replace_partitions("orders", [root("a")])
    plan = Plan("long", "orders", PLAN.start_ns, watermark_for_end(10**9))
    begin_plan(store, plan, tasks=1)
    batches = read_task(
        Task(plan, 0, (root("a"),)), store=store, source=stream, options=read_options(1)
    )
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert stream.running == 0


def test_a_task_that_is_stopped_with_a_claimed_child_unread_is_not_sealed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replay has to read the child: sealed, the child would wait for the next epoch."""
    has_claimed, is_stopped = threading.Event(), threading.Event()
    finish, stop = TaskAttempt.finish, OpenQueryReporter.stop

    def finish_and_wait(
        attempt: TaskAttempt, ended: Mapping[Partition, PartitionFacts]
    ) -> list[Partition]:
        claimed = finish(attempt, ended)
        has_claimed.set()
        assert is_stopped.wait(60)
        return claimed

    def stop_last(reporter: OpenQueryReporter) -> None:
        stop(reporter)
        is_stopped.set()

    monkeypatch.setattr(TaskAttempt, "finish", finish_and_wait)
    monkeypatch.setattr(OpenQueryReporter, "stop", stop_last)
    end_us = 10_000
    records = [data(i * 1_000) for i in range(1, end_us)]
    stream = ScriptedStream(a=[*records, children(end_us * 1_000, c={"a"})], c=[])
    store.replace_partitions("orders", [root("a")])
    plan = Plan("long", "orders", PLAN.start_ns, watermark_for_end(10**9))
    begin_plan(store, plan, tasks=1)
    batches = read_task(
        Task(plan, 0, (root("a"),)), store=store, source=stream, options=read_options(1)
    )
    next(batches)
    assert has_claimed.wait(60)
    batches.close()  # type: ignore[attr-defined]
    assert [token for token, *_ in stream.asked] == ["a"]
    assert sealed_plan_id(store, "orders", plan.start_ns, plan.end_ns) is None


def test_a_task_with_another_store_is_refused(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'other.db'}", migrate=True)
    with pytest.raises(PlanMissingError, match="executor"):
        next(
            read_task(
                Task(PLAN, 0, ()), store=store, source=ScriptedStream(), options=read_options(1)
            )
        )
    store.close()
