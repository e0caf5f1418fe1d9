"""The I/O of planning: it reads Spanner's clock and the metadata store for the pure rules."""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Final

from slackwater.scheduler import epoch, lineage_planning
from slackwater.scheduler import epoch_lead as lead
from slackwater.scheduler.change_source import ChangeSource
from slackwater.scheduler.epoch_span import EPOCHS_CONSIDERED, next_span_ns
from slackwater.scheduler.errors import (
    CheckpointBehindError,
    CheckpointLostError,
    WatermarkRegressionError,
)
from slackwater.scheduler.options import SourceOptions
from slackwater.scheduler.plan import Task, balance
from slackwater.scheduler.read_options import NOW, Reading
from slackwater.scheduler.start_position import first_watermark_ns
from slackwater.state.commit import commit_epoch, restart_at
from slackwater.state.epochs import last_epochs
from slackwater.state.gaps import gaps
from slackwater.state.models import DesiredState, Gap, Plan
from slackwater.state.plans import (
    begin_plan,
    has_failed_audit,
    partition_load,
    sealed_plan_id,
)
from slackwater.state.rescan_models import RescanState
from slackwater.state.rescans import rescans
from slackwater.state.store import Store
from slackwater.state.task_metrics import read_task_metrics
from slackwater.timestamp import format_rfc3339

_log = logging.getLogger(__name__)

_PRUNE_EVERY_S: Final = 60.0


class Planner:
    """The planner of a pipeline's epochs, in the process that drives it."""

    def __init__(
        self,
        options: SourceOptions,
        source: ChangeSource,
        store: Store,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._source = source
        self._store = store
        self._monotonic_s = monotonic_s
        self._pruned_at = monotonic_s()
        self._chosen_ns: int | None = None
        self._last: tuple[str, int] | None = None
        self._delays_ns: deque[int] = deque(maxlen=lead.EPOCHS_CONSIDERED)
        store.ensure_pipeline(options.pipeline, options.change_stream.path)

    def planned_watermark_ns(self) -> int | None:
        """Return the end of the last epoch planned; None if there is none."""
        pipeline = self._store.pipeline(self._options.pipeline)
        return pipeline.planned_watermark_ns if pipeline else None

    def first_watermark_ns(self) -> int:
        """Return the low watermark after which the pipeline starts, as start_position decides."""
        return first_watermark_ns(self._options.start, self._source)

    def next_watermark_ns(
        self, base_ns: int | None, *, clock_ns: int | None = None, is_bounded: bool = True
    ) -> int:
        """Return the end of the next epoch; base_ns if the pipeline should not run.

        Args:
            base_ns: the low watermark at which the epoch starts; None if it is not known.
            clock_ns: a reading of Spanner's clock that the end must not exceed; None reads the
                clock now and goes ahead of it as scheduler.epoch_lead says.
            is_bounded: False for an epoch of any length, up to the clock.
        """
        pipeline = self._store.pipeline(self._options.pipeline)
        if base_ns is not None and pipeline and pipeline.desired_state is not DesiredState.RUNNING:
            return base_ns
        begun_ns = self._options.begun_epoch_ns
        if base_ns is not None and begun_ns is not None and base_ns < begun_ns:
            return begun_ns
        if base_ns is not None and (gap := self._gap_at(base_ns)):
            return gap.end_ns
        lead_ns = 0
        if clock_ns is None:
            is_continuous = self._options.reading is Reading.CONTINUOUS
            lead_ns = (
                lead.behind_heartbeats_ns(self._options.heartbeat_ms)
                if is_continuous
                else self._lead_ns()
            )
            clock_ns = self._source.strong_read_timestamp_ns()
            self._chosen_ns = time.time_ns()
        return epoch.next_watermark(
            clock_ns=clock_ns,
            lead_ns=lead_ns,
            base_ns=base_ns,
            span_max_ns=self._span_max_ns() if is_bounded else clock_ns,
            end_ns=self._end_ns(base_ns),
        )

    def _end_ns(self, base_ns: int | None) -> int | None:
        """Return the last low watermark, None for none.

        A table is read again between epochs. So a run that ends when it has caught up goes on for
        those that are not finished: the next run would read them again from the beginning.
        """
        until_ns = self._options.caught_up_at_ns
        if until_ns is None or base_ns is None or base_ns < until_ns:
            return self._options.end_ns if until_ns is None else until_ns
        is_reading = bool(rescans(self._store, self._options.pipeline, [RescanState.RUNNING]))
        return self._options.end_ns if is_reading else until_ns

    def _lead_ns(self) -> int:
        """Return how far ahead of Spanner's clock the next epoch may end, in nanoseconds."""
        if self._last is not None:
            plan_id, chosen_ns = self._last
            if (begun_ns := read_task_metrics(self._store, plan_id).begun_ns) is not None:
                self._delays_ns.append(begun_ns - chosen_ns)
            self._last = None
        return lead.next_lead_ns(self._delays_ns)

    def _span_max_ns(self) -> int:
        """The longest span of the next epoch."""
        options = self._options
        if options.span_target is None:
            return options.span_max_ns
        last = last_epochs(self._store, options.pipeline, limit=EPOCHS_CONSIDERED)
        return next_span_ns(last, options.span_target, options.span_max_ns)

    def plan_first(self, end_ns: int) -> list[Task]:
        """Plan the pipeline's first epoch (start, end]; its start is decided here.

        Raises:
            CheckpointLostError: the pipeline has committed epochs before.
        """
        committed_ns = self._committed_ns() if self._options.is_state_lasting else None
        if committed_ns == end_ns:
            # The first epoch of a new checkpoint that replaces a lost one, planned again.
            start_ns = end_ns
        elif committed_ns is not None and not self._options.is_checkpoint_lost:
            raise CheckpointLostError(self._options.pipeline, format_rfc3339(committed_ns))
        elif self._options.start == NOW:
            # "now" is the end of the first epoch, which Spark's checkpoint keeps. Another reading
            # of the clock could not be repeated after a crash.
            start_ns = end_ns
        else:
            start_ns = min(self.first_watermark_ns(), end_ns)
        if gap := self._gap_at(start_ns):
            return self._plan_over(gap, end_ns)
        self._discover(start_ns, end_ns)
        return self._plan(start_ns, end_ns)

    def plan(self, start_ns: int, end_ns: int) -> list[Task]:
        """Plan the epoch (start, end]; planning it again gives the same cut under a new id.

        An epoch without a span has no tasks and no plan. After a restart, Spark asks for one at the
        end of the epoch that it is about to repeat, which is not committed yet.

        Raises:
            WatermarkRegressionError: end lies before start.
            CheckpointBehindError: epochs that end after the start were committed.
            ReaderError, StateError: Spanner or the store failed.
        """
        if end_ns < start_ns:
            raise WatermarkRegressionError(format_rfc3339(start_ns), format_rfc3339(end_ns))
        if end_ns == start_ns:
            return []
        # A crash may have come after the sink's commit and before the store recorded it. And a
        # process that has lost the pipeline learns of it here.
        is_committed = self._commit_epoch(start_ns)
        self._require_uncommitted(start_ns, end_ns)
        if gap := self._gap_at(start_ns):
            return self._plan_over(gap, end_ns)
        if not (is_committed and self._has_lineage_at(start_ns)):
            self._rediscover_partitions(start_ns)
        return self._plan(start_ns, end_ns)

    def commit(self, watermark_ns: int) -> None:
        """Record that the sink has committed everything through the watermark.

        Raises:
            LeaseLostError: the pipeline has another owner now.
        """
        self._commit_epoch(watermark_ns)
        if self._monotonic_s() - self._pruned_at >= _PRUNE_EVERY_S:
            self._pruned_at = self._monotonic_s()
            lineage_planning.prune(
                self._store,
                self._options.pipeline,
                watermark_ns,
                keep_ns=self._options.keep_ns,
                generation=self._options.generation,
            )

    def _committed_ns(self) -> int | None:
        """Return the low watermark of the last epoch that the store has as committed."""
        pipeline = self._store.pipeline(self._options.pipeline)
        return pipeline.low_watermark_ns if pipeline else None

    def _require_uncommitted(self, start_ns: int, end_ns: int) -> None:
        """Check that nothing after the start is committed, unless by this very epoch.

        Raises:
            CheckpointBehindError: it is.
        """
        committed_ns = self._committed_ns()
        if committed_ns is not None and committed_ns > start_ns and committed_ns != end_ns:
            raise CheckpointBehindError(
                self._options.pipeline, format_rfc3339(start_ns), format_rfc3339(committed_ns)
            )

    def _commit_epoch(self, watermark_ns: int) -> bool:
        options = self._options
        return commit_epoch(
            self._store, options.pipeline, watermark_ns, generation=options.generation
        )

    def _gap_at(self, watermark_ns: int) -> Gap | None:
        """Return the accepted gap in which an epoch would start; None if there is none."""
        return next(
            (
                gap
                for gap in gaps(self._store, self._options.pipeline)
                if gap.start_ns <= watermark_ns < gap.end_ns
            ),
            None,
        )

    def _plan_over(self, gap: Gap, end_ns: int) -> list[Task]:
        """Plan an epoch that starts in an accepted gap: only records after the gap are read."""
        if end_ns < gap.end_ns:
            return self._plan(end_ns, end_ns)
        self._discover(gap.end_ns, end_ns)
        return self._plan(gap.end_ns, end_ns)

    def _plan(self, start_ns: int, end_ns: int) -> list[Task]:
        name = self._options.pipeline
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
            roots = lineage_planning.roots_of(self._store, plan)
            tasks = balance(
                plan, roots, partition_load(self._store, name), tasks_max=self._options.tasks_max
            )
        claims = lineage_planning.claims_of(tasks, plan)
        begin_plan(self._store, plan, tasks=len(tasks), claims=claims)
        # The end of a replayed epoch was chosen by another process, or long ago.
        self._last = None if self._chosen_ns is None else (plan.plan_id, self._chosen_ns)
        self._chosen_ns = None
        return tasks

    def _has_lineage_at(self, watermark_ns: int) -> bool:
        """Return True if the store has the partitions at a low watermark that it has as committed.

        Partitions that ended longer ago than keep_ns may have been removed. And a store that was
        set to a later low watermark has only partitions that start there. Those of another
        partition mode are no longer the stream's.
        """
        name, pipeline = self._options.pipeline, self._store.pipeline(self._options.pipeline)
        return (
            pipeline is not None
            and pipeline.partition_mode == self._source.partition_mode
            and pipeline.low_watermark_ns is not None
            and pipeline.low_watermark_ns - self._options.keep_ns <= watermark_ns
            and lineage_planning.has_lineage_at(
                self._store, name, watermark_ns, self._source, generation=self._options.generation
            )
        )

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
