"""Where partitions of Bigtable's are read on, on SQLite, on PostgreSQL and on Spanner."""

import pytest

from slackwater.state.commit import commit_epoch, restart_at
from slackwater.state.errors import AlreadySealedError, LeaseLostError, StoreBehindError
from slackwater.state.models import Plan, TaskCounts
from slackwater.state.plans import begin_plan, sealed_plan_id
from slackwater.state.positions import (
    TaskPositions,
    count_partitions,
    positions_of,
    positions_text,
    read_positions,
    seal_attempt,
    set_positions,
)
from slackwater.state.store import Store
from slackwater.state.task_counts import read_task_counts

FIRST = TaskPositions(2, "first")


@pytest.fixture
def store(store: Store) -> Store:
    store.ensure_pipeline("clicks", "table")
    set_positions(store, "clicks", [FIRST], 5, generation=None)
    return store


def plan(plan_id: str, tasks: int, store: Store, repeats: str | None = None) -> Plan:
    made = Plan(plan_id, "clicks", 5, 9)
    begin_plan(store, made, tasks=tasks, repeats=repeats)
    return made


def test_the_positions_of_the_plan_that_was_committed_are_the_next_start(store: Store) -> None:
    one = plan("p1", 2, store)
    seal_attempt(store, one, 0, "a", TaskCounts(3), [TaskPositions(3, "zero")])
    assert not commit_epoch(store, "clicks", 9), "a task is not sealed"
    many = [TaskPositions(3, "one"), TaskPositions(1, "two")]
    seal_attempt(store, one, 1, "b", TaskCounts(4), many)
    assert read_positions(store, "clicks", 5) == ["first"]
    for _ in range(2):
        assert commit_epoch(store, "clicks", 9)
        assert sorted(read_positions(store, "clicks", 9)) == ["one", "two", "zero"]
        assert read_positions(store, "clicks", 5) == []
        assert count_partitions(store, "clicks") == 7


def test_a_task_is_sealed_by_one_attempt(store: Store) -> None:
    one = plan("p1", 1, store)
    for _ in range(2):
        # The answer to the first try may have been lost.
        seal_attempt(store, one, 0, "a", TaskCounts(3), [TaskPositions(1, "a's")])
    with pytest.raises(AlreadySealedError):
        seal_attempt(store, one, 0, "b", TaskCounts(4), [TaskPositions(1, "b's")])
    assert read_task_counts(store, "p1")[0].records == 3
    commit_epoch(store, "clicks", 9)
    assert read_positions(store, "clicks", 9) == ["a's"]


def test_a_plan_of_an_epoch_that_was_written_has_its_positions(store: Store) -> None:
    written = plan("p1", 1, store)
    seal_attempt(store, written, 0, "a", TaskCounts(3), [TaskPositions(1, "written")])
    assert sealed_plan_id(store, "clicks", 5, 9) == "p1"
    plan("p2", 0, store, repeats="p1")
    # And once more, as by a process that died right after it.
    plan("p3", 0, store, repeats="p2")
    assert commit_epoch(store, "clicks", 9)
    assert read_positions(store, "clicks", 9) == ["written"]


def test_what_a_later_plan_sealed_counts_and_a_former_owner_seals_nothing(store: Store) -> None:
    first = plan("p1", 1, store)
    seal_attempt(store, first, 0, "a", TaskCounts(3), [TaskPositions(1, "not written")])
    second = plan("p2", 1, store)
    seal_attempt(store, second, 0, "b", TaskCounts(4), [TaskPositions(1, "written")])
    stale = Plan("p2", "clicks", 5, 9, generation=7)
    with pytest.raises(LeaseLostError):
        seal_attempt(store, stale, 0, "c", TaskCounts(5), [TaskPositions(1, "former")])
    commit_epoch(store, "clicks", 9)
    assert read_positions(store, "clicks", 9) == ["written"]


def test_an_epochs_positions_are_those_of_all_its_tasks_or_none(store: Store) -> None:
    written = plan("p1", 2, store)
    seal_attempt(store, written, 0, "a", TaskCounts(3), [TaskPositions(1, "zero")])
    # As after the audit, if the store goes back to a state in the middle of the epoch or before.
    for unfinished in (written, Plan("p2", "clicks", 5, 9)):
        with pytest.raises(StoreBehindError):
            positions_text(store, unfinished)
    seal_attempt(store, written, 1, "b", TaskCounts(4), [TaskPositions(1, "one")])
    for sealed in (written, plan("p2", 0, store, repeats="p1")):
        texts = [some.text for some in positions_of(positions_text(store, sealed))]
        assert sorted(texts) == ["one", "zero"]


def test_a_pipeline_that_restarts_at_another_time_has_no_positions(store: Store) -> None:
    # They are those of that time, as when a checkpoint alone was lost.
    restart_at(store, "clicks", 5, [])
    assert read_positions(store, "clicks", 5) == ["first"]
    restart_at(store, "clicks", 7, [])
    assert count_partitions(store, "clicks") is None
    assert read_positions(store, "clicks", 5) == []
