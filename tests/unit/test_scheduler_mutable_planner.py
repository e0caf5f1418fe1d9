"""The planner follows the partition mode that the change stream has, also when it changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.reader.change_stream import PartitionMode
from slackwater.reader.errors import StartTooOldError
from slackwater.reader.records import PartitionStartRecord
from slackwater.scheduler.change_source import Query
from slackwater.scheduler.options import parse_options
from slackwater.scheduler.plan import Task
from slackwater.scheduler.planner import Planner
from slackwater.scheduler.tasks.mutable_attempt import MutableTaskAttempt
from slackwater.scheduler.tasks.mutable_reader import PartitionFacts
from slackwater.scheduler.tasks.task_attempt import TaskAttempt
from slackwater.state.models import MutablePartition, Partition, TaskCounts
from slackwater.state.mutable_lineage import lineage_since_ns
from slackwater.state.plans import sealed_plan_id
from slackwater.state.store import Store
from slackwater.timestamp import format_rfc3339

MUTABLE, IMMUTABLE = PartitionMode.MUTABLE_KEY_RANGE, PartitionMode.IMMUTABLE_KEY_RANGE
FIRST_NS, NEXT_NS, LAST_NS = (1_769_850_000_000_000_500 + i * 10**9 for i in range(3))
START = PartitionFacts(None, (PartitionStartRecord(FIRST_NS + 500_000_000, "1", ("new",)),))


class Source:
    """A change stream with two partitions, made at a time."""

    def __init__(self, mode: PartitionMode, made_ns: int = 0) -> None:
        self.partition_mode = mode
        self.made_ns = made_ns

    def check(self) -> None:
        pass

    def strong_read_timestamp_ns(self) -> int:
        return LAST_NS + 10**9

    def partitions_alive(self, at_ns: int) -> list[str]:
        if at_ns < self.made_ns:
            raise StartTooOldError("the records at the start are gone.", "")
        return ["a", "b"]

    def earliest_start_ns(self) -> int:
        return self.made_ns

    def query(self, token: str, start_ns: int, end_ns: int | None) -> Query:
        raise NotImplementedError


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path / 'state.db'}", migrate=True)
    yield opened
    opened.close()


def planner_of(store: Store, source: Source) -> Planner:
    names = dict.fromkeys(("project", "instance", "database"), "test-name")
    options = {
        **names,
        "change_stream": "Changes",
        "pipeline": "orders",
        "state_url": "sqlite:///unused",
        "tasks": "1",
        "start": format_rfc3339(FIRST_NS),
    }
    return Planner(parse_options(options, {}), source, store)


def tokens(task: Task) -> list[str]:
    return [root.token for root in task.roots]


def test_partitions_are_of_the_kind_that_the_stream_says(store: Store) -> None:
    planner_of(store, Source(MUTABLE)).plan_first(NEXT_NS)
    assert store.all_partitions("orders") == [MutablePartition(token, FIRST_NS) for token in "ab"]
    planner_of(store, Source(IMMUTABLE)).plan_first(NEXT_NS)
    assert store.all_partitions("orders") == [Partition(token, FIRST_NS) for token in "ab"]


def test_the_first_epoch_planned_again_reads_what_it_has_claimed_before(store: Store) -> None:
    planner = planner_of(store, Source(MUTABLE))
    (task,) = planner.plan_first(NEXT_NS)
    attempt = MutableTaskAttempt(task, store)
    root = next(r for r in task.roots if isinstance(r, MutablePartition))
    assert [p.token for p in attempt.finish({root: START})] == ["new"]
    assert attempt.seal(TaskCounts()) == []
    # Spark did not learn that the epoch was written.
    (again,) = planner_of(store, Source(MUTABLE)).plan_first(NEXT_NS)
    assert again.plan.must_match_plan == task.plan.plan_id
    assert tokens(again) == ["a", "b", "new"]


def test_a_stream_whose_mode_was_altered_is_read_on_in_the_other(store: Store) -> None:
    """Nothing of the former kind counts: no partition, no end, and no plan to be matched."""
    for former, mode in ((IMMUTABLE, MUTABLE), (MUTABLE, IMMUTABLE)):
        planner = planner_of(store, Source(former))
        (task,) = planner.plan_first(NEXT_NS)
        kind = MutableTaskAttempt if former is MUTABLE else TaskAttempt
        kind(task, store).seal(TaskCounts())
        planner.commit(NEXT_NS)
        (task,) = planner.plan(NEXT_NS, LAST_NS)
        kind(task, store).seal(TaskCounts())
        assert sealed_plan_id(store, "orders", NEXT_NS, LAST_NS) == task.plan.plan_id
        (again,) = planner_of(store, Source(mode)).plan(NEXT_NS, LAST_NS)
        assert again.plan.must_match_plan is None
        assert tokens(again) == ["a", "b"]
        assert {root.start_timestamp_ns for root in again.roots} == {NEXT_NS}
        is_mutable = lineage_since_ns(store, "orders") is not None
        assert is_mutable == (mode is MUTABLE)
        store.write(lambda c: c.exec_driver_sql("DELETE FROM pipelines"))


def test_a_stream_made_anew_in_the_other_mode_is_not_read_before_it_was_made(
    store: Store,
) -> None:
    planner = planner_of(store, Source(IMMUTABLE))
    (task,) = planner.plan_first(NEXT_NS)
    TaskAttempt(task, store).seal(TaskCounts())
    planner.commit(NEXT_NS)
    with pytest.raises(StartTooOldError):
        planner_of(store, Source(MUTABLE, made_ns=NEXT_NS + 1)).plan(NEXT_NS, LAST_NS)
