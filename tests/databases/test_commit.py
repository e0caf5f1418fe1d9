"""The pipeline's low watermark in the store: how it rises, and how it is set back."""

import pytest

from slackwater.state.commit import commit_epoch, restart_at
from slackwater.state.epochs import last_epochs, record_epoch
from slackwater.state.errors import PlanMissingError
from slackwater.state.models import Epoch, Partition, Plan, TaskCounts
from slackwater.state.plans import begin_plan, sealed_plan_id
from slackwater.state.store import Store

A = Partition("a", 0)
B = Partition("b", 0)
C = Partition("c", 10, frozenset({"a", "b"}))


def test_a_low_watermark_never_goes_back(store: Store) -> None:
    for end_ns in (5, 10):
        begin_plan(store, Plan(f"p{end_ns}", "orders", 0, end_ns), tasks=0)
    assert commit_epoch(store, "orders", 10)
    assert commit_epoch(store, "orders", 5)
    begin_plan(store, Plan("p1", "orders", 0, 20), tasks=1)
    begin_plan(store, Plan("p2", "orders", 0, 15), tasks=1)
    known = store.pipeline("orders")
    assert known is not None
    assert (known.low_watermark_ns, known.planned_watermark_ns) == (10, 20)


def test_a_store_without_the_tasks_facts_commits_nothing(store: Store) -> None:
    """It was restored from a backup: its partitions are older than the epoch."""
    assert not commit_epoch(store, "orders", 7)
    begin_plan(store, Plan("p1", "orders", 0, 7), tasks=2)
    store.run(lambda t: t.seal_task("p1", 0, TaskCounts()))
    assert not commit_epoch(store, "orders", 7)
    known = store.pipeline("orders")
    assert known is not None
    assert known.low_watermark_ns is None
    store.run(lambda t: t.seal_task("p1", 1, TaskCounts()))
    assert commit_epoch(store, "orders", 7)


def test_a_restart_leaves_nothing_of_what_the_store_had_after_it(store: Store) -> None:
    store.replace_partitions("orders", [A, B])
    for start_ns, end_ns in ((0, 10), (10, 20)):
        begin_plan(store, Plan(f"p{end_ns}", "orders", start_ns, end_ns), tasks=1)
        store.run(lambda t, p=f"p{end_ns}": t.seal_task(p, 0, TaskCounts()))  # type: ignore[misc]
        commit_epoch(store, "orders", end_ns)
        record_epoch(store, Epoch("orders", start_ns, end_ns, 1, 1, 1, 0, 1.0))
    restart_at(store, "orders", 10, [C])
    assert store.partitions("orders") == [C]
    known = store.pipeline("orders")
    assert known is not None
    assert (known.low_watermark_ns, known.planned_watermark_ns) == (10, 10)
    assert [epoch.end_ns for epoch in last_epochs(store, "orders", limit=9)] == [10]
    # A replay of the cut need not match a plan from before the restart.
    assert sealed_plan_id(store, "orders", 10, 20) is None
    with pytest.raises(PlanMissingError):
        store.run(lambda t: t.lock_task(Plan("p20", "orders", 10, 20), 0))
