"""Many processes finish the parents of the same children at once: each child is claimed once."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from reader.ending import Finished
from reader.records import ChildPartition
from scheduler.claim import finish_partition
from scheduler.plan import Task
from state.facts import Partition, Plan
from state.store import Store

PROCESSES = 6
MERGES = 90
PLAN = Plan("plan", "orders", 500, 100_500)


def merges() -> dict[str, list[str]]:
    """Children and their two or three parents; some parents have two children."""
    return {f"c{i}": [f"p{i}-{j}" for j in range(2 + i % 2)] for i in range(MERGES)} | {
        f"d{i}": [f"p{i}-0", f"p{i}-1"] for i in range(0, MERGES, 3)
    }


def finish_some(url: str, task: int, parents: list[str], results: object) -> None:
    """One process: finish these parents, one after another, as one task of the plan."""
    store = Store.open(url, migrate=False)
    claimed = []
    for parent in parents:
        children = tuple(
            ChildPartition(child, frozenset(of)) for child, of in merges().items() if parent in of
        )
        found = finish_partition(
            store, Task(PLAN, task, ()), Partition(parent, 0), Finished(50_000, children)
        )
        claimed += [child.token for child in found]
    store.close()
    results.put((task, claimed))  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_each_child_is_claimed_once_after_all_parents_by_many_processes(
    kind: str, tmp_path: Path, new_postgres_url: Callable[[], str]
) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}" if kind == "sqlite" else new_postgres_url()
    store = Store.open(url, migrate=True)
    store.ensure_pipeline("orders", "stream")
    parents = sorted({parent for of in merges().values() for parent in of})
    store.replace_partitions("orders", [Partition(parent, 0) for parent in parents])
    store.begin_plan(PLAN)
    order = random.Random(7)
    order.shuffle(parents)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [
        context.Process(target=finish_some, args=(url, task, parents[task::PROCESSES], results))
        for task in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    claims = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join(timeout=60)
        assert worker.exitcode == 0
    claimed = sorted(child for _, children in claims for child in children)
    assert claimed == sorted(merges())
    arrivals = store.run(lambda t: t.arrivals("plan", list(merges())))
    assert arrivals == {child: frozenset(of) for child, of in merges().items()}
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
