"""The daemon: one pipeline, epoch after epoch, until it is told to drain."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Final

import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from structlog.contextvars import bound_contextvars

from slackwater.errors import PipelineFailedError
from slackwater.pipeline.desired_state import DesiredStatePoller
from slackwater.pipeline.epoch_audit import AuditedEpoch, audit_written
from slackwater.pipeline.epoch_report import EpochReport, Progress, parse_progress
from slackwater.pipeline.failures import Failure, delay_s, diagnose
from slackwater.pipeline.lease_holder import LeaseHolder
from slackwater.pipeline.observer import Observer
from slackwater.reader.errors import ReaderError
from slackwater.reader.transport.connection import Connection
from slackwater.scheduler.audit import SinkCounts
from slackwater.scheduler.lineage import is_finished
from slackwater.scheduler.read_options import AuditMode
from slackwater.scheduler.spark.data_source import FORMAT
from slackwater.scheduler.worker_errors import encoded_errors
from slackwater.spark_sink.sink import EpochSummary, Sink
from slackwater.state.epochs import forget_epochs, record_epoch
from slackwater.state.errors import LeaseLostError, StateError
from slackwater.state.models import DesiredState, Epoch, PipelineState
from slackwater.state.plans import confirm_partition_ends
from slackwater.state.store import Store
from slackwater.timestamp import datetime_to_ns, ns_to_datetime, seconds_to_ms

_log = structlog.get_logger("slackwater.pipeline.query_runner")

_POLL_S: Final = 0.05
_LAST_WRITE_S_MAX: Final = 10.0
_HINT: Final = "Nothing is lost: run it again when the cause is mended"
_FORGET_EVERY: Final = 100
_HELD_STATES: Final = frozenset({PipelineState.DRAINING, PipelineState.PAUSED})


class Outcome(Enum):
    """How a run of the daemon ended, where it did not fail."""

    DONE = auto()
    HELD = auto()
    LEASE_LOST = auto()


@dataclass(frozen=True, slots=True)
class RunPolicy:
    """How a daemon goes.

    Attributes:
        trigger_ms: the time from one epoch's start to the next one's; 0 for no pause.
        until_ns: stop after the epoch that reaches this low watermark; None for never.
        tries_max: give up after so many failures without an epoch between; None for never.
        keeps_query_when_paused: a paused query stays, so that it goes on at once when it is
            resumed; otherwise the run ends.
        audit: what becomes of an epoch that fails the audit.
        keep_ns: how long epochs are remembered.
    """

    trigger_ms: int
    until_ns: int | None
    tries_max: int | None
    keeps_query_when_paused: bool
    audit: AuditMode
    keep_ns: int


@dataclass(frozen=True, slots=True)
class _WrittenEpoch:
    """An epoch that is visible, while Spark has not yet told of it."""

    summary: EpochSummary
    audited: AuditedEpoch
    read_ms: int
    sink_ms: int
    durable_at_ns: int


class QueryRunner:
    """Runs one pipeline in this process, which owns it.

    Args:
        spark: a session with the source registered.
        pipeline: its name.
        options: of the Spark source.
        sink: where epochs go.
        checkpoint: Spark's checkpoint directory.
        policy: how it goes.
        store: the metadata store.
        connection: for Spanner's clock.
        lease: holds the lease.
        desired_state: what is wanted of the pipeline.
        observer: hears of committed epochs and failures.
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
        policy: RunPolicy,
        store: Store,
        connection: Connection,
        lease: LeaseHolder,
        desired_state: DesiredStatePoller,
        observer: Observer,
        remedies: Mapping[str, str],
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._options = dict(options)
        self._sink = sink
        self._checkpoint = checkpoint
        self._policy = policy
        self._store = store
        self._connection = connection
        self._lease = lease
        self._desired_state = desired_state
        self._observer = observer
        self._remedies = remedies
        self._written: dict[int, _WrittenEpoch] = {}
        self._state = PipelineState.STARTING
        self._epochs = 0
        self._epochs_before = 0
        self._noted = -1
        self._seen_last: str | None = None
        self._reached = threading.Event()
        self._writing = threading.Lock()

    def run(self) -> Outcome:
        """Run until the end, until it shall not, or until trying again can't mend a failure.

        A query that fails is started again after a growing delay: Spark replays the epoch.

        Returns:
            HELD where the run ended because something else is wanted of the pipeline.

        Raises:
            PipelineFailedError: it was given up; nothing is lost, it can be run again.
        """
        failures = 0
        while True:
            self._note(PipelineState.STARTING)
            self._epochs_before = self._epochs
            failure = self._watch(self._start())
            if self._lease.lost.is_set() or (failure and failure.is_lease_lost):
                return Outcome.LEASE_LOST
            if failure is None:
                return Outcome.HELD if self._desired_state.is_held() else Outcome.DONE
            self._observer.failed(self._pipeline)
            failures = 1 if self._has_epoch() else failures + 1
            if failure.is_permanent or failures == self._policy.tries_max:
                self._give_up(failure)
            self._note(PipelineState.FAILED, failure.text)
            seconds = delay_s(failures)
            _log.error(
                "failed, will try again",
                pipeline=self._pipeline,
                seconds=seconds,
                error=failure.text,
            )
            if self._desired_state.wait(seconds):
                return Outcome.HELD

    def _give_up(self, failure: Failure) -> None:
        hint = self._remedies.get(failure.error_class, _HINT)
        self._note(PipelineState.FAILED_PERMANENTLY, f"{failure.text} {hint}")
        raise PipelineFailedError(
            f"the pipeline failed: {failure.text}", hint, user_error=failure.is_permanent
        )

    def _start(self) -> StreamingQuery:
        changes = self._spark.readStream.format(FORMAT).options(**self._options).load()
        return (
            changes.writeStream.foreachBatch(self._write)
            .option("checkpointLocation", self._checkpoint)
            .trigger(processingTime=f"{self._policy.trigger_ms} milliseconds")
            .queryName(self._pipeline)
            .start()
        )

    def _write(self, changes: DataFrame, epoch: int) -> None:
        context = bound_contextvars(pipeline=self._pipeline, epoch=epoch)
        with self._writing, context, encoded_errors():
            self._write_epoch(changes, epoch)

    def _write_epoch(self, changes: DataFrame, epoch: int) -> None:
        begun_s = time.monotonic()
        summary = self._sink.stage(changes, epoch)
        read_s = time.monotonic()
        self._lease.check()
        audited = audit_written(self._store, self._pipeline, _seen(summary), self._policy.audit)
        self._sink.publish(self._spark, epoch, summary, ns_to_datetime(audited.low_watermark_ns))
        self._written[epoch] = _WrittenEpoch(
            summary,
            audited,
            read_ms=seconds_to_ms(read_s - begun_s),
            sink_ms=seconds_to_ms(time.monotonic() - read_s),
            durable_at_ns=time.time_ns(),
        )

    def _watch(self, query: StreamingQuery) -> Failure | None:
        """Wait for the query's end, or bring it about; why it failed, None where it did not."""
        while query.isActive and not (self._reached.is_set() or self._lease.lost.is_set()):
            if self._desired_state.wanted is DesiredState.STOPPED:
                self._stop(query)
                return None
            self._look(query)
            if self._desired_state.is_held():
                if self._is_drained(query):
                    break
            elif self._state in _HELD_STATES:
                self._resume()
            time.sleep(_POLL_S)
        if not self._lease.lost.is_set():
            self._look(query)
        if failure := query.exception():
            return diagnose(failure)
        query.stop()
        return None

    def _is_drained(self, query: StreamingQuery) -> bool:
        """Let the running epoch be the last; True where it has ended and the run shall, too."""
        if self._desired_state.must_end():
            # A signal only this process has seen: now the source offers no further epoch either.
            self._desired_state.drain()
        if self._state not in _HELD_STATES:
            self._note(PipelineState.DRAINING)
        if query.status["isTriggerActive"]:
            return False
        # Before its first epoch a query does not wait: the source answers with the start, and Spark
        # replays what a former query left.
        is_paused = self._desired_state.wanted is DesiredState.PAUSED
        if not (is_paused and self._policy.keeps_query_when_paused and self._has_epoch()):
            return True
        if self._state is not PipelineState.PAUSED:
            self._look(query)
            self._note(PipelineState.PAUSED)
            _log.info("paused", pipeline=self._pipeline)
        return False

    def _has_epoch(self) -> bool:
        """True where the running query has committed one."""
        return self._epochs > self._epochs_before

    def _resume(self) -> None:
        """The source offers epochs again: a query started anew would take seconds for the first."""
        self._note(PipelineState.STARTING)
        _log.info("resumed", pipeline=self._pipeline)

    def _stop(self, query: StreamingQuery) -> None:
        """Leave the running epoch to be replayed."""
        query.stop()
        # Its callback may be at work in the sink still, where no other owner should meet it.
        if self._writing.acquire(timeout=_LAST_WRITE_S_MAX):
            self._writing.release()

    def _look(self, query: StreamingQuery) -> None:
        """Take note of the epochs that Spark has committed since the last look.

        Spark's listeners tell the same, but what they hand over is taken apart by a hundred calls
        to the JVM: on a busy machine their queue was half a minute behind.
        """
        last = query._jsq.lastProgress()
        text = None if last is None else last.json()
        if text is None or text == self._seen_last:
            return
        self._seen_last = text
        progress = parse_progress(json.loads(text))
        if progress.epoch > self._noted + 1:
            for earlier in query._jsq.recentProgress():
                found = parse_progress(json.loads(earlier.json()))
                if found.is_epoch and self._noted < found.epoch < progress.epoch:
                    self._committed(found)
        self._committed(progress)

    def _committed(self, progress: Progress) -> None:
        """Spark has committed an epoch, or found nothing new."""
        try:
            if progress.is_epoch and progress.end_ns is not None:
                self._store.commit_watermark(
                    self._pipeline, progress.end_ns, generation=self._lease.generation
                )
                confirm_partition_ends(self._store, self._pipeline, progress.end_ns)
                self._record(progress, progress.start_ns, progress.end_ns)
        except LeaseLostError:
            self._lease.lost.set()
        except StateError as error:
            # The next epoch's commit says all that this one would have.
            _log.warning("epoch not recorded", pipeline=self._pipeline, error=error.message)
        finally:
            self._noted = max(self._noted, progress.epoch if progress.is_epoch else -1)
            # A store that fails here must not keep the program from ending.
            if (
                self._policy.until_ns is not None
                and (progress.end_ns or 0) >= self._policy.until_ns
            ):
                self._reached.set()

    def _record(self, progress: Progress, start_ns: int | None, end_ns: int) -> None:
        if self._state is PipelineState.STARTING:
            self._note(PipelineState.RUNNING)
        self._epochs += 1
        written = self._written.pop(progress.epoch, None)
        if start_ns is None or written is None:
            return
        lag_ns = self._lag_ns(end_ns)
        # How far Spanner's clock is ahead of this machine's.
        ahead_ns = end_ns + lag_ns - time.time_ns()
        lineage = self._store.lineage_at(self._pipeline, end_ns)
        report = EpochReport(
            epoch=progress.epoch,
            start_ns=start_ns,
            low_watermark_ns=end_ns,
            records=written.summary.records,
            written=written.summary.written,
            transactions=written.summary.transactions,
            late_records=written.audited.late_records,
            partitions=len([p for p in lineage if not is_finished(p, end_ns)]),
            lag_ns=lag_ns,
            seconds=progress.seconds,
            stages_ms=progress.stages_ms,
            read_ms=written.read_ms,
            sink_ms=written.sink_ms,
            begun_ns=progress.begun_ns,
            durable_ns=written.durable_at_ns + ahead_ns,
            measures=written.audited.measures,
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
        if progress.epoch % _FORGET_EVERY == 0:
            forget_epochs(self._store, self._pipeline, before_ns=end_ns - self._policy.keep_ns)
        self._observer.epoch_committed(self._pipeline, report)

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


def _seen(summary: EpochSummary) -> SinkCounts:
    first, last = summary.commit_timestamp_min, summary.commit_timestamp_max
    return SinkCounts(summary.records, _ns(first), _ns(last))


def _ns(stamp: datetime | None) -> int | None:
    return None if stamp is None else datetime_to_ns(stamp)
