"""The distribution of an epoch's root partitions over tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import Final

from slackwater.state.models import Partition, Plan


@dataclass(frozen=True, slots=True)
class Task:
    """A part of a plan: the root partitions that one task reads, and later their children.

    Attributes:
        plan: the plan it belongs to.
        index: its number in the plan; the store keeps claims under this number, so that a retried
            task has the child partitions that an earlier attempt claimed.
        roots: the partitions to begin with.
    """

    plan: Plan
    index: int
    roots: tuple[Partition, ...]


# Opening a query costs about as much as reading this many records.
_QUERY_RECORDS: Final = 100


def balance(
    plan: Plan, roots: Sequence[Partition], partition_load: Mapping[str, int], *, tasks_max: int
) -> list[Task]:
    """Return tasks that hold each root once, balanced by the roots' recent load; none is empty.

    Roots are assigned heaviest first, each to the task with the least load so far. So no task gets
    more than 4/3 of the load of the heaviest task in the best assignment (Graham, "Bounds on
    Multiprocessing Timing Anomalies", 1969).

    Args:
        plan: the plan to which the tasks belong.
        roots: the partitions to begin with.
        partition_load: the number of records by partition label; partitions not listed count as
            idle.
        tasks_max: the largest number of tasks.

    Raises:
        ValueError: tasks_max is below 1.
    """
    if tasks_max < 1:
        raise ValueError(f"a plan needs at least one task, not {tasks_max}")
    roots_by_task: list[list[Partition]] = [[] for _ in range(min(tasks_max, len(roots)))]
    loads = [(0, index) for index in range(len(roots_by_task))]
    for root in sorted(roots, key=lambda root: -partition_load.get(root.label, 0)):
        load, index = loads[0]
        roots_by_task[index].append(root)
        heapreplace(loads, (load + _QUERY_RECORDS + partition_load.get(root.label, 0), index))
    return [Task(plan, index, tuple(own)) for index, own in enumerate(roots_by_task)]
