"""The planning of epochs of Bigtable's: a position for each partition in the metadata store."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.reader.bigtable.positions import (
    Position,
    Read,
    from_text,
    make_up_table,
    reads_of,
    starting_at,
    to_text,
)
from slackwater.scheduler.bigtable.bigtable_source import BigtableSource
from slackwater.scheduler.epoch_planner import EpochPlanner
from slackwater.scheduler.errors import PositionsLostError
from slackwater.scheduler.plan import spread
from slackwater.state.models import Plan
from slackwater.state.plans import begin_plan, partition_load, sealed_plan_id
from slackwater.state.positions import TaskPositions, read_positions, set_positions
from slackwater.timestamp import format_rfc3339, ns_to_us


@dataclass(frozen=True, slots=True)
class TabletTask:
    """A part of a plan.

    Attributes:
        plan: the plan it belongs to.
        index: its number in the plan.
        reads: the partitions that it reads.
    """

    plan: Plan
    index: int
    reads: tuple[Read, ...]


class TabletPlanner(EpochPlanner[TabletTask, BigtableSource]):
    """The planner of a pipeline that reads a table of Bigtable's; see EpochPlanner.

    An epoch that is planned again after it was written is not read again: it would end elsewhere.
    Its new plan has no tasks, and the positions of the plan that was written. That is the last one
    of its cut: each start of a query has fenced former owners before it looked at the output.
    """

    def _begin_plan(self, start_ns: int, end_ns: int) -> tuple[str, Sequence[TabletTask]]:
        options = self._options
        name, plan_id = options.pipeline, uuid.uuid4().hex
        plan = Plan(plan_id, name, start_ns, end_ns, options.generation)
        if options.written_ns == end_ns and start_ns < end_ns:
            written = sealed_plan_id(self._store, name, start_ns, end_ns)
            if written is None and not self._positions_at(end_ns):
                raise self._lost(end_ns)
            begin_plan(self._store, plan, tasks=0, repeats=written)
            return plan_id, []
        tasks = self._tasks(plan) if start_ns < end_ns else []
        begin_plan(self._store, plan, tasks=len(tasks))
        return plan_id, tasks

    def _tasks(self, plan: Plan) -> list[TabletTask]:
        positions = self._positions_at(plan.start_ns)
        if not make_up_table(positions):
            raise self._lost(plan.start_ns)
        load = partition_load(self._store, plan.pipeline)
        reads = spread(reads_of(positions), load, tasks_max=self._options.tasks_max)
        return [TabletTask(plan, index, own) for index, own in enumerate(reads)]

    def _positions_at(self, watermark_ns: int) -> list[Position]:
        texts = read_positions(self._store, self._options.pipeline, watermark_ns)
        return [position for text in texts for position in from_text(text)]

    def _has_partitions_at(self, watermark_ns: int, end_ns: int) -> bool:
        is_written = self._options.written_ns == end_ns
        return is_written or bool(self._positions_at(watermark_ns))

    def _discover(self, watermark_ns: int, end_ns: int) -> None:  # noqa: ARG002
        """Read the present partitions from a time on, unless they have positions there."""
        if self._positions_at(watermark_ns):
            return
        partitions = self._source.partitions_alive(watermark_ns)
        first = starting_at(partitions, ns_to_us(watermark_ns) + 1)
        set_positions(
            self._store,
            self._options.pipeline,
            TaskPositions(len(first), to_text(first)),
            watermark_ns,
            generation=self._options.generation,
        )

    def _rediscover_partitions(self, watermark_ns: int) -> None:
        raise self._lost(watermark_ns)

    def _prune(self, watermark_ns: int) -> None:
        """Do nothing: positions replace each other."""

    def _lost(self, watermark_ns: int) -> PositionsLostError:
        return PositionsLostError(self._options.pipeline, format_rfc3339(watermark_ns))
