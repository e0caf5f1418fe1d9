"""Many processes finish the parents of the same children at once: each child is claimed once."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
import sqlalchemy as sa

from reader.ending import Finished
from reader.records import ChildPartition
from scheduler.claim import finish_partition
from scheduler.plan import Task
from state.facts import Partition, Plan
from state.store import Store
from state.transaction import Transaction

PROCESSES = 6
MERGES = 90
MERGES_AT_ONCE = 3
PLAN = Plan("plan", "orders", 500, 100_500)


def merges() -> dict[str, list[str]]:
    """Children and their two or three parents; some parents have two children."""
    return {f"c{i}": parents_of_merge(i) for i in range(MERGES)} | {
        f"d{i}": parents_of_merge(i)[:2] for i in range(0, MERGES, 3)
    }


def parents_of_merge(i: int) -> list[str]:
    return [f"p{i}-{j}" for j in range(2 + i % 2)]


@pytest.fixture(params=["sqlite", "postgresql", "postgresql with REPEATABLE READ"])
def url(request: pytest.FixtureRequest, tmp_path: Path, new_postgres_url: Callable[[], str]) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'state.db'}"
    made = sa.make_url(new_postgres_url())
    if request.param != "postgresql":
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
    claimed = []
    for first in range(0, MERGES, MERGES_AT_ONCE):
        parents = [
            parent
            for i in range(first, first + MERGES_AT_ONCE)
            for j, parent in enumerate(parents_of_merge(i))
            if (i + j) % PROCESSES == task
        ]
        order.shuffle(parents)
        in_step.wait(60)
        for parent in parents:
            children = tuple(
                ChildPartition(child, frozenset(of))
                for child, of in merges().items()
                if parent in of
            )
            for child in finish_partition(
                store, Task(PLAN, task, ()), Partition(parent, 0), Finished(50_000, children)
            ):
                arrived = store.run(lambda t, c=child.token: t.arrivals("plan", [c]))  # type: ignore[misc]
                assert arrived == {child.token: child.parents}, "claimed before its parents ended"
                claimed.append(child.token)
    store.close()
    results.put(claimed)


def test_each_child_is_claimed_once_after_all_parents_by_many_processes(url: str) -> None:
    store = Store.open(url, migrate=True)
    store.ensure_pipeline("orders", "stream")
    parents = sorted({parent for of in merges().values() for parent in of})
    store.replace_partitions("orders", [Partition(parent, 0) for parent in parents])
    store.begin_plan(PLAN)
    # Two transactions that insert the same row wait for each other anyway; where the row is there
    # already, as for the last two of three parents, only the lock makes them wait.
    there = sorted(merges())[::2]
    store.run(lambda t: t.lock_children("plan", there))
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    in_step = context.Barrier(PROCESSES)
    workers = [
        context.Process(target=finish_some, args=(url, task, in_step, results))
        for task in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
        assert worker.exitcode == 0
    claimed = sorted(child for _ in workers for child in results.get(timeout=10))
    assert claimed == sorted(merges())
    arrivals = store.run(lambda t: t.arrivals("plan", list(merges())))
    assert arrivals == {child: frozenset(of) for child, of in merges().items()}
    store.close()


def test_of_two_parents_at_the_same_moment_one_sees_both(url: str) -> None:
    store = Store.open(url, migrate=True)
    store.run(lambda t: t.lock_children("plan", ["c"]))
    both_recorded = Barrier(2)

    def arrive(parent: str) -> int:
        def work(transaction: Transaction) -> int:
            transaction.lock_children("plan", ["c"])
            transaction.record_arrivals("plan", parent, ["c"])
            # Met only if neither waits for the other, and then neither sees the other.
            with contextlib.suppress(BrokenBarrierError):
                both_recorded.wait(0.5)
            return len(transaction.arrivals("plan", ["c"])["c"])

        return store.run(work)

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(arrive, "ab")) == [1, 2]
    store.close()


def test_a_retried_task_finds_its_claims_and_no_other_ones(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'state.db'}", migrate=True)
    store.ensure_pipeline("orders", "stream")
    store.replace_partitions("orders", [Partition("a", 0), Partition("b", 0)])
    store.begin_plan(PLAN)
    ending = Finished(50_000, (ChildPartition("c", frozenset({"a", "b"})),))

    def finish(task: int, parent: str) -> list[str]:
        found = finish_partition(store, Task(PLAN, task, ()), Partition(parent, 0), ending)
        return [child.token for child in found]

    assert finish(0, "a") == []
    assert finish(1, "b") == ["c"]
    # Both tasks fail and run again: the child stays with the task that claimed it.
    assert finish(0, "a") == []
    assert finish(1, "b") == ["c"]
    store.close()
