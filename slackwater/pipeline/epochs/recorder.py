"""The record of committed epochs: found in Spark's progress, stored and reported."""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from slackwater.pipeline.catch_up import EPOCHS_CONSIDERED, catch_up
from slackwater.pipeline.epochs.report import EpochReport, Progress, parse_progress
from slackwater.pipeline.epochs.writer import WrittenEpoch
from slackwater.scheduler.lineage_planning import count_alive
from slackwater.state.commit import commit_epoch
from slackwater.state.epochs import forget_epochs, record_epoch
from slackwater.state.errors import LeaseLostError, StateError
from slackwater.state.models import Epoch
from slackwater.state.rescan_models import RescanState
from slackwater.state.rescans import rescans
from slackwater.state.store import Store

_log = structlog.get_logger("slackwater.pipeline.epochs.recorder")

_FORGET_EVERY: Final = 100


class ProgressSource(Protocol):
    """The progress of a query."""

    def last_progress(self) -> str | None:
        """Return the JSON of the last progress; None before the first."""

    def recent_progress(self) -> Sequence[str]:
        """Return the JSON of the last few, the newest last."""


class HeldLease(Protocol):
    """The lease under which the epochs were written; see LeaseHolder."""

    lost: threading.Event

    @property
    def generation(self) -> int:
        """The generation of the lease."""


@dataclass(frozen=True, slots=True)
class RecordPolicy:
    """The limits of recording.

    Attributes:
        until_ns: the run ends with the epoch that reaches this low watermark; None for never.
        end_ns: no later epoch is planned. If it is not until_ns, the run goes on for tables that
            are being read again.
        keep_ns: how long recorded epochs are kept.
    """

    until_ns: int | None
    end_ns: int | None
    keep_ns: int


class EpochRecorder:
    """The recorder of one pipeline's committed epochs.

    Args:
        pipeline: its name.
        store: the metadata store.
        lease: the pipeline's.
        spanner_clock_ns: returns Spanner's clock at once: while Spanner is away the epochs that it
            has already served are recorded all the same.
        pop_written: returns an epoch that this process wrote; None if another one wrote it.
        committed: is called with each.
        policy: until when epochs are recorded, and how long they are kept.

    Attributes:
        epochs: how many have been committed.
        has_reached_end: True when the pipeline's end is reached.
    """

    def __init__(
        self,
        pipeline: str,
        store: Store,
        lease: HeldLease,
        spanner_clock_ns: Callable[[], int],
        pop_written: Callable[[int], WrittenEpoch | None],
        committed: Callable[[EpochReport], None],
        policy: RecordPolicy,
    ) -> None:
        self._pipeline = pipeline
        self._store = store
        self._lease = lease
        self._spanner_clock_ns = spanner_clock_ns
        self._pop_written = pop_written
        self._report = committed
        self._policy = policy
        self.epochs = 0
        self._last_epoch = -1
        self._last_text: str | None = None
        self.has_reached_end = False
        self._recent: deque[Epoch] = deque(maxlen=EPOCHS_CONSIDERED)

    def record_committed(self, query: ProgressSource) -> None:
        """Record the epochs that Spark has committed since the last call.

        Spark's listeners would report the same, but taking apart what they hand over costs a
        hundred calls to the JVM: on a busy machine their queue was half a minute behind.
        """
        text = query.last_progress()
        if text is None or text == self._last_text:
            return
        self._last_text = text
        progress = parse_progress(json.loads(text))
        if progress.epoch > self._last_epoch + 1:
            for earlier_text in query.recent_progress():
                earlier = parse_progress(json.loads(earlier_text))
                if earlier.is_epoch and self._last_epoch < earlier.epoch < progress.epoch:
                    self._committed(earlier)
        self._committed(progress)

    def _committed(self, progress: Progress) -> None:
        """Take a progress of Spark's: an epoch is committed, or there was nothing new."""
        try:
            if progress.is_epoch and progress.end_ns is not None:
                commit_epoch(
                    self._store, self._pipeline, progress.end_ns, generation=self._lease.generation
                )
                self.epochs += 1
                self._record(progress, progress.start_ns, progress.end_ns)
        except LeaseLostError:
            self._lease.lost.set()
        except StateError as error:
            # The next epoch's commit includes this one.
            _log.warning("epoch not recorded", pipeline=self._pipeline, error=error.message)
        finally:
            self._last_epoch = max(self._last_epoch, progress.epoch if progress.is_epoch else -1)
            # A store that fails here must not keep the program from ending.
            self.has_reached_end |= self._is_end(progress.end_ns or 0)

    def _is_end(self, low_watermark_ns: int) -> bool:
        until_ns, end_ns = self._policy.until_ns, self._policy.end_ns
        if until_ns is None or low_watermark_ns < until_ns:
            return False
        if end_ns is not None and low_watermark_ns >= end_ns:
            return True
        try:
            return not rescans(self._store, self._pipeline, [RescanState.RUNNING])
        except StateError as error:
            # The query fails for the same reason, and reports it.
            _log.debug("can't look for rescans", reason=error.message)
            return False

    def _record(self, progress: Progress, start_ns: int | None, end_ns: int) -> None:
        written = self._pop_written(progress.epoch)
        if start_ns is None or written is None:
            return
        epoch = self._epoch(progress, written, start_ns, end_ns)
        record_epoch(self._store, epoch)
        self._recent.append(epoch)
        if progress.epoch % _FORGET_EVERY == 0:
            forget_epochs(self._store, self._pipeline, before_ns=end_ns - self._policy.keep_ns)
        self._report(self._report_of(progress, written, epoch))

    def _epoch(
        self, progress: Progress, written: WrittenEpoch, start_ns: int, end_ns: int
    ) -> Epoch:
        return Epoch(
            pipeline=self._pipeline,
            start_ns=start_ns,
            end_ns=end_ns,
            records=written.summary.records,
            transactions=written.summary.transactions,
            partitions=count_alive(self._store, self._pipeline, end_ns),
            committed_at_ns=time.time_ns(),
            seconds=progress.seconds,
            late_records=written.audited.late_records,
        )

    def _report_of(self, progress: Progress, written: WrittenEpoch, epoch: Epoch) -> EpochReport:
        now_ns = time.time_ns()
        clock_ns = self._spanner_clock_ns()
        lag_ns = clock_ns - epoch.end_ns
        return EpochReport(
            epoch=progress.epoch,
            start_ns=epoch.start_ns,
            low_watermark_ns=epoch.end_ns,
            records=epoch.records,
            written=written.summary.written,
            transactions=epoch.transactions,
            late_records=epoch.late_records,
            partitions=epoch.partitions,
            lag_ns=lag_ns,
            catch_up=catch_up(self._recent, lag_ns=lag_ns, now_ns=now_ns, retention_ns=None),
            seconds=epoch.seconds,
            stages_ms=progress.stages_ms,
            read_ms=written.read_ms,
            sink_ms=written.sink_ms,
            begun_ns=progress.begun_ns,
            durable_ns=written.durable_at_ns + clock_ns - now_ns,
            measures=written.audited.measures,
        )
