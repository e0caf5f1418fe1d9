"""How an epoch's root partitions are spread over tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from state.facts import Partition, Plan


@dataclass(frozen=True, slots=True)
class Task:
    """A share of a plan: the root partitions that one task reads, and later their children.

    Attributes:
        plan: the plan it belongs to.
        index: its number in the plan; claims are kept under it, so that a retried task finds the
            child partitions that its first attempt had claimed.
        roots: the partitions to begin with.
    """

    plan: Plan
    index: int
    roots: tuple[Partition, ...]


def assign(plan: Plan, roots: Sequence[Partition], *, tasks_max: int) -> list[Task]:
    """Tasks that hold every root once, evenly; none is empty.

    Raises:
        ValueError: tasks_max is below 1.
    """
    if tasks_max < 1:
        raise ValueError(f"a plan needs at least one task, not {tasks_max}")
    count = min(tasks_max, len(roots))
    return [Task(plan, index, tuple(roots[index::count])) for index in range(count)]
