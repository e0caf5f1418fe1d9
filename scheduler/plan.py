"""How an epoch's root partitions are spread over tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import Final

from slackwater.state.models import Partition, Plan


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


# A query costs about what reading so many records does.
_QUERY_RECORDS: Final = 100


def balance(
    plan: Plan, roots: Sequence[Partition], partition_load: Mapping[str, int], *, tasks_max: int
) -> list[Task]:
    """Tasks that hold every root once, balanced by what the roots carried lately; none is empty.

    The heaviest root first, each to the task with the least so far: no task gets more than 4/3 of
    what the heaviest task of the best assignment has (Graham, "Bounds on Multiprocessing Timing
    Anomalies", 1969).

    Args:
        plan: what they are tasks of.
        roots: the partitions to begin with.
        partition_load: records by partition token; a partition without is taken for idle.
        tasks_max: how many tasks there may be.

    Raises:
        ValueError: tasks_max is below 1.
    """
    if tasks_max < 1:
        raise ValueError(f"a plan needs at least one task, not {tasks_max}")
    shares: list[list[Partition]] = [[] for _ in range(min(tasks_max, len(roots)))]
    loads = [(0, index) for index in range(len(shares))]
    for root in sorted(roots, key=lambda root: -partition_load.get(root.token, 0)):
        load, index = loads[0]
        shares[index].append(root)
        heapreplace(loads, (load + _QUERY_RECORDS + partition_load.get(root.token, 0), index))
    return [Task(plan, index, tuple(share)) for index, share in enumerate(shares)]
