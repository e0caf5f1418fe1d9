"""Partitions with mutable key ranges in the metadata store, on every kind of store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest

from slackwater.state.commit import commit_epoch, restart_at
from slackwater.state.errors import ContradictionError, LeaseLostError, LineageMissingError
from slackwater.state.lease import acquire_lease, read_lease
from slackwater.state.models import MoveCounts, MutablePartition, Partition, Plan, TaskCounts
from slackwater.state.mutable_lineage import (
    MutableTransaction,
    lineage_since_ns,
    partitions_with_mutable_ranges,
    remove_mutable_partitions,
    run_mutable,
)
from slackwater.state.plans import begin_plan
from slackwater.state.store import Store
from slackwater.state.task_counts import read_task_counts
from tests.stores import STORES

A = MutablePartition("a", 500)
B = MutablePartition("b", 500)
# The token of another partition, under the function of a placement.
ELSEWHERE = MutablePartition("a", 500, function="europe")
NEW = MutablePartition("new", 2_000)
PLAN = Plan("p1", "orders", 500, 10_500)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, new_store_url: Callable[[str], str]) -> Iterator[Store]:
    opened = Store.open(new_store_url(request.param), migrate=True)
    opened.ensure_pipeline("orders", "stream")
    opened.replace_partitions("orders", [A, B, ELSEWHERE])
    yield opened
    opened.close()


def record(transaction: MutableTransaction, *announced: MutablePartition) -> None:
    recorded = transaction.mutable_partitions("orders", [p.key for p in announced])
    transaction.record_starts("orders", announced, recorded)


def test_a_token_may_be_two_partitions_of_two_functions(store: Store) -> None:
    assert partitions_with_mutable_ranges(store, "orders") == [A, B, ELSEWHERE]
    assert store.all_partitions("orders") == [A, B, ELSEWHERE]
    run_mutable(store, lambda t: t.record_mutable_ends("orders", {ELSEWHERE.key: 9_000}))
    ended = replace(ELSEWHERE, end_timestamp_ns=9_000)
    assert partitions_with_mutable_ranges(store, "orders") == [A, B, ended]
    remove_mutable_partitions(store, "orders", [A.key], 700)
    assert partitions_with_mutable_ranges(store, "orders") == [B, ended]
    assert lineage_since_ns(store, "orders") == 700
    remove_mutable_partitions(store, "orders", [B.key], 600)
    assert lineage_since_ns(store, "orders") == 700


def test_a_lineage_of_the_other_kind_replaces_it_and_is_replaced(store: Store) -> None:
    assert lineage_since_ns(store, "orders") == 500
    store.replace_partitions("orders", [Partition("a", 700)])
    assert store.all_partitions("orders") == [Partition("a", 700)]
    assert lineage_since_ns(store, "orders") is None
    restart_at(store, "orders", 900, [MutablePartition("b", 900)])
    assert store.all_partitions("orders") == [MutablePartition("b", 900)]
    assert lineage_since_ns(store, "orders") == 900
    restart_at(store, "orders", 1_500, [])
    assert (store.all_partitions("orders"), lineage_since_ns(store, "orders")) == ([], None)


def test_a_start_is_recorded_once_and_two_starts_contradict(store: Store) -> None:
    for _ in range(2):
        run_mutable(store, lambda t: record(t, NEW, A))
    assert partitions_with_mutable_ranges(store, "orders") == [A, B, ELSEWHERE, NEW]
    other = replace(NEW, start_timestamp_ns=3_000)
    with pytest.raises(ContradictionError, match="partition new starts at 2000 and at 3000"):
        run_mutable(store, lambda t: record(t, other))


def test_two_ends_contradict_and_an_end_needs_its_partition(store: Store) -> None:
    for _ in range(2):
        run_mutable(store, lambda t: t.record_mutable_ends("orders", {A.key: 9_000}))
    with pytest.raises(ContradictionError, match="partition a ended at 9000 and at 9500"):
        run_mutable(store, lambda t: t.record_mutable_ends("orders", {A.key: 9_500}))
    with pytest.raises(LineageMissingError, match="partition new "):
        run_mutable(store, lambda t: t.record_mutable_ends("orders", {NEW.key: 9_000}))


def test_a_commit_confirms_what_its_plan_has_read_from_the_start_and_to_the_end(
    store: Store,
) -> None:
    begin_plan(store, PLAN, tasks=1)

    def work(transaction: MutableTransaction) -> None:
        record(transaction, NEW)
        transaction.add_claims("p1", [A.key, ELSEWHERE.key, NEW.key], 0)
        transaction.record_mutable_ends("orders", {A.key: 9_000, B.key: 9_000})
        transaction.observe_ends("p1", [A.key])
        transaction.seal_task("p1", 0, TaskCounts())

    run_mutable(store, work)
    assert run_mutable(store, lambda t: t.claims("p1", [A.key, B.key])) == {A.key: 0}
    assert run_mutable(store, lambda t: t.observed_mutable_ends("p1")) == {A.key}
    assert commit_epoch(store, "orders", 10_500)
    assert partitions_with_mutable_ranges(store, "orders") == [
        MutablePartition("a", 500, frozenset(), 9_000, 500, 500),
        MutablePartition("b", 500, frozenset(), 9_000),
        replace(ELSEWHERE, start_confirmed_in_epoch_ns=500),
        replace(NEW, start_confirmed_in_epoch_ns=500),
    ]
    # A later epoch confirms an end, and leaves what is confirmed.
    begin_plan(store, Plan("p2", "orders", 10_500, 20_500), tasks=1)
    run_mutable(store, lambda t: t.observe_ends("p2", [A.key, B.key]))
    run_mutable(store, lambda t: t.seal_task("p2", 0, TaskCounts()))
    assert commit_epoch(store, "orders", 20_500)
    confirmed = {p.label: p.end_confirmed_in_epoch_ns for p in store.all_partitions("orders")}
    assert confirmed == {"a": 500, "b": 10_500, "europe:a": None, "new": None}


def test_tasks_that_claim_a_partition_at_the_same_moment_claim_it_once(store: Store) -> None:
    tasks = 4
    begin_plan(store, PLAN, tasks=tasks)
    together = Barrier(tasks)

    def claim(task: int) -> None:
        is_first = True

        def work(transaction: MutableTransaction) -> None:
            nonlocal is_first
            recorded = transaction.mutable_partitions("orders", [NEW.key])
            claimed = transaction.claims("p1", [NEW.key])
            if is_first and store.url.startswith("postgresql"):
                # All have seen that nobody has. The others run one transaction after the other.
                is_first = False
                together.wait(240)
            transaction.record_starts("orders", [NEW], recorded)
            if not claimed:
                transaction.add_claims("p1", [NEW.key], task)

        run_mutable(store, work)

    with ThreadPoolExecutor(tasks) as pool:
        list(pool.map(claim, range(tasks)))
    assert list(run_mutable(store, lambda t: t.claims("p1"))) == [NEW.key]
    assert partitions_with_mutable_ranges(store, "orders") == [A, B, ELSEWHERE, NEW]


def test_the_moves_of_a_task_are_stored_with_its_counts(store: Store) -> None:
    begin_plan(store, PLAN, tasks=2)
    moves = (MoveCounts(0, 2, 1, 2**63 - 1), MoveCounts(10**9, 0, 1, 5))
    for counts in (TaskCounts(moves=moves[:1]), TaskCounts(3, moves=moves)):
        run_mutable(store, lambda t, c=counts: t.seal_task("p1", 0, c))  # type: ignore[misc]
    run_mutable(store, lambda t: t.seal_task("p1", 1, TaskCounts(1)))
    assert read_task_counts(store, "p1") == {0: TaskCounts(3, moves=moves), 1: TaskCounts(1)}


def test_a_former_owner_removes_no_partitions(store: Store) -> None:
    former = acquire_lease(store, "orders", "former", read_lease(store, "orders"))
    assert former is not None
    assert acquire_lease(store, "orders", "owner", read_lease(store, "orders")) is not None
    with pytest.raises(LeaseLostError):
        remove_mutable_partitions(store, "orders", [A.key], 700, generation=former.generation)
    assert store.all_partitions("orders") == [A, B, ELSEWHERE]
