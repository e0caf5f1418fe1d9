"""Many processes finish the parents of the same children at once: each child is claimed once."""

import contextlib
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
import sqlalchemy as sa

from slackwater.pipeline.epochs.audit import audit_written, planned_epoch
from slackwater.scheduler.audit import SinkCounts
from slackwater.scheduler.errors import AuditError
from slackwater.scheduler.lineage import is_finished
from slackwater.scheduler.plan import Task
from slackwater.scheduler.read_options import AuditMode
from slackwater.scheduler.tasks.partition_reader import PartitionFacts
from slackwater.scheduler.tasks.task_attempt import TaskAttempt
from slackwater.state.commit import commit_epoch
from slackwater.state.errors import (
    LeaseLostError,
    LineageMissingError,
    PlanMissingError,
    StoreBehindError,
)
from slackwater.state.lease import acquire_lease, read_lease
from slackwater.state.models import Partition, PartitionKey, Plan, TaskCounts
from slackwater.state.plans import (
    begin_plan,
    has_failed_audit,
    note_failed_audit,
    reject_plans,
    sealed_plan_id,
    unsealed_tasks,
)
from slackwater.state.store import Store
from slackwater.state.task_counts import read_task_counts
from slackwater.state.transaction import Transaction
from tests.support.processes import FORKED, process
from tests.support.stores import STORES

LONG = pytest.mark.long
PROCESSES = 6
MERGES_AT_ONCE = 3
PLAN = Plan("plan", "orders", 500, 100_500)


def merges_in(url: str) -> int:
    """The emulator runs one transaction at a time and aborts the others."""
    return 3 if url.startswith("spanner") else 45


def merges(count: int) -> dict[str, list[str]]:
    """Children and their two or three parents; some parents have two children."""
    return {f"c{i}": parents_of_merge(i) for i in range(count)} | {
        f"d{i}": parents_of_merge(i)[:2] for i in range(0, count, 3)
    }


def parents_of_merge(i: int) -> list[str]:
    return [f"p{i}-{j}" for j in range(2 + i % 2)]


def keys(*tokens: str) -> list[PartitionKey]:
    return [PartitionKey("", token) for token in tokens]


@pytest.fixture(
    params=[
        *(pytest.param(name, marks=LONG if name == "spanner" else ()) for name in STORES),
        pytest.param("postgresql with REPEATABLE READ", marks=LONG),
    ]
)
def url(request: pytest.FixtureRequest, new_store_url: Callable[[str], str]) -> str:
    made = sa.make_url(new_store_url(request.param.split()[0]))
    if "REPEATABLE READ" in request.param:
        engine = sa.create_engine(made)
        with engine.begin() as connection:
            setting = "default_transaction_isolation TO 'repeatable read'"
            connection.execute(sa.text(f"ALTER DATABASE {made.database} SET {setting}"))
        engine.dispose()
    return made.render_as_string(hide_password=False)


def finish_some(url: str, task: int, in_step: Any, results: Any) -> None:
    """One process: finish its parents, at the same moments as the others finish theirs.

    Parent j of merge i is process (i + j) % PROCESSES's, so the parents of a child are different
    processes', which do them in orders of their own.
    """
    store = Store.open(url, migrate=False)
    order = random.Random(task)
    attempt = TaskAttempt(Task(PLAN, task, ()), store)
    claimed = []
    of_all = merges(merges_in(url))
    for first in range(0, merges_in(url), MERGES_AT_ONCE):
        parents = [
            parent
            for i in range(first, first + MERGES_AT_ONCE)
            for j, parent in enumerate(parents_of_merge(i))
            if (i + j) % PROCESSES == task
        ]
        order.shuffle(parents)
        in_step.wait(240)
        for parent in parents:
            children = tuple(
                Partition(child, 50_000, frozenset(of))
                for child, of in of_all.items()
                if parent in of
            )
            for child in attempt.finish({Partition(parent, 0): PartitionFacts(50_000, children)}):
                ended = store.run(lambda t, c=child: t.observed_ends("plan", c.parent_keys))  # type: ignore[misc]
                assert ended.keys() == child.parent_keys, "claimed before its parents"
                claimed.append(child.token)
    store.close()
    results.put(claimed)


def test_each_child_is_claimed_once_after_all_parents_by_many_processes(url: str) -> None:
    store = Store.open(url, migrate=True)
    store.ensure_pipeline("orders", "stream")
    of_all = merges(merges_in(url))
    parents = sorted({parent for of in of_all.values() for parent in of})
    store.replace_partitions("orders", [Partition(parent, 0) for parent in parents])
    begin_plan(store, PLAN, tasks=PROCESSES)
    # Two transactions that insert the same row wait for each other anyway; where the row is there
    # already, as for the last two of three parents, only the lock makes them wait.
    there = sorted(of_all)[::2]
    store.run(lambda t: t.lock_announced("plan", keys(*there)))
    results = FORKED.Queue()
    in_step = FORKED.Barrier(PROCESSES)
    workers = [process(finish_some, url, task, in_step, results) for task in range(PROCESSES)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=240)
        assert worker.exitcode == 0
    claimed = sorted(child for _ in workers for child in results.get(timeout=240))
    assert claimed == sorted(of_all)
    ended = store.run(lambda t: t.observed_ends("plan"))
    assert sorted(key.token for key in ended) == parents
    store.close()


def test_of_two_parents_at_the_same_moment_one_sees_both(url: str) -> None:
    store = Store.open(url, migrate=True)
    store.run(lambda t: t.lock_announced("plan", keys("c")))
    both_recorded = Barrier(2)

    def arrive(parent: str) -> int:
        def work(transaction: Transaction) -> int:
            transaction.lock_announced("plan", keys("c"))
            transaction.add_ends("plan", keys(parent), 0)
            # Met only if neither waits for the other, and then neither sees the other.
            with contextlib.suppress(BrokenBarrierError):
                both_recorded.wait(0.5)
            return len(transaction.observed_ends("plan", keys("a", "b")))

        return store.run(work)

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(arrive, "ab")) == [1, 2]
    store.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path / 'state.db'}", migrate=True)
    opened.ensure_pipeline("orders", "stream")
    opened.replace_partitions("orders", [Partition("a", 0), Partition("b", 0)])
    begin_plan(opened, PLAN, tasks=2)
    yield opened
    opened.close()


MERGE = PartitionFacts(50_000, (Partition("c", 50_000, frozenset({"a", "b"})),))
SPLIT = PartitionFacts(50_000, (Partition("c", 50_000, frozenset({"a"})),))


def finish(attempt: TaskAttempt, parent: str, shown: PartitionFacts = MERGE) -> list[str]:
    return [child.token for child in attempt.finish({Partition(parent, 0): shown})]


def test_a_retried_task_finds_its_claims_and_no_other_ones(store: Store) -> None:
    first, second = Task(PLAN, 0, ()), Task(PLAN, 1, ())
    assert finish(TaskAttempt(first, store), "a") == []
    assert finish(TaskAttempt(second, store), "b") == ["c"]
    # Both tasks fail and run again: the child stays with the task that claimed it.
    assert finish(TaskAttempt(first, store), "a") == []
    assert finish(TaskAttempt(second, store), "b") == ["c"]


def test_a_retried_task_reads_a_child_once_after_both_of_its_parents(store: Store) -> None:
    """The ends that the first attempt saw are in the store; this one has not read so far."""
    task = Task(PLAN, 0, ())
    dead = TaskAttempt(task, store)
    assert [finish(dead, "a"), finish(dead, "b")] == [[], ["c"]]
    retried = TaskAttempt(task, store)
    assert [finish(retried, "b"), finish(retried, "a")] == [[], ["c"]]


def test_an_end_that_one_attempt_saw_is_adopted_by_the_one_that_is_committed(store: Store) -> None:
    """The other saw the query end with OK and no child partitions record (apache/beam 40232)."""
    task = Task(PLAN, 0, ())
    assert finish(TaskAttempt(task, store), "a", SPLIT) == ["c"]
    other = TaskAttempt(task, store)
    other.note_alive(Partition("a", 0))
    assert [child.token for child in other.seal(TaskCounts())] == ["c"]
    other.note_alive(Partition("c", 50_000))
    assert other.seal(TaskCounts()) == []


def test_what_another_attempt_claimed_is_read_after_its_parents(store: Store) -> None:
    """The child of a ended within the epoch, too, and the other attempt has claimed its child."""
    task = Task(PLAN, 0, ())
    dead, other = TaskAttempt(task, store), TaskAttempt(task, store)
    assert finish(dead, "a", SPLIT) == ["c"]
    grandchild = Partition("d", 60_000, frozenset({"c"}))
    assert finish(dead, "c", PartitionFacts(60_000, (grandchild,))) == ["d"]
    for read, then in (("a", ["c"]), ("c", ["d"]), ("d", [])):
        other.note_alive(Partition(read, 0))
        assert [child.token for child in other.seal(TaskCounts())] == then


def test_a_child_that_one_attempt_claimed_is_read_by_the_one_that_is_committed(
    store: Store,
) -> None:
    """Two attempts run at once; when the committed one finished a, b had not arrived yet."""
    task, other = Task(PLAN, 0, ()), Task(PLAN, 1, ())
    committed, lingering = TaskAttempt(task, store), TaskAttempt(task, store)
    assert finish(committed, "a") == []
    # The other task's attempt has not read b itself, so it does not claim.
    store.run(lambda t: t.add_ends("plan", keys("b"), other.index))
    assert finish(lingering, "a") == ["c"]
    assert [child.token for child in committed.seal(TaskCounts())] == ["c"]
    assert committed.seal(TaskCounts()) == []


def test_a_sealed_task_claims_nothing_more(store: Store) -> None:
    task, other = Task(PLAN, 0, ()), Task(PLAN, 1, ())
    committed = TaskAttempt(task, store)
    assert finish(committed, "a") == []
    assert committed.seal(TaskCounts()) == []
    store.run(lambda t: t.add_ends("plan", keys("b"), other.index))
    assert finish(TaskAttempt(task, store), "a") == []
    assert finish(TaskAttempt(other, store), "b") == ["c"]


def test_an_end_seen_after_the_task_was_sealed_is_left_to_the_next_epoch(store: Store) -> None:
    task = Task(PLAN, 0, ())
    sealed = TaskAttempt(task, store)
    sealed.note_alive(Partition("a", 0))
    assert sealed.seal(TaskCounts(records=7)) == []
    assert finish(TaskAttempt(task, store), "a", SPLIT) == []
    assert read_task_counts(store, "plan") == {0: TaskCounts(records=7)}
    commit_epoch(store, "orders", PLAN.end_ns)
    assert not any(is_finished(p, PLAN.end_ns) for p in store.partitions("orders"))


def test_an_end_counts_only_once_the_plan_that_showed_it_is_committed(store: Store) -> None:
    finish(TaskAttempt(Task(PLAN, 0, ()), store), "a", SPLIT)
    again = replace(PLAN, plan_id="again")
    begin_plan(store, again, tasks=1)
    commit_epoch(store, "orders", PLAN.end_ns)
    assert not any(is_finished(p, PLAN.end_ns) for p in store.partitions("orders"))
    attempt = TaskAttempt(Task(again, 0, ()), store)
    finish(attempt, "a", SPLIT)
    commit_epoch(store, "orders", PLAN.end_ns)
    assert not any(is_finished(p, PLAN.end_ns) for p in store.partitions("orders"))
    attempt.seal(TaskCounts())
    commit_epoch(store, "orders", PLAN.end_ns)
    finished = [p.token for p in store.partitions("orders") if is_finished(p, PLAN.end_ns)]
    assert finished == ["a"]


def test_an_end_without_children_counts(store: Store) -> None:
    task = Task(PLAN, 0, ())
    attempt, other = TaskAttempt(task, store), TaskAttempt(task, store)
    assert attempt.finish({Partition("a", 0): PartitionFacts(50_000, ())}) == []
    # Another attempt, which did not see it, adopts it.
    other.note_alive(Partition("a", 0))
    assert other.seal(TaskCounts()) == []
    TaskAttempt(Task(PLAN, 1, ()), store).seal(TaskCounts())
    commit_epoch(store, "orders", PLAN.end_ns)
    finished = [p.token for p in store.partitions("orders") if is_finished(p, PLAN.end_ns)]
    assert finished == ["a"]


def test_a_task_whose_facts_the_store_has_lost_is_not_sealed(store: Store) -> None:
    """The store went back to a state after planning: sealed, the child would be read twice."""
    attempt = TaskAttempt(Task(PLAN, 0, ()), store)
    assert finish(attempt, "a", SPLIT) == ["c"]
    store.write(lambda c: c.execute(sa.text("DELETE FROM plan_ends")))
    with pytest.raises(LineageMissingError, match=r"lost what task 0 .* such as a"):
        attempt.seal(TaskCounts())
    assert unsealed_tasks(store, "plan") == [0, 1]
    retried = TaskAttempt(Task(PLAN, 0, ()), store)
    assert finish(retried, "a", SPLIT) == ["c"]
    assert retried.seal(TaskCounts()) == []
    store.write(lambda c: c.execute(sa.text("UPDATE plan_claims SET task = NULL")))
    with pytest.raises(LineageMissingError, match="such as c"):
        retried.seal(TaskCounts())


def test_a_plan_that_later_ones_replaced_is_not_sealed_without_the_ends_it_must_show(
    store: Store,
) -> None:
    """A task that its query has left goes on; a plan that must match it would leave them out, too.

    The fourth plan of a cut removes the first one, whose ends the third one has to show.
    """
    first = TaskAttempt(Task(PLAN, 0, ()), store)
    assert finish(first, "a", SPLIT) == ["c"]
    assert first.seal(TaskCounts()) == []
    TaskAttempt(Task(PLAN, 1, ()), store).seal(TaskCounts())
    second, third = (replace(PLAN, plan_id=n, must_match_plan="plan") for n in ("second", "third"))
    fourth = replace(PLAN, plan_id="fourth", must_match_plan="second")
    begin_plan(store, second, tasks=1)
    begin_plan(store, third, tasks=1)
    left = TaskAttempt(Task(third, 0, ()), store)
    begin_plan(store, fourth, tasks=1)
    for write in (lambda: finish(left, "a", SPLIT), lambda: left.seal(TaskCounts())):
        with pytest.raises(PlanMissingError, match="plan plan is not in the metadata store"):
            write()
    assert unsealed_tasks(store, "third") == [0]


def test_an_epoch_with_an_unsealed_task_fails_the_audit(store: Store) -> None:
    TaskAttempt(Task(PLAN, 0, ()), store).seal(TaskCounts())
    with pytest.raises(AuditError, match="task 1 of the epoch's plan is not sealed"):
        audit_written(store, PLAN, SinkCounts(0, None, None), AuditMode.STOP)


def test_an_epoch_whose_plan_the_store_has_lost_is_planned_again(store: Store) -> None:
    with pytest.raises(LineageMissingError, match="no plan of pipeline 'lost'"):
        planned_epoch(store, "lost")
    for index in (0, 1):
        TaskAttempt(Task(PLAN, index, ()), store).seal(TaskCounts())
    lost = replace(PLAN, plan_id="lost", start_ns=PLAN.end_ns, end_ns=PLAN.end_ns + 1_000)
    with pytest.raises(StoreBehindError, match="the store has gone back to an earlier state"):
        audit_written(store, lost, SinkCounts(0, None, None), AuditMode.STOP)
    audit_written(store, planned_epoch(store, "orders"), SinkCounts(0, None, None), AuditMode.STOP)


def test_a_cut_whose_audit_failed_need_not_match_its_plans(store: Store) -> None:
    for index in (0, 1):
        TaskAttempt(Task(PLAN, index, ()), store).seal(TaskCounts())
    cut = (PLAN.start_ns, PLAN.end_ns)
    assert sealed_plan_id(store, "orders", *cut) == "plan"
    assert not has_failed_audit(store, "orders", *cut)
    reject_plans(store, PLAN)
    assert sealed_plan_id(store, "orders", *cut) is None
    # Every later attempt at the cut follows the failed audit, the next epoch does not.
    for again in ("again", "and again"):
        begin_plan(store, replace(PLAN, plan_id=again), tasks=1)
        assert has_failed_audit(store, "orders", *cut)
    begin_plan(store, Plan("next", "orders", PLAN.end_ns, PLAN.end_ns + 1_000), tasks=1)
    assert not has_failed_audit(store, "orders", *cut)


def test_what_a_former_owner_finishes_is_refused(store: Store) -> None:
    first = acquire_lease(store, "orders", "first", read_lease(store, "orders"))
    assert first is not None
    owned = replace(PLAN, plan_id="owned", generation=first.generation)
    begin_plan(store, owned, tasks=1)
    assert acquire_lease(store, "orders", "second", first) is not None
    attempt = TaskAttempt(Task(owned, 0, ()), store)
    for write in (
        lambda: finish(attempt, "a"),
        lambda: attempt.seal(TaskCounts()),
        lambda: begin_plan(store, replace(owned, plan_id="next"), tasks=1),
        lambda: note_failed_audit(store, owned),
        lambda: reject_plans(store, owned),
        lambda: commit_epoch(store, "orders", 9, generation=first.generation),
        lambda: store.replace_partitions("orders", [], generation=first.generation),
    ):
        with pytest.raises(LeaseLostError, match="second took over"):
            write()
