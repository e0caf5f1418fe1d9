"""One pipeline of a process: owned, scanned, run, paused, and tried again where it fails."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

import structlog
from pyspark.sql import SparkSession
from structlog.contextvars import bound_contextvars

from slackwater.config.settings import Settings
from slackwater.config.sinks import make_sink
from slackwater.errors import PipelineFailedError, PipelinePausedError, SlackwaterError
from slackwater.pipeline.alerts import Alerts
from slackwater.pipeline.desired_state import DesiredStatePoller
from slackwater.pipeline.failures import delay_s
from slackwater.pipeline.initial_scan import InitialScan
from slackwater.pipeline.lease_holder import LeaseHolder
from slackwater.pipeline.observer import Observer
from slackwater.pipeline.query_runner import Outcome, QueryRunner, RunPolicy
from slackwater.pipeline.recovery import (
    Recovery,
    accept_gap,
    last_watermark_known_ns,
    start_after_lost_checkpoint,
)
from slackwater.pipeline.source import (
    SourceHandle,
    check_new,
    connect,
    last_watermark_ns,
    resume_options,
    source_options,
)
from slackwater.pipeline.spark.checkpoint import last_offset
from slackwater.pipeline.spark.session import session_for_pipeline
from slackwater.pipeline.spark.warm_up import warm_up
from slackwater.reader.errors import ReaderError
from slackwater.scheduler.errors import SchedulerError
from slackwater.scheduler.options import parse_options
from slackwater.scheduler.read_options import AuditMode
from slackwater.spark_sink.errors import SinkError
from slackwater.spark_sink.output.dead_letters import SPARK_ERRORS
from slackwater.state.errors import LeaseLostError, StateError
from slackwater.state.models import DesiredState, PipelineState
from slackwater.state.scans import read_scan
from slackwater.state.store import Store
from slackwater.timestamp import format_rfc3339, ms_to_ns, ms_to_seconds

_log = structlog.get_logger("slackwater.pipeline.supervisor")

# Whoever waits for --until-caught-up to end shall hear of a failure.
_TRIES_UNTIL_CAUGHT_UP = 3
# What is known to go wrong; anything else is a defect and ends the process.
_ERRORS = (ReaderError, SchedulerError, SinkError, SlackwaterError, StateError, *SPARK_ERRORS)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a pipeline is run.

    Attributes:
        until_caught_up: end after the epoch that reaches the time of the start.
        recovery: what the operator accepts.
        stays: a failure that trying again can't mend leaves the process running, to show it.
    """

    until_caught_up: bool
    recovery: Recovery
    stays: bool = False


class PipelineSupervisor:
    """Runs one pipeline in this process.

    Args:
        settings: the pipeline's.
        options: how to run it.
        signalled: set when the process is asked to end.
        observer: hears of committed epochs and failures.

    Raises:
        StateError: the metadata store can't be opened.
    """

    def __init__(
        self,
        settings: Settings,
        options: RunOptions,
        signalled: threading.Event,
        observer: Observer,
    ) -> None:
        self.settings = settings
        self._options = options
        self._recovery = options.recovery
        self._observer = observer
        self._sink = make_sink(settings)
        self._source_handle: SourceHandle | None = None
        self._until_ns: int | None = None
        self._failures = 0
        if not options.stays:
            # Everything that can be refused is refused before anything is written.
            self._look_up_source()
        self.store = Store.open(settings.state.url, migrate=True)
        source = parse_options(source_options(settings), os.environ).change_stream.path
        self.store.ensure_pipeline(settings.pipeline, source)
        self.desired_state = DesiredStatePoller(self.store, settings.pipeline, signalled)
        seconds = ms_to_seconds(settings.lease.duration)
        self.lease = LeaseHolder(self.store, settings.pipeline, duration_s=seconds)
        # Whoever stands by has Spark running when its turn comes.
        self.lease.look()

    @property
    def name(self) -> str:
        """The pipeline's."""
        return self.settings.pipeline

    @property
    def source(self) -> SourceHandle | None:
        """Its change stream, once it was looked up."""
        return self._source_handle

    def close(self) -> None:
        """Close what was opened."""
        if self._source_handle is not None:
            self._source_handle.connection.close()
        self.store.close()

    def run(self, spark: SparkSession) -> None:
        """Run until the pipeline's end, or until it shall end.

        Raises:
            PipelineOwnedError, LeaseLostError: another process runs it, and it shall not stand by.
            PipelinePausedError: it shall run until it has caught up, and is paused.
            ReaderError, StateError, SchedulerError, SinkError, SlackwaterError: it failed; where
                the process stays, only before it was owned.
        """
        session = session_for_pipeline(spark, self.settings.sink.checkpoint)
        with bound_contextvars(pipeline=self.name):
            while not self._own_and_run(session):
                if self.settings.lease.when_taken == "exit":
                    raise LeaseLostError(
                        f"pipeline {self.name!r} was taken over by another process."
                    )
                self._recovery = Recovery(command=self._recovery.command)
            _log.info("stopped", pipeline=self.name)

    def _own_and_run(self, spark: SparkSession) -> bool:
        """Become the owner and run; False where the lease was lost."""
        try:
            if not self.lease.acquire(
                wait=self.settings.lease.when_taken == "wait",
                until=self.desired_state.must_end,
                # Apart, because the owner may die before Spark is warm.
                while_waiting=threading.Thread(
                    target=warm_up, args=(spark,), name="warm-up", daemon=True
                ).start,
            ):
                return True
            self.desired_state.start()
            try:
                self._run_owned(spark)
            finally:
                self.desired_state.stop()
        except LeaseLostError:
            return False
        finally:
            self.lease.release()
        return True

    def _run_owned(self, spark: SparkSession) -> None:
        """Run, pause and fail until the pipeline's end, or until it shall end."""
        while not self.desired_state.must_end():
            if self.desired_state.is_held() and not self._resumed():
                break
            try:
                outcome = self._run_once(spark)
            except LeaseLostError:
                raise
            except _ERRORS as error:
                if not self._options.stays:
                    self._note_failure(error)
                    raise
                self._fail(error)
                continue
            if outcome is Outcome.LEASE_LOST:
                raise LeaseLostError(f"pipeline {self.name!r} was taken over.")
            if outcome is Outcome.DONE:
                break
        self._note(PipelineState.NOT_RUNNING)

    def _resumed(self) -> bool:
        """Wait until the pipeline shall run; False where it shall end instead."""
        if self._options.until_caught_up:
            raise PipelinePausedError(
                f"pipeline {self.name!r} is paused.", "Resume it: slackwater resume"
            )
        if self.desired_state.wanted is not DesiredState.AWAITING_OPERATOR:
            self._note(PipelineState.PAUSED)
            _log.info("paused", pipeline=self.name)
        is_resumed = self.desired_state.wait_for_resume(self.lease.lost.is_set)
        self.lease.check()
        if is_resumed:
            _log.info("resumed", pipeline=self.name)
        return is_resumed

    def _run_once(self, spark: SparkSession) -> Outcome:
        self._note(PipelineState.STARTING)
        source = self._look_up_source()
        tries_max = _TRIES_UNTIL_CAUGHT_UP if self._options.until_caught_up else None
        if self.settings.initial_scan != "no" and not self._has_begun(spark):
            is_whole = InitialScan(
                spark,
                self.settings,
                source,
                self.store,
                self._sink,
                self.lease,
                self.desired_state,
                tries_max,
            ).run()
            if not is_whole:
                return Outcome.HELD
            if self.settings.initial_scan == "only":
                return Outcome.DONE
        options = self._source_options(spark, source)
        path = source.options.change_stream.path
        _log.info("running", pipeline=self.name, source=path)
        alerts = Alerts(self.store, self.name, source.connection, source.description.retention_ns)
        alerts.start()
        self._failures = 0
        try:
            return self._query_runner(spark, source, options, tries_max).run()
        finally:
            alerts.stop()

    def _fail(self, error: Exception) -> None:
        """Wait to be mended, or for a while."""
        reason = self._note_failure(error)
        if getattr(error, "user_error", False):
            _log.error("failed permanently", pipeline=self.name, error=reason)
            self.desired_state.give_up()
            return
        self._failures += 1
        seconds = delay_s(self._failures)
        _log.error("failed, will try again", pipeline=self.name, seconds=seconds, error=reason)
        self.desired_state.wait(seconds)

    def _note_failure(self, error: Exception) -> str:
        """Let those who look see why; the reason with its remedy."""
        if not isinstance(error, PipelineFailedError):
            # The daemon has told of these itself.
            self._observer.failed(self.name)
        message = getattr(error, "message", None) or str(error)
        reason = f"{message} {getattr(error, 'hint', '')}".strip()
        given_up = getattr(error, "user_error", False) or isinstance(error, PipelineFailedError)
        self._note(PipelineState.FAILED_PERMANENTLY if given_up else PipelineState.FAILED, reason)
        return reason

    def _look_up_source(self) -> SourceHandle:
        """The change stream, looked up once."""
        if self._source_handle is None:
            source = connect(self.settings)
            if _is_new(self.settings):
                check_new(self.settings, source)
            self._until_ns = last_watermark_ns(
                self.settings, source, until_caught_up=self._options.until_caught_up
            )
            self._source_handle = source
        return self._source_handle

    def _has_begun(self, spark: SparkSession) -> bool:
        """True where an epoch was planned: nobody asks any more for what was there before it."""
        known = self.store.pipeline(self.name)
        is_planned = known is not None and known.planned_watermark_ns is not None
        return is_planned or last_offset(spark, self.settings.sink.checkpoint) is not None

    def _source_options(self, spark: SparkSession, source: SourceHandle) -> dict[str, str]:
        """The Spark source's options, from what is known now that the pipeline is owned."""
        settings, store = self.settings, self.store
        known = store.pipeline(self.name)
        assert known is not None  # noqa: S101 - made before it was owned
        options = source_options(settings)
        if known.planned_watermark_ns is None and last_offset(spark, settings.sink.checkpoint):
            _log.warning(
                "the metadata store knows nothing of this pipeline; the partitions are found again"
                " from the checkpoint's low watermark",
                pipeline=self.name,
                state=store.url,
            )
        scan = read_scan(store, self.name)
        scanned_ns = None if scan is None else scan[0].at_ns
        if scanned_ns is not None:
            # Changes begin where the rows were read: no gap, and nothing twice.
            options["start"] = format_rfc3339(scanned_ns)
        recovery = self._recovery
        if recovery.from_watermark is not None:
            options |= start_after_lost_checkpoint(spark, settings, known, self._sink, recovery)
        else:
            last = last_watermark_known_ns(spark, known, self._sink)
            options |= resume_options(
                spark,
                settings,
                source.options,
                last_watermark_ns=last if last != scanned_ns else None,
                command=recovery.command,
            )
        if recovery.skip_to is not None:
            gap = accept_gap(spark, settings, source, store, recovery.skip_to)
            _log.warning(
                "gap accepted",
                pipeline=self.name,
                after=format_rfc3339(gap.start_ns),
                through=format_rfc3339(gap.end_ns),
            )
        # What the operator accepted was done.
        self._recovery = Recovery(command=recovery.command)
        options["generation"] = str(self.lease.generation)
        options["tasks"] = str(spark.sparkContext.defaultParallelism)
        if self._until_ns is not None:
            options["end"] = format_rfc3339(self._until_ns)
        return options

    def _query_runner(
        self,
        spark: SparkSession,
        source: SourceHandle,
        options: dict[str, str],
        tries_max: int | None,
    ) -> QueryRunner:
        epoch = self.settings.epoch
        return QueryRunner(
            spark,
            pipeline=self.name,
            options=options,
            sink=self._sink,
            checkpoint=self.settings.sink.checkpoint,
            policy=RunPolicy(
                epoch.trigger,
                self._until_ns,
                tries_max,
                not self._options.until_caught_up,
                AuditMode(epoch.audit),
                ms_to_ns(self.settings.state.keep),
            ),
            store=self.store,
            connection=source.connection,
            lease=self.lease,
            desired_state=self.desired_state,
            observer=self._observer,
            remedies=self._recovery.remedies(),
        )

    def _note(self, state: PipelineState, reason: str = "") -> None:
        try:
            self.store.set_state(self.name, state, reason, time.time_ns())
        except StateError as error:
            _log.warning("state not recorded", pipeline=self.name, error=error.message)


def _is_new(settings: Settings) -> bool:
    """True where the store does not know that the pipeline has begun; makes no store."""
    try:
        store = Store.open(settings.state.url, migrate=False)
    except StateError:
        return True
    try:
        known = store.pipeline(settings.pipeline)
        return known is None or known.planned_watermark_ns is None
    finally:
        store.close()
