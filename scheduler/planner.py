"""The planning of epochs of Spanner's: partitions in the metadata store, by their lineage."""

import logging
import uuid

from slackwater.scheduler import lineage_planning
from slackwater.scheduler.change_source import ChangeSource
from slackwater.scheduler.epoch_planner import EpochPlanner
from slackwater.scheduler.plan import Task, balance
from slackwater.state.commit import restart_at
from slackwater.state.errors import LineageMissingError
from slackwater.state.models import Partition, Plan
from slackwater.state.plans import (
    begin_plan,
    has_failed_audit,
    partition_load,
    sealed_plan_id,
)
from slackwater.timestamp import format_rfc3339

_log = logging.getLogger(__name__)


class Planner(EpochPlanner[Task, ChangeSource]):
    """The planner of a pipeline that reads a change stream of Spanner's; see EpochPlanner."""

    # As read for the epoch that is being planned: there may be many.
    _recorded: list[Partition] | None = None

    def _begin_plan(self, start_ns: int, end_ns: int) -> tuple[str, list[Task]]:
        name = self._options.pipeline
        recorded, self._recorded = self._recorded, None
        plan = Plan(
            uuid.uuid4().hex,
            name,
            start_ns,
            end_ns,
            self._options.generation,
            must_match_plan=sealed_plan_id(self._store, name, start_ns, end_ns),
            follows_failed_audit=has_failed_audit(self._store, name, start_ns, end_ns),
        )
        tasks: list[Task] = []
        if start_ns < end_ns:
            roots = lineage_planning.roots_of(self._store, plan, recorded)
            if not roots:
                # At any time some partition is there to be read.
                raise LineageMissingError(
                    f"the metadata store has no partition of pipeline {name!r} that can be read"
                    f" after low watermark {format_rfc3339(start_ns)}.",
                    "It was lost, or has gone back to an earlier state; the epoch is planned again",
                )
            tasks = balance(
                plan, roots, partition_load(self._store, name), tasks_max=self._options.tasks_max
            )
        claims = lineage_planning.claims_of(tasks, plan)
        begin_plan(self._store, plan, tasks=len(tasks), claims=claims)
        return plan.plan_id, tasks

    def _has_partitions_at(self, watermark_ns: int, end_ns: int) -> bool:  # noqa: ARG002
        """Return True if the store has the partitions at a low watermark that it has as committed.

        Partitions that ended longer ago than keep_ns may have been removed. And a store that was
        set to a later low watermark has only partitions that start there. Those of another
        partition mode are no longer the stream's.
        """
        name, pipeline = self._options.pipeline, self._store.pipeline(self._options.pipeline)
        if (
            pipeline is None
            or pipeline.partition_mode != self._source.partition_mode
            or pipeline.low_watermark_ns is None
            or pipeline.low_watermark_ns - self._options.keep_ns > watermark_ns
        ):
            return False
        self._recorded = lineage_planning.recorded_at(
            self._store, name, watermark_ns, self._source, generation=self._options.generation
        )
        return self._recorded is not None

    def _rediscover_partitions(self, watermark_ns: int) -> None:
        """Set a store that is older than the checkpoint to the checkpoint's low watermark.

        Its lineage may be older than the output: partitions that have ended since would be read
        again, and so would their children.
        """
        _log.warning(
            "pipeline %s: the metadata store does not have the partitions at low watermark %s;"
            " reading them from the change stream",
            self._options.pipeline,
            format_rfc3339(watermark_ns),
        )
        restart_at(
            self._store,
            self._options.pipeline,
            watermark_ns,
            self._source.partitions_alive(watermark_ns),
            mode=self._source.partition_mode,
            generation=self._options.generation,
        )

    def _discover(self, watermark_ns: int, end_ns: int) -> None:
        """Find the partitions at a low watermark, for an epoch that starts there.

        A plan of this cut that was read to its end has recorded the ends that it observed and the
        partitions that it claimed, and this one has to match them.
        """
        name, pipeline = self._options.pipeline, self._store.pipeline(self._options.pipeline)
        mode = self._source.partition_mode
        if (
            pipeline is not None
            and (pipeline.partition_mode, pipeline.starts_since_ns) == (mode, watermark_ns)
            and sealed_plan_id(self._store, name, watermark_ns, end_ns) is not None
        ):
            return
        self._store.replace_partitions(
            name,
            self._source.partitions_alive(watermark_ns),
            mode=mode,
            generation=self._options.generation,
        )

    def _prune(self, watermark_ns: int) -> None:
        lineage_planning.prune(
            self._store,
            self._options.pipeline,
            watermark_ns,
            keep_ns=self._options.keep_ns,
            generation=self._options.generation,
        )
