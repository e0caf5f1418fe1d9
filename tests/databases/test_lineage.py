"""Partitions with mutable key ranges in the metadata store, on every kind of store."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest

from slackwater.scheduler.lineage import unfinished
from slackwater.scheduler.lineage_planning import count_alive
from slackwater.state.commit import commit_epoch, restart_at
from slackwater.state.errors import ContradictionError, LeaseLostError, LineageMissingError
from slackwater.state.lease import acquire_lease, read_lease
from slackwater.state.lineage_rows import add_partitions
from slackwater.state.models import MoveCounts, Partition, Plan, TaskCounts
from slackwater.state.plans import begin_plan
from slackwater.state.store import Store
from slackwater.state.task_counts import read_task_counts
from slackwater.state.transaction import Transaction

A = Partition("a", 500)
B = Partition("b", 500)
# The token of another partition, under the function of a placement.
ELSEWHERE = Partition("a", 500, function="europe")
NEW = Partition("new", 2_000)
PLAN = Plan("p1", "orders", 500, 10_500)


@pytest.fixture
def store(store: Store) -> Store:
    store.replace_partitions("orders", [A, B, ELSEWHERE])
    return store


def since_ns(store: Store) -> int | None:
    return store.run(lambda t: t.starts_since_ns("orders"))


def record(transaction: Transaction, *announced: Partition) -> None:
    recorded = transaction.partitions("orders", [p.key for p in announced])
    transaction.record_partitions("orders", announced, recorded)


def test_a_token_may_be_two_partitions_of_two_functions(store: Store) -> None:
    assert store.partitions("orders") == [A, B, ELSEWHERE]
    store.run(lambda t: t.record_ends("orders", {ELSEWHERE.key: 9_000}))
    ended = replace(ELSEWHERE, end_timestamp_ns=9_000)
    assert store.partitions("orders") == [A, B, ended]
    store.remove_partitions("orders", [A.key], 700)
    assert store.partitions("orders") == [B, ended]
    assert since_ns(store) == 700
    store.remove_partitions("orders", [B.key], 600)
    assert since_ns(store) == 700


def test_the_partitions_alive_are_those_that_the_rules_call_unfinished(store: Store) -> None:
    times = (None, 500, 600, 700)
    recorded = [
        Partition(f"{ended}-{confirmed}", 500, frozenset(), ended, confirmed)
        for ended in times
        for confirmed in times
        if ended or not confirmed
    ]
    store.write(lambda c: add_partitions(c, "orders", recorded))
    for watermark_ns in (500, 600, 650, 700, 800):
        alive = unfinished(store.partitions("orders"), watermark_ns)
        assert count_alive(store, "orders", watermark_ns) == len(alive)


def test_a_lineage_of_the_other_mode_replaces_it_and_is_replaced(store: Store) -> None:
    def of_pipeline() -> tuple[list[Partition], str | None, int | None]:
        pipeline = store.pipeline("orders")
        assert pipeline is not None
        return store.partitions("orders"), pipeline.partition_mode, pipeline.starts_since_ns

    child = Partition("c", 800, frozenset({"a"}))
    store.replace_partitions("orders", [Partition("a", 700), child], mode="IMMUTABLE_KEY_RANGE")
    assert of_pipeline() == ([Partition("a", 700), child], "IMMUTABLE_KEY_RANGE", 700)
    restart_at(store, "orders", 900, [Partition("b", 900)], mode="MUTABLE_KEY_RANGE")
    assert of_pipeline() == ([Partition("b", 900)], "MUTABLE_KEY_RANGE", 900)
    restart_at(store, "orders", 1_500, [])
    assert of_pipeline() == ([], None, None)


def test_a_start_is_recorded_once_and_two_starts_contradict(store: Store) -> None:
    for _ in range(2):
        store.run(lambda t: record(t, NEW, A))
    assert store.partitions("orders") == [A, B, ELSEWHERE, NEW]
    other = replace(NEW, start_timestamp_ns=3_000)
    with pytest.raises(ContradictionError, match="partition new starts at 2000 and at 3000"):
        store.run(lambda t: record(t, other))


def test_two_ends_contradict_and_an_end_needs_its_partition(store: Store) -> None:
    for _ in range(2):
        store.run(lambda t: t.record_ends("orders", {A.key: 9_000}))
    with pytest.raises(ContradictionError, match="partition a ended at 9000 and at 9500"):
        store.run(lambda t: t.record_ends("orders", {A.key: 9_500}))
    with pytest.raises(LineageMissingError, match="partition new "):
        store.run(lambda t: t.record_ends("orders", {NEW.key: 9_000}))


def test_a_commit_confirms_what_its_plan_has_read_from_the_start_and_to_the_end(
    store: Store,
) -> None:
    begin_plan(store, PLAN, tasks=1)

    def work(transaction: Transaction) -> None:
        record(transaction, NEW)
        transaction.lock_announced("p1", [A.key, B.key, ELSEWHERE.key, NEW.key])
        transaction.claim("p1", [A.key, ELSEWHERE.key, NEW.key], 0)
        transaction.record_ends("orders", {A.key: 9_000, B.key: 9_000})
        transaction.add_ends("p1", [A.key], 0)
        transaction.seal_task("p1", 0, TaskCounts())

    store.run(work)
    assert store.run(lambda t: t.claims("p1", [A.key, B.key])) == {A.key: 0}
    assert store.run(lambda t: t.observed_ends("p1")) == {A.key: 0}
    assert commit_epoch(store, "orders", 10_500)
    assert store.partitions("orders") == [
        Partition("a", 500, frozenset(), 9_000, 500, 500),
        Partition("b", 500, frozenset(), 9_000),
        replace(ELSEWHERE, start_confirmed_in_epoch_ns=500),
        replace(NEW, start_confirmed_in_epoch_ns=500),
    ]
    # A later epoch confirms an end, and leaves what is confirmed.
    begin_plan(store, Plan("p2", "orders", 10_500, 20_500), tasks=1)
    store.run(lambda t: t.add_ends("p2", [A.key, B.key], 0))
    store.run(lambda t: t.seal_task("p2", 0, TaskCounts()))
    assert commit_epoch(store, "orders", 20_500)
    confirmed = {p.label: p.end_confirmed_in_epoch_ns for p in store.partitions("orders")}
    assert confirmed == {"a": 500, "b": 10_500, "europe:a": None, "new": None}


def test_tasks_that_claim_a_partition_at_the_same_moment_claim_it_once(store: Store) -> None:
    tasks = 4
    begin_plan(store, PLAN, tasks=tasks)
    together = Barrier(tasks)

    def claim(task: int) -> None:
        is_first = True

        def work(transaction: Transaction) -> None:
            nonlocal is_first
            recorded = transaction.partitions("orders", [NEW.key])
            if is_first and store.url.startswith("postgresql"):
                # All have seen that nobody has. The others run one transaction after the other.
                is_first = False
                together.wait(240)
            transaction.lock_announced("p1", [NEW.key])
            transaction.record_partitions("orders", [NEW], recorded)
            transaction.claim("p1", [NEW.key], task)

        store.run(work)

    with ThreadPoolExecutor(tasks) as pool:
        list(pool.map(claim, range(tasks)))
    assert list(store.run(lambda t: t.claims("p1"))) == [NEW.key]
    assert store.partitions("orders") == [A, B, ELSEWHERE, NEW]


def test_a_collision_of_two_processes_is_tried_again_without_a_word(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    # As if A was recorded after the first attempt had read that it was not.
    attempts = iter([[A, NEW], [NEW]])
    store.write(lambda c: add_partitions(c, "orders", next(attempts)))
    assert store.partitions("orders") == [A, B, ELSEWHERE, NEW]
    assert not caplog.messages


def test_the_moves_of_a_task_are_stored_with_its_counts(store: Store) -> None:
    begin_plan(store, PLAN, tasks=2)
    moves = (MoveCounts(0, 2, 1, 2**63 - 1), MoveCounts(10**9, 0, 1, 5))
    for counts in (TaskCounts(moves=moves[:1]), TaskCounts(3, moves=moves)):
        store.run(lambda t, c=counts: t.seal_task("p1", 0, c))  # type: ignore[misc]
    store.run(lambda t: t.seal_task("p1", 1, TaskCounts(1)))
    assert read_task_counts(store, "p1") == {0: TaskCounts(3, moves=moves), 1: TaskCounts(1)}


def test_a_former_owner_removes_no_partitions(store: Store) -> None:
    former = acquire_lease(store, "orders", "former", read_lease(store, "orders"))
    assert former is not None
    assert acquire_lease(store, "orders", "owner", read_lease(store, "orders")) is not None
    with pytest.raises(LeaseLostError):
        store.remove_partitions("orders", [A.key], 700, generation=former.generation)
    assert store.partitions("orders") == [A, B, ELSEWHERE]
