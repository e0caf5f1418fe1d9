"""What attempts at tasks record of partitions with mutable key ranges, on every kind of store."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import sqlalchemy as sa

from slackwater.scheduler.lineage import is_finished
from slackwater.scheduler.lineage_planning import claims_of, prune, roots_of
from slackwater.scheduler.plan import Task
from slackwater.scheduler.tasks.partition_reader import PartitionFacts
from slackwater.scheduler.tasks.task_attempt import TaskAttempt
from slackwater.state import tables
from slackwater.state.commit import commit_epoch, restart_at
from slackwater.state.errors import LineageMissingError, PlanMissingError
from slackwater.state.models import Partition, Plan, TaskCounts
from slackwater.state.plans import begin_plan
from slackwater.state.store import Store

A, B = (Partition(token, 500) for token in "ab")
NEW = Partition("new", 7_000)
PLAN = Plan("plan", "orders", 500, 10_500)
START = PartitionFacts(None, (NEW,))
END_AND_START = PartitionFacts(7_000, (NEW,))


@pytest.fixture
def store(store: Store) -> Store:
    store.replace_partitions("orders", [A, B])
    return store


def begin(store: Store, plan: Plan = PLAN) -> tuple[Task, Task]:
    """Plan two tasks, for A and for all others."""
    roots = roots_of(store, plan)
    first, second = tasks = (
        Task(plan, 0, tuple(r for r in roots if r.token == "a")),
        Task(plan, 1, tuple(r for r in roots if r.token != "a")),
    )
    begin_plan(store, plan, tasks=2, claims=claims_of(tasks, plan))
    return first, second


def labels(partitions: Sequence[Partition]) -> list[str]:
    return [partition.label for partition in partitions]


def test_the_first_task_that_sees_a_start_reads_the_partition(store: Store) -> None:
    first, second = (TaskAttempt(task, store) for task in begin(store))
    assert labels(first.finish({A: START})) == ["new"]
    assert second.finish({B: START}) == []
    assert first.finish({A: START}) == []
    assert NEW in store.partitions("orders")


def test_another_attempt_reads_what_the_task_has_claimed(store: Store) -> None:
    task, _ = begin(store)
    TaskAttempt(task, store).finish({A: START})
    shown = TaskAttempt(task, store)
    assert labels(shown.finish({A: START})) == ["new"]
    assert shown.seal(TaskCounts()) == []
    # Not even if it was not shown the start itself.
    other = TaskAttempt(task, store)
    other.note_alive(A)
    assert labels(other.seal(TaskCounts())) == ["new"]
    other.note_alive(NEW)
    assert other.seal(TaskCounts()) == []


def test_the_ends_that_one_attempt_has_shown_count_for_all(store: Store) -> None:
    task, other_task = begin(store)
    TaskAttempt(task, store).finish({A: PartitionFacts(7_000, ())})
    attempt = TaskAttempt(task, store)
    attempt.note_alive(A)
    assert attempt.seal(TaskCounts()) == []
    TaskAttempt(other_task, store).seal(TaskCounts())
    assert commit_epoch(store, "orders", PLAN.end_ns)
    finished = [p.label for p in store.partitions("orders") if is_finished(p, PLAN.end_ns)]
    assert finished == ["a"]


def test_what_a_sealed_task_is_shown_later_is_left_to_the_next_epoch(store: Store) -> None:
    task, other_task = begin(store)
    for sealed in (task, other_task):
        TaskAttempt(sealed, store).seal(TaskCounts())
    late = TaskAttempt(task, store)
    assert late.finish({A: END_AND_START}) == []
    assert late.seal(TaskCounts()) == []
    assert commit_epoch(store, "orders", PLAN.end_ns)
    assert not any(is_finished(p, PLAN.end_ns) for p in store.partitions("orders"))
    later = Plan("later", "orders", PLAN.end_ns, 20_500)
    assert labels(roots_of(store, later)) == ["a", "b", "new"]
    # Of these only the new one is read from its start.
    assert [key.token for key, _ in claims_of(begin(store, later), later)] == ["new"]


def test_a_replay_reads_the_same_partitions_and_shows_the_same_ends(store: Store) -> None:
    for task in begin(store):
        TaskAttempt(task, store).seal(TaskCounts())
    # An attempt that was given up goes on, and is shown more.
    TaskAttempt(Task(PLAN, 0, (A,)), store).finish({A: END_AND_START})
    replay = replace(PLAN, plan_id="replay", must_match_plan="plan")
    assert labels(roots_of(store, replay)) == ["a", "b"]
    task, other_task = begin(store, replay)
    attempt = TaskAttempt(task, store)
    assert attempt.finish({A: END_AND_START}) == []
    for sealed in (attempt, TaskAttempt(other_task, store)):
        assert sealed.seal(TaskCounts()) == []
    assert commit_epoch(store, "orders", PLAN.end_ns)
    assert not any(is_finished(p, PLAN.end_ns) for p in store.partitions("orders"))


def test_a_replay_reads_what_was_claimed_though_it_is_not_shown_the_start(store: Store) -> None:
    task, other_task = begin(store)
    attempt = TaskAttempt(task, store)
    attempt.finish({A: END_AND_START})
    attempt.seal(TaskCounts())
    TaskAttempt(other_task, store).seal(TaskCounts())
    replay = replace(PLAN, plan_id="replay", must_match_plan="plan")
    assert labels(roots_of(store, replay)) == ["a", "b", "new"]
    # Its own attempts agree on the end, whether it is shown to them or not.
    task, other_task = begin(store, replay)
    again = TaskAttempt(task, store)
    again.note_alive(A)
    again.seal(TaskCounts())
    TaskAttempt(other_task, store).seal(TaskCounts())
    assert commit_epoch(store, "orders", PLAN.end_ns)
    assert [p.label for p in store.partitions("orders") if is_finished(p, PLAN.end_ns)] == ["a"]


def test_a_store_that_lost_claims_or_ends_seals_nothing(store: Store) -> None:
    task, _ = begin(store)
    attempt = TaskAttempt(task, store)
    attempt.finish({A: END_AND_START})
    store.write(lambda c: c.execute(sa.delete(tables.plan_claims).where(sa.true())))
    with pytest.raises(LineageMissingError, match="has lost what task 0"):
        attempt.seal(TaskCounts())


def test_a_removed_partition_does_not_come_back_by_an_old_start_record(store: Store) -> None:
    task, other_task = begin(store)
    attempt = TaskAttempt(task, store)
    (new,) = attempt.finish({A: START})
    attempt.finish({new: PartitionFacts(8_000, ())})
    for sealed in (attempt, TaskAttempt(other_task, store)):
        assert sealed.seal(TaskCounts()) == []
    assert commit_epoch(store, "orders", PLAN.end_ns)
    prune(store, "orders", PLAN.end_ns, keep_ns=0, generation=None)
    # The start may be shown again in the next epoch, so what began in this one is kept.
    assert labels(store.partitions("orders")) == ["a", "b", "new"]
    later = Plan("later", "orders", PLAN.end_ns, 20_500)
    task, other_task = begin(store, later)
    for sealed in (TaskAttempt(t, store) for t in (task, other_task)):
        assert sealed.seal(TaskCounts()) == []
    assert commit_epoch(store, "orders", later.end_ns)
    prune(store, "orders", later.end_ns, keep_ns=0, generation=None)
    assert labels(store.partitions("orders")) == ["a", "b"]
    pipeline = store.pipeline("orders")
    assert pipeline is not None
    assert pipeline.starts_since_ns == later.start_ns
    assert TaskAttempt(task, store).finish({A: START}) == []
    assert labels(store.partitions("orders")) == ["a", "b"]


def test_a_task_of_a_former_lineage_records_nothing(store: Store) -> None:
    task, _ = begin(store)
    attempt = TaskAttempt(task, store)
    restart_at(store, "orders", 10_500, [])
    # Its plan was removed with the lineage.
    with pytest.raises(PlanMissingError):
        attempt.finish({A: START})
