"""The planner follows the partition mode that the change stream has, also when it changes."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from slackwater.pipeline.recovery import named_watermark_ns
from slackwater.reader.change_stream import PartitionMode
from slackwater.reader.errors import PlacementDroppedError, StartTooOldError
from slackwater.scheduler.notebook_options import parse_options
from slackwater.scheduler.plan import Task
from slackwater.scheduler.planner import Planner
from slackwater.scheduler.tasks.partition_reader import PartitionFacts
from slackwater.scheduler.tasks.task_attempt import TaskAttempt
from slackwater.state.errors import LineageMissingError
from slackwater.state.gaps import record_gap
from slackwater.state.models import Gap, Partition, PartitionKey, TaskCounts
from slackwater.state.plans import sealed_plan_id
from slackwater.state.store import Store
from slackwater.timestamp import format_rfc3339
from tests.support.change_sources import PlannedSource

MUTABLE, IMMUTABLE = PartitionMode.MUTABLE_KEY_RANGE, PartitionMode.IMMUTABLE_KEY_RANGE
FIRST_NS, NEXT_NS, LAST_NS = (1_769_850_000_000_000_500 + i * 10**9 for i in range(3))
START = PartitionFacts(None, (Partition("new", FIRST_NS + 500_000_000),))


class Source(PlannedSource):
    """A change stream with two partitions under each of its read functions, made at a time."""

    def __init__(
        self, mode: PartitionMode, made_ns: int = 0, functions: Sequence[str] = ("",)
    ) -> None:
        self.partition_mode = mode
        self.made_ns = made_ns
        self.read_functions = functions

    def strong_read_timestamp_ns(self) -> int:
        return LAST_NS + 10**9

    def partitions_alive(
        self, at_ns: int, functions: Sequence[str] | None = None
    ) -> Sequence[Partition]:
        if at_ns < self.made_ns:
            raise StartTooOldError("the records at the start are gone.", "")
        if self.partition_mode is PartitionMode.IMMUTABLE_KEY_RANGE:
            return [Partition("a", at_ns), Partition("b", at_ns)]
        return [
            Partition(token, at_ns, function=function)
            for function in functions or self.read_functions
            for token in ("a", "b")
        ]

    def earliest_start_ns(self) -> int:
        return self.made_ns


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


@pytest.mark.parametrize("mode", PartitionMode)
def test_the_first_epoch_planned_again_reads_what_it_has_claimed_before(
    mode: PartitionMode, store: Store
) -> None:
    planner = planner_of(store, Source(mode))
    (task,) = planner.plan_first(NEXT_NS)
    attempt = TaskAttempt(task, store)
    assert [p.token for p in attempt.finish({task.roots[0]: START})] == ["new"]
    assert attempt.seal(TaskCounts()) == []
    # Spark did not learn that the epoch was written.
    (again,) = planner_of(store, Source(mode)).plan_first(NEXT_NS)
    assert again.plan.must_match_plan == task.plan.plan_id
    assert tokens(again) == ["a", "b", "new"]


def test_a_stream_whose_mode_was_altered_is_read_on_in_the_other(store: Store) -> None:
    """Nothing of the former kind counts: no partition, no end, and no plan to be matched."""
    for former, mode in ((IMMUTABLE, MUTABLE), (MUTABLE, IMMUTABLE)):
        planner = planner_of(store, Source(former))
        (task,) = planner.plan_first(NEXT_NS)
        TaskAttempt(task, store).seal(TaskCounts())
        planner.commit(NEXT_NS)
        (task,) = planner.plan(NEXT_NS, LAST_NS)
        TaskAttempt(task, store).seal(TaskCounts())
        assert sealed_plan_id(store, "orders", NEXT_NS, LAST_NS) == task.plan.plan_id
        (again,) = planner_of(store, Source(mode)).plan(NEXT_NS, LAST_NS)
        assert again.plan.must_match_plan is None
        assert tokens(again) == ["a", "b"]
        assert {root.start_timestamp_ns for root in again.roots} == {NEXT_NS}
        pipeline = store.pipeline("orders")
        assert pipeline is not None
        assert (pipeline.partition_mode, pipeline.starts_since_ns) == (mode, NEXT_NS)
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


def read_first(store: Store, *functions: str) -> None:
    """Read and commit the epoch from FIRST_NS to NEXT_NS with these read functions."""
    planner = planner_of(store, Source(MUTABLE, functions=functions))
    (task,) = planner.plan_first(NEXT_NS)
    TaskAttempt(task, store).seal(TaskCounts())
    planner.commit(NEXT_NS)


def labels(task: Task) -> list[str]:
    return [root.label for root in task.roots]


def test_a_placement_that_is_added_is_read_from_the_low_watermark_on(store: Store) -> None:
    read_first(store, "default", "europe")
    planner = planner_of(store, Source(MUTABLE, functions=("default", "europe", "asia")))
    (task,) = planner.plan(NEXT_NS, LAST_NS)
    assert sorted(labels(task)) == [f"{f}:{t}" for f in ("asia", "default", "europe") for t in "ab"]
    starts = {root.label: root.start_timestamp_ns for root in task.roots}
    assert (starts["europe:a"], starts["asia:a"]) == (FIRST_NS, NEXT_NS), "europe's facts stay"
    (again,) = planner.plan(NEXT_NS, LAST_NS)
    assert labels(again) == labels(task), "added once"


def test_a_placement_that_is_gone_before_it_was_read_stops_the_pipeline(store: Store) -> None:
    read_first(store, "default", "europe")
    planner = planner_of(store, Source(MUTABLE, functions=("default",)))
    with pytest.raises(PlacementDroppedError, match="europe are gone") as dropped:
        planner.plan(NEXT_NS, LAST_NS)
    assert dropped.value.user_error
    skip_to = re.search(r"`slackwater run --skip-to (\S+)`", dropped.value.hint)
    assert skip_to is not None
    gap_end_ns = named_watermark_ns(skip_to[1])
    assert gap_end_ns == NEXT_NS + 1_000, "no commit but those of one microsecond is skipped"
    record_gap(store, Gap("orders", NEXT_NS, gap_end_ns, 0))
    (task,) = planner.plan(NEXT_NS, LAST_NS)
    assert labels(task) == ["default:a", "default:b"]


@pytest.mark.parametrize(
    ("before", "after"), [(("",), ("default", "europe")), (("default", "europe"), ("",))]
)
def test_an_altered_per_placement_tvf_leads_to_the_other_functions(
    store: Store, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    read_first(store, *before)
    (task,) = planner_of(store, Source(MUTABLE, functions=after)).plan(NEXT_NS, LAST_NS)
    assert sorted(root.key for root in task.roots) == sorted(
        PartitionKey(f, t) for f in after for t in "ab"
    )


def test_an_epoch_is_not_planned_without_partitions(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may go back after they were found: the epoch would lose all records."""
    planner = planner_of(store, Source(IMMUTABLE))
    planner.plan_first(FIRST_NS)
    planner.commit(FIRST_NS)
    monkeypatch.setattr(planner, "_has_partitions_at", lambda *_: True)
    store.replace_partitions("orders", [])
    with pytest.raises(LineageMissingError, match="no partition of pipeline 'orders'"):
        planner.plan(FIRST_NS, NEXT_NS)
