"""The planning of epochs, whatever the source: its clock and the metadata store for the pure rules.

A subclass knows where an epoch's records begin: scheduler.planner by partitions and a time,
scheduler.bigtable.planner by a continuation token for each partition.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from slackwater.scheduler import epoch
from slackwater.scheduler import epoch_lead as lead
from slackwater.scheduler.change_source import ReadableSource
from slackwater.scheduler.epoch_span import EPOCHS_CONSIDERED, next_span_ns
from slackwater.scheduler.errors import (
    CheckpointBehindError,
    CheckpointLostError,
    WatermarkRegressionError,
)
from slackwater.scheduler.options import SourceOptions
from slackwater.scheduler.read_options import NOW, Reading
from slackwater.scheduler.start_position import first_watermark_ns
from slackwater.state.commit import commit_epoch
from slackwater.state.epochs import last_epochs
from slackwater.state.gaps import gaps
from slackwater.state.models import DesiredState, Gap
from slackwater.state.rescan_models import RescanState
from slackwater.state.rescans import rescans
from slackwater.state.store import Store
from slackwater.state.task_metrics import read_task_metrics
from slackwater.timestamp import format_rfc3339

_PRUNE_EVERY_S: Final = 60.0

T = TypeVar("T")
S = TypeVar("S", bound=ReadableSource)


class EpochPlanner(ABC, Generic[T, S]):
    """The planner of a pipeline's epochs, in the process that drives it; its tasks are of type T.

    Args:
        options: of the Spark source.
        source: where the records come from.
        store: the metadata store.
        monotonic_s: the time, for tests.
    """

    def __init__(
        self,
        options: SourceOptions[Any],
        source: S,
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

    def clock_ns(self) -> int:
        """Read the source's clock."""
        return self._source.strong_read_timestamp_ns()

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

    def plan_first(self, end_ns: int) -> Sequence[T]:
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

    def plan(self, start_ns: int, end_ns: int) -> Sequence[T]:
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
        if not (is_committed and self._has_partitions_at(start_ns, end_ns)):
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
            self._prune(watermark_ns)

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

    def _plan_over(self, gap: Gap, end_ns: int) -> Sequence[T]:
        """Plan an epoch that starts in an accepted gap: only records after the gap are read."""
        if end_ns < gap.end_ns:
            return self._plan(end_ns, end_ns)
        self._discover(gap.end_ns, end_ns)
        return self._plan(gap.end_ns, end_ns)

    def _plan(self, start_ns: int, end_ns: int) -> Sequence[T]:
        plan_id, tasks = self._begin_plan(start_ns, end_ns)
        # The end of a replayed epoch was chosen by another process, or long ago.
        self._last = None if self._chosen_ns is None else (plan_id, self._chosen_ns)
        self._chosen_ns = None
        return tasks

    @abstractmethod
    def _begin_plan(self, start_ns: int, end_ns: int) -> tuple[str, Sequence[T]]:
        """Add a plan of a cut to the store; return its id and its tasks."""

    @abstractmethod
    def _discover(self, watermark_ns: int, end_ns: int) -> None:
        """Find the partitions at a low watermark, for an epoch that starts there and ends later."""

    @abstractmethod
    def _has_partitions_at(self, watermark_ns: int, end_ns: int) -> bool:
        """Return whether the store has them for an epoch that starts at a low watermark.

        Args:
            watermark_ns: one that the store has as committed.
            end_ns: the epoch's end.
        """

    @abstractmethod
    def _rediscover_partitions(self, watermark_ns: int) -> None:
        """Set a store that is older than the checkpoint to the checkpoint's low watermark."""

    @abstractmethod
    def _prune(self, watermark_ns: int) -> None:
        """Remove what a committed low watermark has made obsolete."""
