"""One pipeline of a process: its parts put together, owned, scanned, run, and closed."""

import os
import threading
import time
from dataclasses import replace
from functools import partial
from typing import Final

import structlog
from pyspark.sql import SparkSession
from structlog.contextvars import bound_contextvars

from slackwater.config.settings import Settings
from slackwater.config.sinks import make_sink
from slackwater.errors import SparkFailedError
from slackwater.pipeline.alerts import Alerts
from slackwater.pipeline.desired_state import DesiredStatePoller
from slackwater.pipeline.disks import places_of
from slackwater.pipeline.epochs.recorder import EpochRecorder, RecordPolicy
from slackwater.pipeline.epochs.rescanner import Rescanner, refuse_rescans_left
from slackwater.pipeline.epochs.schema_watch import SchemaWatch
from slackwater.pipeline.epochs.source_positions import SourcePositions
from slackwater.pipeline.epochs.writer import EpochWatch, EpochWriter
from slackwater.pipeline.initial_scan import InitialScan
from slackwater.pipeline.lease_holder import LeaseHolder
from slackwater.pipeline.lifecycle import Lifecycle
from slackwater.pipeline.observer import Observer
from slackwater.pipeline.pipeline_source import (
    PipelineSource,
    connect_source,
    last_watermark_ns,
    with_start_fixed,
    with_tables,
)
from slackwater.pipeline.progress_deadline import ProgressDeadline
from slackwater.pipeline.progress_signs import ProgressSigns
from slackwater.pipeline.query_runner import QueryRunner
from slackwater.pipeline.recovery import Recovery, other_command, recovery_command
from slackwater.pipeline.resume_point import ResumePoint
from slackwater.pipeline.retries import Retries
from slackwater.pipeline.run_loop import RunLoop
from slackwater.pipeline.run_options import RunOptions
from slackwater.pipeline.source import (
    end_after_scan,
    is_new,
    read_shapes,
    source_options,
)
from slackwater.pipeline.spanner_clock import SpannerClock
from slackwater.pipeline.spark.jvm import executor_count
from slackwater.pipeline.spark.query import QuerySettings, SparkQuery, start_query
from slackwater.pipeline.spark.session import is_local_master, session_for_pipeline
from slackwater.pipeline.spark.shared import RunningSpark, SharedSpark
from slackwater.pipeline.spark.sink_needs import all_jars
from slackwater.pipeline.spark.task_writing import task_writer_options
from slackwater.pipeline.spark.warm_up import keep_warm, warm_up
from slackwater.pipeline.transitions import Action, Event
from slackwater.reader.errors import StartTooOldError
from slackwater.scheduler.epoch import watermark_for_end
from slackwater.scheduler.options import hand_over
from slackwater.scheduler.read_options import AuditMode
from slackwater.spark_sink.output.hadoop_reach import require_reachable
from slackwater.spark_sink.output.maintenance import Maintained
from slackwater.spark_sink.sink import CurrentRows, KeepsPositions, NeedsShapes
from slackwater.state.models import PipelineState
from slackwater.state.recovery_requests import take_recovery
from slackwater.state.scans import read_scan
from slackwater.state.store import Store
from slackwater.timestamp import ms_to_ns, ms_to_seconds

# An epoch takes about epoch.target_time. One that takes twice as long after a signal waits for
# something, such as a query that is silent.
_DRAIN_TARGETS_MAX: Final = 2
# After these the lease is taken again.
_AGAIN: Final = (Action.START_SPARK, Action.STAND_BY)

_log = structlog.get_logger("slackwater.pipeline.supervisor")


class PipelineSupervisor:
    """A pipeline in this process, with all its parts.

    Args:
        settings: the pipeline's.
        options: how to run it.
        signalled: set when the process is asked to end.
        observer: is told of committed epochs and failures.

    Raises:
        ReaderError, SlackwaterError: the change stream can't be read; raised before anything is
            written, if the process does not stay.
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
        self._begun_s = time.monotonic()
        command = recovery_command(
            stays=options.stays,
            file_option=options.file_option,
            pipeline=settings.pipeline if options.names_pipeline else None,
        )
        self._recovery = replace(options.recovery, command=command)
        self._observer = observer
        self._signalled = signalled
        spark = settings.spark
        jars = all_jars(settings.sink.spark_needs, spark.conf, spark.jars, os.environ)
        settings.sink.check_places(spark.conf, jars)
        self._sink = make_sink(settings)
        self._source_handle: PipelineSource | None = None
        self._too_old: StartTooOldError | None = None
        self._clock: SpannerClock | None = None
        self._until_ns: int | None = None
        self._has_ended = False
        self._lifecycle: Lifecycle | None = None
        self._running: RunningSpark | None = None
        self._spark: SparkSession | None = None
        self._stands_by = False
        self._is_needed = threading.Event()
        self._mode = options.mode(stands_by=settings.lease.when_taken == "wait")
        if not options.stays:
            # Everything that can be refused is refused before anything is written.
            self._look_up_source()
        self.store = Store.open(settings.state.url, migrate=True)
        source = source_options(settings).change_stream.path
        self.store.ensure_pipeline(settings.pipeline, source)
        seconds = ms_to_seconds(settings.lease.duration)
        self.lease = LeaseHolder(self.store, settings.pipeline, duration_s=seconds)
        self._desired_state = DesiredStatePoller(
            self.store,
            settings.pipeline,
            signalled,
            lambda: self.lease.generation,
            _DRAIN_TARGETS_MAX * ms_to_seconds(settings.epoch.target_time),
        )
        # A standby has Spark running when its turn comes.
        self.lease.observe()

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.settings.pipeline

    @property
    def source(self) -> PipelineSource | None:
        """Its source; None before it was looked up."""
        return self._source_handle

    @property
    def clock(self) -> SpannerClock | None:
        """Spanner's clock; None before the change stream was looked up."""
        return self._clock

    @property
    def unrecorded(self) -> tuple[PipelineState, str] | None:
        """Its state and the reason, if the metadata store could not be told of them."""
        return None if self._lifecycle is None else self._lifecycle.unrecorded

    @property
    def stands_by(self) -> bool:
        """True while this process waits for the lease, with Spark running and warmed up."""
        return self._stands_by and not self.lease.is_held

    def executors(self) -> int | None:
        """Return how many executors Spark has; None if it needs none or does not answer."""
        if self._spark is None or is_local_master(self.settings.spark.master):
            return None
        try:
            return executor_count(self._spark)
        except SparkFailedError:
            return None

    def close(self) -> None:
        """Close what was opened."""
        if self._clock is not None:
            self._clock.stop()
        if self._source_handle is not None:
            self._source_handle.close()
        self.store.close()

    def run(self, shared: SharedSpark) -> None:
        """Run until the pipeline's end, or until a request ends it.

        Args:
            shared: the process's Spark.

        Raises:
            PipelineOwnedError, LeaseLostError: another process runs it, and it is not to stand by.
            PipelinePausedError: it is to run until it has caught up, and is paused.
            RescansLeftError: it has ended before tables were read again.
            ReaderError, StateError, SchedulerError, SinkError, SlackwaterError: it failed; if the
                process stays, only raised before it was owned.
        """
        desired, places = self._desired_state.current, places_of(self.settings)
        lifecycle = Lifecycle(self.name, self.store, desired, self._mode, places=places)
        self._lifecycle = lifecycle
        loop = RunLoop(
            lifecycle,
            self.lease,
            self._desired_state,
            self._observer,
            lambda: self._start_watched(lifecycle, loop),
            self._spark_loss,
            self._recovery.command,
        )
        with bound_contextvars(pipeline=self.name):
            self._take_spark(shared)
            # Warmed up in a thread, because the owner may die before Spark is warm.
            while (action := loop.run_while_owned(self._stand_by)) in _AGAIN:
                if action is Action.STAND_BY:
                    self._stands_by = False
                    self._recovery = Recovery(command=self._recovery.command)
                self._take_spark(shared)
                # Threads of the former lease that wake up late stage in places of their own.
                self._sink = make_sink(self.settings)
            _log.info("stopped", pipeline=self.name)
        if self._has_ended:
            self._finish_maintenance()
            stop = other_command(self._recovery.command, "rescan --stop")
            refuse_rescans_left(self.settings, self.store, stop)

    def _finish_maintenance(self) -> None:
        """End with a round of the output's maintenance, unless the process is asked to end."""
        if isinstance(self._sink, Maintained):
            self._sink.maintenance.finish(self._signalled.is_set)

    def _take_spark(self, shared: SharedSpark) -> None:
        """Take a session of the process's Spark, which may have been started again."""
        self._running = shared.running()
        self._spark = session_for_pipeline(self._running.session, self.settings.sink.checkpoint)

    def _spark_loss(self) -> str | None:
        """Return why Spark has to be started again; None while it can be used."""
        return None if self._running is None else self._running.loss()

    def _stand_by(self) -> None:
        self._is_needed.clear()
        threading.Thread(target=self._warm_up, name="warm-up", daemon=True).start()

    def _warm_up(self) -> None:
        try:
            if self._spark is not None:
                warm_up(self._spark)
        finally:
            # Earlier, an update would end the owner while Spark here waits for its executors.
            self._stands_by = True
        if self._spark is not None:
            keep_warm(self._spark, self._is_needed)

    def _start_watched(self, lifecycle: Lifecycle, loop: RunLoop) -> Action:
        """Do what _start() does; end Spark if there is no progress."""
        self._is_needed.set()
        session, running = self._spark, self._running
        assert session is not None and running is not None  # noqa: S101, PT018 - taken before
        signs = ProgressSigns(
            session, self.store, self.name, lambda: lifecycle.state, lambda: self._clock
        )
        with ProgressDeadline(
            signs.sign,
            ms_to_seconds(self.settings.epoch.progress_deadline),
            lambda seconds: running.kill(signs.standstill(seconds)),
        ):
            return self._start(session, lifecycle, loop)

    def _start(self, spark: SparkSession, lifecycle: Lifecycle, loop: RunLoop) -> Action:
        """Do the initial scan if it is due, run the query, and return what to do after it."""
        source = self._look_up_source()
        if requested := take_recovery(self.store, self.name, self.lease.generation):
            self._recovery = Recovery(*requested, self._recovery.command)
        require_reachable(spark, self.settings.sink.hadoop_paths)
        if source.has_tables and isinstance(self._sink, NeedsShapes):
            self._sink.use_shapes(partial(read_shapes, self.settings, with_tables(source)))
        resume = ResumePoint(spark, self.settings, self.store, self._sink, source.options)
        is_new = resume.is_new(source, self._recovery)
        if is_new and self._too_old is not None:
            raise self._too_old
        if is_new and self.settings.initial_scan != "no":
            scan = InitialScan(
                spark,
                self.settings,
                with_tables(source),
                self.store,
                self._sink,
                self.lease,
                self._observer,
                self._retries("the initial scan", lifecycle),
            )
            if (instead := scan.run()) is not None:
                return instead
            if self.settings.initial_scan == "only":
                self._has_ended = True
                return lifecycle.on(Event.WORK_DONE)
            self._until_ns = end_after_scan(self._until_ns, read_scan(self.store, self.name))
        path = source.options.change_stream.path
        _log.info("running", pipeline=self.name, source=path)
        clock = self._spanner_clock(source)
        alerts = Alerts(self.store, self.name, clock.now_ns, source.retention_ns)
        runner = self._query_runner(spark, source, resume, lifecycle)
        alerts.start()
        loop.query_starts()
        try:
            return runner.run()
        finally:
            self._has_ended = runner.has_reached_end
            alerts.stop()

    def _look_up_source(self) -> PipelineSource:
        """Return the source, looked up once."""
        if self._source_handle is None:
            source = connect_source(self.settings)
            source.check(self.settings)
            if is_new(self.settings):
                self._too_old = source.check_new(self.settings)
                seconds_ago = time.monotonic() - self._begun_s
                self.settings, source = with_start_fixed(self.settings, source, seconds_ago)
            self._until_ns = last_watermark_ns(
                self.settings, source, until_caught_up=self._mode.until_caught_up
            )
            self._source_handle = source
            self._spanner_clock(source)
        return self._source_handle

    def _spanner_clock(self, source: PipelineSource) -> SpannerClock:
        """Return the source's clock, which runs from the first call on."""
        if self._clock is None:
            self._clock = SpannerClock(source.clock_ns)
            self._clock.start()
        return self._clock

    def _source_options(
        self, spark: SparkSession, source: PipelineSource, resume: ResumePoint
    ) -> dict[str, str]:
        """Return the Spark source's option, now that the pipeline is owned."""
        options = resume.source_options(source, self._recovery, self.lease.generation)
        # The recovery that the operator accepted is done.
        self._recovery = Recovery(command=self._recovery.command)
        options = replace(options, tasks_max=spark.sparkContext.defaultParallelism)
        if self._until_ns is not None and self._mode.until_caught_up:
            options = replace(options, caught_up_at_ns=self._until_ns)
        elif self._until_ns is not None:
            options = replace(options, end_ns=watermark_for_end(self._until_ns))
        return hand_over(options)

    def _epoch_watches(self, spark: SparkSession, read: PipelineSource) -> list[EpochWatch]:
        """Return the watches of each epoch, for sinks that need them."""
        if not read.is_cut_by_time and isinstance(self._sink, KeepsPositions):
            return [SourcePositions(self.store, self._sink)]
        if not (self.settings.sink.has_rescans and read.has_tables):
            return []
        source = with_tables(read)
        rescanner = Rescanner(
            spark,
            self.settings,
            source,
            self.store,
            self.lease,
            self._sink,
            self._until_ns if self._mode.until_caught_up else None,
        )
        if isinstance(self._sink, CurrentRows):
            return [SchemaWatch(source, self._sink, rescanner.note_schema), rescanner]
        return [rescanner]

    def _query_runner(
        self,
        spark: SparkSession,
        source: PipelineSource,
        resume: ResumePoint,
        lifecycle: Lifecycle,
    ) -> QueryRunner:
        settings = self.settings
        writer = EpochWriter(
            spark,
            self.name,
            self._sink,
            self.store,
            self.lease,
            AuditMode(settings.epoch.audit),
            self._epoch_watches(spark, source),
            is_cut_by_time=source.is_cut_by_time,
        )
        recorder = EpochRecorder(
            self.name,
            self.store,
            self.lease,
            self._spanner_clock(source).now_ns,
            writer.pop_written,
            partial(self._observer.epoch_committed, self.name),
            RecordPolicy(self._until_ns, source.options.end_ns, ms_to_ns(settings.state.keep)),
        )

        def start() -> SparkQuery:
            # Read again for each query: while the last one failed, the store may have gone back.
            options = self._source_options(spark, source, resume)
            options |= task_writer_options(spark, self._sink, source.schema)
            query = QuerySettings(
                self.name,
                source.format,
                options,
                settings.sink.checkpoint,
                settings.epoch.trigger,
            )
            return start_query(spark, query, writer)

        return QueryRunner(
            start,
            recorder,
            self._retries("the pipeline", lifecycle),
            self.lease.is_lost,
            self._desired_state.close_source,
        )

    def _retries(self, what: str, lifecycle: Lifecycle) -> Retries:
        return Retries(
            what,
            lifecycle,
            self.lease.is_lost,
            self._observer,
            self._recovery.command,
            self._spark_loss,
        )
