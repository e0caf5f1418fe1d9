"""A task reads partitions with mutable key ranges: new ones when announced, ends inclusive."""

import pytest

from slackwater.reader.errors import StartOutsidePartitionError, UnavailableError
from slackwater.reader.records import (
    PartitionEndRecord,
    PartitionEventRecord,
    PartitionStartRecord,
)
from slackwater.scheduler.audit import SinkCounts, audit_epoch
from slackwater.scheduler.change_source import Query
from slackwater.scheduler.lineage_planning import claims_of, roots_of
from slackwater.scheduler.plan import Task
from slackwater.scheduler.read_options import AuditMode, Proof, ReadOptions
from slackwater.scheduler.tasks.task import read_task
from slackwater.state.commit import commit_epoch
from slackwater.state.models import Partition, Plan
from slackwater.state.plans import begin_plan
from slackwater.state.store import Store
from slackwater.state.task_counts import read_task_counts
from tests.support.scripted_stream import ScriptedStream, data

EARLIER = Plan("earlier", "orders", 500, 10_500)
PLAN = Plan("plan", "orders", 10_500, 30_500)
A, B = Partition("a", 500), Partition("b", 500)
OPTIONS = ReadOptions(2, Proof.OK, AuditMode.STOP, traces=False)


def start(time_ns: int, *tokens: str) -> PartitionStartRecord:
    return PartitionStartRecord(time_ns, "2", tokens)


def end(token: str, time_ns: int) -> PartitionEndRecord:
    return PartitionEndRecord(time_ns, "3", token)


@pytest.fixture
def store(orders_store: Store) -> Store:
    orders_store.replace_partitions("orders", [A, B])
    return orders_store


def read(store: Store, stream: ScriptedStream, plan: Plan = PLAN) -> list[tuple[str, int]]:
    """Plan an epoch as one task, and return what it reads: partition and time."""
    roots = tuple(roots_of(store, plan))
    tasks = [Task(plan, 0, roots)]
    begin_plan(store, plan, tasks=1, claims=claims_of(tasks, plan))
    rows = []
    for batch in read_task(tasks[0], store=store, source=stream, options=OPTIONS):
        times = batch.column("commit_timestamp").cast("int64").to_pylist()
        tokens = batch.column("partition_token").to_pylist()
        rows += [(token, us * 1_000) for token, us in zip(tokens, times, strict=True)]
    return sorted(rows)


def read_and_commit(store: Store, stream: ScriptedStream, plan: Plan) -> list[tuple[str, int]]:
    rows = read(store, stream, plan)
    assert commit_epoch(store, "orders", plan.end_ns)
    return rows


def partition(store: Store, token: str) -> Partition:
    return next(p for p in store.partitions("orders") if p.token == token)


def test_a_partition_that_starts_within_the_epoch_is_read_in_the_same_plan(store: Store) -> None:
    stream = ScriptedStream(
        a=[start(2_000, "c"), data(3_000), start(40_000, "later")],
        b=[start(2_000, "c"), data(4_000)],
        c=[data(2_000), start(5_000, "d")],
        d=[data(5_000), data(40_000)],
    )
    assert read(store, stream, EARLIER) == [("a", 3_000), ("b", 4_000), ("c", 2_000), ("d", 5_000)]
    assert sorted(token for token, _, _ in stream.asked) == ["a", "b", "c", "d"]
    assert all(asked_end == EARLIER.end_ns for _, _, asked_end in stream.asked)


def test_the_records_at_a_partition_s_end_are_its_own(store: Store) -> None:
    stream = ScriptedStream(a=[data(9_000), end("a", 9_000)], b=[])
    assert read_and_commit(store, stream, EARLIER) == [("a", 9_000)]
    assert partition(store, "a").end_confirmed_in_epoch_ns == EARLIER.start_ns
    assert read(store, stream) == []
    assert {token for token, start_ns, _ in stream.asked if start_ns > 500} == {"b"}


def test_an_end_that_was_not_shown_is_found_by_an_earlier_start(store: Store) -> None:
    """With it come the partitions that were announced there; they are read from their starts."""
    stream = ScriptedStream(
        a=[data(9_000), start(9_000, "c"), end("a", 9_000)], b=[], c=[data(10_000), data(12_000)]
    )
    shown = stream.scripts["a"]
    stream.scripts["a"] = shown[:1]
    assert read_and_commit(store, stream, EARLIER) == [("a", 9_000)]
    stream.scripts["a"] = shown
    assert read_and_commit(store, stream, PLAN) == [("c", 10_000), ("c", 12_000)]
    assert read_task_counts(store, "plan")[0].late_records == 1
    assert partition(store, "a").end_confirmed_in_epoch_ns == PLAN.start_ns
    assert ("a", 500, None) in stream.asked


def test_an_end_that_another_attempt_has_recorded_is_asked_for_until_it_is_shown(
    store: Store,
) -> None:
    stream = ScriptedStream(a=[data(9_000), end("a", 9_000)], b=[])
    assert read(store, stream, EARLIER) == [("a", 9_000)]
    stream.hiding = {"a"}
    again = Plan("again", "orders", EARLIER.start_ns, EARLIER.end_ns)
    assert read_and_commit(store, stream, again) == [("a", 9_000)]
    assert partition(store, "a").end_confirmed_in_epoch_ns == EARLIER.start_ns


def test_a_start_that_is_refused_although_the_partition_ends_later_fails_the_epoch(
    store: Store,
) -> None:
    class Refusing(ScriptedStream):
        def query(self, token: str, start_ns: int, end_ns: int | None, function: str = "") -> Query:
            if start_ns >= PLAN.start_ns:
                raise StartOutsidePartitionError("invalid for the partition")
            return super().query(token, start_ns, end_ns, function)

    stream = Refusing(a=[data(12_000), end("a", 13_000)], b=[end("b", 9_000)])
    stream.hiding = {"b"}
    assert read_and_commit(store, stream, EARLIER) == []
    with pytest.raises(UnavailableError, match="not all of it has been read"):
        read(store, stream)


def test_a_move_that_was_read_from_one_side_only_fails_the_audit(store: Store) -> None:
    stream = ScriptedStream(
        a=[PartitionEventRecord(2_000, "1", "a", (), ("b",))],
        b=[PartitionEventRecord(2_000, "1", "b", ("a",), ())],
    )

    def audit(plan: Plan) -> list[str]:
        counts = read_task_counts(store, plan.plan_id)
        return audit_epoch(plan, counts, SinkCounts(0, None, None), low_watermark_ns=None)

    read(store, stream, EARLIER)
    assert audit(EARLIER) == []
    stream.scripts["b"] = []
    again = Plan("again", "orders", EARLIER.start_ns, EARLIER.end_ns)
    read(store, stream, again)
    (broken,) = audit(again)
    assert "not every move was read from both sides: 1 out and 0 in" in broken
