"""The daemon: one pipeline, epoch after epoch, until it is told to drain."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from reader.connection import Connection
from reader.errors import ReaderError
from scheduler.audit import Written
from scheduler.lineage import is_finished
from scheduler.source import FORMAT
from scheduler.task import AuditMode
from slackwater.epoch_audit import audit_written
from slackwater.epoch_report import EpochReport, Progress, parse_progress
from slackwater.errors import PipelineFailedError
from slackwater.ownership import Ownership
from slackwater.restart import Failure, delay_s, diagnose
from spark_sink.sink import EpochSummary, Sink
from spark_sink.timestamps import microseconds, timestamp
from state.epochs import prune_epochs, record_epoch
from state.errors import LeaseLostError, StateError
from state.facts import Epoch, PipelineState, Wanted
from state.plans import settle
from state.store import Store

_log = structlog.get_logger("slackwater.daemon")

_POLL_S: Final = 0.05
_LAST_REPORT_S_MAX: Final = 2.0
_HINT: Final = "Nothing is lost: run it again when the cause is mended"
EPOCHS_KEPT: Final = 10_000


class Outcome(Enum):
    """How a run of the daemon ended, where it did not fail."""

    DONE = auto()
    LEASE_LOST = auto()


@dataclass(frozen=True, slots=True)
class Pace:
    """How a daemon goes.

    Attributes:
        trigger_ms: the time from one epoch's start to the next one's; 0 for no pause.
        until_ns: stop after the epoch that reaches this low watermark; None for never.
        tries_max: give up after so many failures without an epoch between; None for never.
        audit: what becomes of an epoch that fails the audit.
    """

    trigger_ms: int
    until_ns: int | None
    tries_max: int | None
    audit: AuditMode


class Daemon:
    """Runs one pipeline in this process, which owns it.

    Args:
        spark: a session with the source registered.
        pipeline: its name.
        options: of the Spark source.
        sink: where epochs go.
        checkpoint: Spark's checkpoint directory.
        pace: how it goes.
        store: the metadata store.
        connection: for Spanner's clock.
        ownership: holds the lease.
        drain: set by whoever wants the running epoch to be the last.
        on_epoch: called with each committed epoch, on a thread of its own.
        remedies: what to do about an error, by its class, where the error itself can't know.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        pipeline: str,
        options: Mapping[str, str],
        sink: Sink,
        checkpoint: str,
        pace: Pace,
        store: Store,
        connection: Connection,
        ownership: Ownership,
        drain: threading.Event,
        on_epoch: Callable[[EpochReport], None],
        remedies: Mapping[str, str],
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._options = dict(options)
        self._sink = sink
        self._checkpoint = checkpoint
        self._pace = pace
        self._store = store
        self._connection = connection
        self._ownership = ownership
        self._drain = drain
        self._on_epoch = on_epoch
        self._remedies = remedies
        self._written: dict[int, tuple[EpochSummary, int]] = {}
        self._state = PipelineState.STARTING
        self._epochs = 0
        self._reported = -1
        self._reached = threading.Event()

    def run(self) -> Outcome:
        """Run until the end, a drain or a failure that trying again can't mend.

        A query that fails is started again after a growing delay: Spark replays the epoch.

        Raises:
            PipelineFailedError: it was given up; nothing is lost, it can be run again.
        """
        self._store.set_wanted(self._pipeline, Wanted.RUNNING)
        listener = _Listener(self._committed)
        self._spark.streams.addListener(listener)
        try:
            return self._run()
        finally:
            self._spark.streams.removeListener(listener)

    def _run(self) -> Outcome:
        failures = 0
        while True:
            self._note(PipelineState.STARTING)
            epochs_before = self._epochs
            failure = self._watch(self._start())
            if self._ownership.lost.is_set() or (failure and failure.is_lease_lost):
                return Outcome.LEASE_LOST
            if failure is None:
                self._note(PipelineState.NOT_RUNNING)
                return Outcome.DONE
            failures = 1 if self._epochs > epochs_before else failures + 1
            if failure.is_permanent or failures == self._pace.tries_max:
                self._give_up(failure)
            self._note(PipelineState.FAILED, failure.message)
            seconds = delay_s(failures)
            _log.error(
                "failed, will try again",
                pipeline=self._pipeline,
                seconds=seconds,
                error=failure.message,
            )
            if self._drain.wait(seconds):
                return Outcome.DONE

    def _give_up(self, failure: Failure) -> None:
        hint = self._remedies.get(failure.kind, _HINT)
        self._note(PipelineState.FAILED_PERMANENTLY, f"{failure.message} {hint}")
        raise PipelineFailedError(
            f"the pipeline failed: {failure.message}", hint, user_error=failure.is_permanent
        )

    def _start(self) -> StreamingQuery:
        changes = self._spark.readStream.format(FORMAT).options(**self._options).load()
        return (
            changes.writeStream.foreachBatch(self._write)
            .option("checkpointLocation", self._checkpoint)
            .trigger(processingTime=f"{self._pace.trigger_ms} milliseconds")
            .queryName(self._pipeline)
            .start()
        )

    def _write(self, changes: DataFrame, epoch: int) -> None:
        summary = self._sink.stage(changes, epoch)
        self._ownership.check()
        audited = audit_written(self._store, self._pipeline, _seen(summary), self._pace.audit)
        self._sink.publish(self._spark, epoch, summary, timestamp(audited.low_watermark_ns))
        self._written[epoch] = (summary, audited.late_records)

    def _watch(self, query: StreamingQuery) -> Failure | None:
        """Wait for the query's end, or bring it about; why it failed, None where it did not."""
        draining = False
        while query.isActive and not (self._reached.is_set() or self._ownership.lost.is_set()):
            if self._drain.is_set() and not draining:
                draining = True
                # The source offers no further epoch, so the one that runs is the last.
                self._store.set_wanted(self._pipeline, Wanted.DRAINING)
                self._note(PipelineState.DRAINING)
            if draining and not query.status["isTriggerActive"]:
                break
            time.sleep(_POLL_S)
        if failure := query.exception():
            return diagnose(str(failure))
        if not self._ownership.lost.is_set():
            self._wait_for_last_report(query)
        query.stop()
        return None

    def _wait_for_last_report(self, query: StreamingQuery) -> None:
        """Spark tells its listeners a moment after it has committed."""
        last = query.lastProgress
        until = time.monotonic() + _LAST_REPORT_S_MAX
        while last is not None and self._reported < last.batchId and time.monotonic() < until:
            time.sleep(_POLL_S)

    def _committed(self, progress: Progress) -> None:
        """Spark has committed an epoch, or found nothing new."""
        try:
            if progress.is_epoch and progress.end_ns is not None:
                self._store.commit_watermark(
                    self._pipeline, progress.end_ns, generation=self._ownership.generation
                )
                settle(self._store, self._pipeline, progress.end_ns)
                self._record(progress, progress.start_ns, progress.end_ns)
        except LeaseLostError:
            self._ownership.lost.set()
        except StateError as error:
            # The next epoch's commit says all that this one would have.
            _log.warning("epoch not recorded", pipeline=self._pipeline, error=error.message)
        finally:
            self._reported = progress.epoch
            # A store that fails here must not keep the program from ending.
            if self._pace.until_ns is not None and (progress.end_ns or 0) >= self._pace.until_ns:
                self._reached.set()

    def _record(self, progress: Progress, start_ns: int | None, end_ns: int) -> None:
        if self._state is PipelineState.STARTING:
            self._note(PipelineState.RUNNING)
        self._epochs += 1
        summary, late = self._written.pop(progress.epoch, (None, 0))
        if start_ns is None or summary is None:
            return
        lineage = self._store.lineage_at(self._pipeline, end_ns)
        report = EpochReport(
            epoch=progress.epoch,
            start_ns=start_ns,
            low_watermark_ns=end_ns,
            records=summary.records,
            written=summary.written,
            transactions=summary.transactions,
            late_records=late,
            partitions=len([p for p in lineage if not is_finished(p, end_ns)]),
            lag_ns=self._lag_ns(end_ns),
            seconds=progress.seconds,
            stages_ms=progress.stages_ms,
        )
        record_epoch(
            self._store,
            Epoch(
                pipeline=self._pipeline,
                start_ns=start_ns,
                end_ns=end_ns,
                records=report.records,
                transactions=report.transactions,
                partitions=report.partitions,
                committed_at_ns=time.time_ns(),
                seconds=report.seconds,
                late_records=report.late_records,
            ),
        )
        if progress.epoch % 1_000 == 0:
            prune_epochs(self._store, self._pipeline, keep=EPOCHS_KEPT)
        self._on_epoch(report)

    def _lag_ns(self, end_ns: int) -> int:
        with suppress(ReaderError):
            return self._connection.strong_read_timestamp_ns() - end_ns
        return time.time_ns() - end_ns

    def _note(self, state: PipelineState, reason: str = "") -> None:
        self._state = state
        try:
            self._store.set_state(self._pipeline, state, reason, time.time_ns())
        except StateError as error:
            _log.warning("state not recorded", pipeline=self._pipeline, error=error.message)


def _seen(summary: EpochSummary) -> Written:
    first, last = summary.commit_timestamp_min, summary.commit_timestamp_max
    return Written(summary.records, _ns(first), _ns(last))


def _ns(stamp: datetime | None) -> int | None:
    return None if stamp is None else microseconds(stamp) * 1_000


class _Listener(StreamingQueryListener):
    def __init__(self, on_progress: Callable[[Progress], None]) -> None:
        self._on_progress_parsed = on_progress

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self._on_progress_parsed(parse_progress(json.loads(event.progress.json)))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass
