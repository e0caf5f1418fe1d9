"""The planning of epochs of Bigtable's: a position for each partition in the metadata store."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slackwater.reader.bigtable.positions import (
    Position,
    Read,
    make_up_table,
    reads_of,
    starting_at,
    to_text,
)
from slackwater.scheduler.bigtable.bigtable_source import BigtableSource
from slackwater.scheduler.bigtable.stored_positions import positions_of
from slackwater.scheduler.epoch_planner import EpochPlanner
from slackwater.scheduler.errors import PositionsLostError
from slackwater.state.models import Plan
from slackwater.state.plans import begin_plan, partition_load, sealed_plan_id
from slackwater.state.positions import TaskPositions, set_positions
from slackwater.timestamp import format_rfc3339, ns_to_us

# Opening a read costs about as much as reading this many changes.
_READ_CHANGES: Final = 100
# With keys of the longest kind, of 4 KB, two megabytes: Spanner takes 2.5.
_IN_A_TEXT: Final = 100


@dataclass(frozen=True, slots=True)
class TabletTask:
    """A part of a plan.

    Attributes:
        plan: the plan it belongs to.
        index: its number in the plan.
        reads: the partitions that it begins with.
        is_last: nothing is read after this epoch.
    """

    plan: Plan
    index: int
    reads: tuple[Read, ...]
    is_last: bool = False


def task_positions(positions: Sequence[Position]) -> list[TaskPositions]:
    """Return positions as the store has them, in texts that each of its databases takes."""
    chunks = [positions[at : at + _IN_A_TEXT] for at in range(0, len(positions), _IN_A_TEXT)]
    return [TaskPositions(len(chunk), to_text(chunk)) for chunk in chunks or [[]]]


def in_runs(
    reads: Sequence[Read], partition_load: Mapping[str, int], *, tasks_max: int
) -> list[tuple[Read, ...]]:
    """Return the reads of each task: neighbours, so that most merges are one task's.

    Args:
        reads: in the order of their keys.
        partition_load: the number of recent changes by label; others count as idle.
        tasks_max: the largest number of tasks.
    """
    costs = [_READ_CHANGES + partition_load.get(read.label, 0) for read in reads]
    total, before = sum(costs), 0
    runs: dict[int, list[Read]] = {}
    for read, cost in zip(reads, costs, strict=True):
        runs.setdefault((before + cost // 2) * tasks_max // total, []).append(read)
        before += cost
    return [tuple(run) for run in runs.values()]


class TabletPlanner(EpochPlanner[TabletTask, BigtableSource]):
    """The planner of a pipeline that reads a table of Bigtable's; see EpochPlanner.

    An epoch that is planned again after it was written is not read again: it would end elsewhere.
    Its new plan has no tasks, and the positions of the plan that was written. That is the last one
    of its cut: each start of a query has fenced former owners before it looked at the output. An
    epoch without rows has no commit in the output, which would fence them: it is read again.
    """

    def _begin_plan(self, start_ns: int, end_ns: int) -> tuple[str, Sequence[TabletTask]]:
        options = self._options
        name, plan_id = options.pipeline, uuid.uuid4().hex
        plan = Plan(plan_id, name, start_ns, end_ns, options.generation)
        if start_ns < end_ns and self._is_done(end_ns):
            # Once it is committed its positions are those of the pipeline.
            written = sealed_plan_id(self._store, name, start_ns, end_ns)
            is_committed = bool(self._positions_at(end_ns))
            if written is None and not is_committed:
                raise self._lost(end_ns)
            begin_plan(self._store, plan, tasks=0, repeats=None if is_committed else written)
            return plan_id, []
        tasks = self._tasks(plan) if start_ns < end_ns else []
        begin_plan(self._store, plan, tasks=len(tasks))
        return plan_id, tasks

    def _tasks(self, plan: Plan) -> list[TabletTask]:
        positions = self._positions_at(plan.start_ns)
        if not make_up_table(positions):
            raise self._lost(plan.start_ns)
        load = partition_load(self._store, plan.pipeline)
        # What two tasks would have to merge would wait for another epoch.
        is_last = plan.end_ns == self._options.end_ns
        tasks_max = 1 if is_last else self._options.tasks_max
        runs = in_runs(reads_of(positions), load, tasks_max=tasks_max)
        return [TabletTask(plan, index, own, is_last) for index, own in enumerate(runs)]

    def _positions_at(self, watermark_ns: int) -> list[Position]:
        return positions_of(self._store, self._options.pipeline, watermark_ns)

    def _has_partitions_at(self, watermark_ns: int, end_ns: int) -> bool:
        return self._is_done(end_ns) or bool(self._positions_at(watermark_ns))

    def _is_done(self, end_ns: int) -> bool:
        """Return whether an epoch was written or committed, by its end."""
        return self._options.written_ns == end_ns or bool(self._positions_at(end_ns))

    def _discover(self, watermark_ns: int, end_ns: int) -> None:
        """Read the present partitions from a time on, unless they have positions there."""
        is_done = watermark_ns < end_ns and self._is_done(end_ns)
        if is_done or self._positions_at(watermark_ns):
            return
        partitions = self._source.partitions_alive(watermark_ns)
        start_us = ns_to_us(watermark_ns) + 1
        if self._options.is_checkpoint_lost:
            # A partition may have been behind.
            start_us = self._source.before_or_at_us(partitions, start_us)
        first = starting_at(partitions, start_us)
        set_positions(
            self._store,
            self._options.pipeline,
            task_positions(first),
            watermark_ns,
            generation=self._options.generation,
        )

    def _rediscover_partitions(self, watermark_ns: int) -> None:
        raise self._lost(watermark_ns)

    def _prune(self, watermark_ns: int) -> None:
        """Do nothing: positions replace each other."""

    def _lost(self, watermark_ns: int) -> PositionsLostError:
        return PositionsLostError(self._options.pipeline, format_rfc3339(watermark_ns))
