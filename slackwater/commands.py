"""What `run` does; the command line only parses and reports."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import structlog
from pyspark.sql import SparkSession
from rich.console import Console

from reader.timestamp import format_rfc3339
from scheduler.task import AuditMode
from slackwater.checkpoint import last_offset
from slackwater.daemon import Daemon, Outcome, Pace
from slackwater.drain import draining_signals
from slackwater.epoch_report import EpochReport
from slackwater.initial_scan import InitialScan
from slackwater.java import find_java
from slackwater.live import LiveView
from slackwater.ownership import Ownership
from slackwater.pipeline import (
    Spanner,
    check_new,
    connect,
    last_watermark_ns,
    resume_options,
    source_options,
)
from slackwater.recovery import (
    Recovery,
    accept_gap,
    last_watermark_known_ns,
    start_after_lost_checkpoint,
)
from slackwater.settings import Settings
from slackwater.sinks import make_sink
from slackwater.spark import start_spark, stop_spark
from slackwater.warm_up import warm_up
from slackwater.watch import Watch
from spark_sink.sink import Sink
from state.errors import LeaseLostError, StateError
from state.scans import read_scan
from state.store import Store

_log = structlog.get_logger("slackwater.run")

# Whoever waits for --until-caught-up to end shall hear of a failure.
_TRIES_UNTIL_CAUGHT_UP = 3


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a run is made of, once everything was opened."""

    settings: Settings
    spanner: Spanner
    store: Store
    spark: SparkSession
    sink: Sink
    ownership: Ownership
    drain: threading.Event
    on_epoch: Callable[[EpochReport], None]


def run(settings: Settings, *, until_caught_up: bool, recovery: Recovery) -> None:
    """Run the pipeline until its end, a signal or a failure.

    Everything that can be refused is refused before anything is written.
    """
    find_java()
    sink = make_sink(settings)
    spanner = connect(settings)
    with ExitStack() as stack:
        stack.callback(spanner.connection.close)
        drain = stack.enter_context(draining_signals())
        if _is_new(settings):
            check_new(spanner)
        store = Store.open(settings.state.url, migrate=True)
        stack.callback(store.close)
        store.ensure_pipeline(settings.pipeline, spanner.options.change_stream.path)
        ownership = Ownership(store, settings.pipeline, duration_s=settings.lease.duration / 1_000)
        # Whoever stands by has Spark running when its turn comes.
        ownership.look()
        spark = start_spark(
            settings.pipeline, settings.spark.master, settings.spark.conf, settings.sink.format
        )
        stack.callback(stop_spark, spark)
        drain.listen()
        on_epoch = _reporter(settings.pipeline, stack)
        parts = _Parts(settings, spanner, store, spark, sink, ownership, drain, on_epoch)
        until_ns = last_watermark_ns(settings, spanner, until_caught_up=until_caught_up)
        tries_max = _TRIES_UNTIL_CAUGHT_UP if until_caught_up else None
        while _own_and_run(parts, until_ns, tries_max, recovery) is Outcome.LEASE_LOST:
            if settings.lease.when_taken == "exit":
                raise LeaseLostError(
                    f"pipeline {settings.pipeline!r} was taken over by another process."
                )
            recovery = Recovery(command=recovery.command)
        _log.info("stopped", pipeline=settings.pipeline)


def _own_and_run(
    parts: _Parts, until_ns: int | None, tries_max: int | None, recovery: Recovery
) -> Outcome:
    """Become the owner and run until that ends."""
    settings, ownership = parts.settings, parts.ownership
    wait = settings.lease.when_taken == "wait"
    try:
        if not ownership.acquire(
            wait=wait,
            until=parts.drain.is_set,
            # Apart, because the owner may die before Spark is warm.
            while_waiting=threading.Thread(
                target=warm_up, args=(parts.spark,), name="warm-up", daemon=True
            ).start,
        ):
            return Outcome.DONE
        if settings.initial_scan != "no" and not _has_begun(parts):
            is_whole = _initial_scan(parts, tries_max).run()
            if not is_whole or settings.initial_scan == "only":
                return Outcome.DONE
        options = _options(parts, recovery)
        if until_ns is not None:
            options["end"] = format_rfc3339(until_ns)
        source = parts.spanner.options.change_stream.path
        _log.info("running", pipeline=settings.pipeline, source=source)
        watch = Watch(
            parts.store,
            settings.pipeline,
            parts.spanner.connection,
            parts.spanner.description.retention_ns,
        )
        watch.start()
        try:
            return _daemon(parts, options, until_ns, tries_max, recovery).run()
        finally:
            watch.stop()
    except LeaseLostError:
        return Outcome.LEASE_LOST
    finally:
        ownership.release()


def _has_begun(parts: _Parts) -> bool:
    """True where an epoch was planned: what was there before it is not asked for any more."""
    name, checkpoint = parts.settings.pipeline, parts.settings.sink.checkpoint
    known = parts.store.pipeline(name)
    is_planned = known is not None and known.planned_watermark_ns is not None
    return is_planned or last_offset(parts.spark, checkpoint) is not None


def _initial_scan(parts: _Parts, tries_max: int | None) -> InitialScan:
    return InitialScan(
        parts.spark,
        parts.settings,
        parts.spanner,
        parts.store,
        parts.sink,
        parts.ownership,
        parts.drain,
        tries_max,
    )


def _options(parts: _Parts, recovery: Recovery) -> dict[str, str]:
    """The Spark source's options for this owner, from what is known now that it is the owner."""
    settings, spanner, store = parts.settings, parts.spanner, parts.store
    known = store.pipeline(settings.pipeline)
    assert known is not None  # noqa: S101 - made before it was owned
    options = source_options(settings)
    if known.planned_watermark_ns is None and last_offset(parts.spark, settings.sink.checkpoint):
        _log.warning(
            "the metadata store knows nothing of this pipeline; the partitions are found again from"
            " the checkpoint's low watermark",
            pipeline=settings.pipeline,
            state=store.url,
        )
    scan = read_scan(store, settings.pipeline)
    scanned_ns = None if scan is None else scan[0].at_ns
    if scanned_ns is not None:
        # Changes begin where the rows were read: no gap, and nothing twice.
        options["start"] = format_rfc3339(scanned_ns)
    if recovery.from_watermark is not None:
        options |= start_after_lost_checkpoint(parts.spark, settings, known, parts.sink, recovery)
    else:
        last = last_watermark_known_ns(parts.spark, known, parts.sink)
        options |= resume_options(
            parts.spark,
            settings,
            spanner.options,
            last_watermark_ns=last if last != scanned_ns else None,
            command=recovery.command,
        )
    if recovery.skip_to is not None:
        gap = accept_gap(parts.spark, settings, spanner, store, recovery.skip_to)
        _log.warning(
            "gap accepted",
            pipeline=settings.pipeline,
            after=format_rfc3339(gap.start_ns),
            through=format_rfc3339(gap.end_ns),
        )
    options["generation"] = str(parts.ownership.generation)
    options["tasks"] = str(parts.spark.sparkContext.defaultParallelism)
    return options


def _daemon(
    parts: _Parts,
    options: dict[str, str],
    until_ns: int | None,
    tries_max: int | None,
    recovery: Recovery,
) -> Daemon:
    epoch = parts.settings.epoch
    return Daemon(
        parts.spark,
        pipeline=parts.settings.pipeline,
        options=options,
        sink=parts.sink,
        checkpoint=parts.settings.sink.checkpoint,
        pace=Pace(epoch.trigger, until_ns, tries_max, AuditMode(epoch.audit)),
        store=parts.store,
        connection=parts.spanner.connection,
        ownership=parts.ownership,
        drain=parts.drain,
        on_epoch=parts.on_epoch,
        remedies=recovery.remedies(),
    )


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


def _reporter(pipeline: str, stack: ExitStack) -> Callable[[EpochReport], None]:
    if sys.stderr.isatty():
        return stack.enter_context(LiveView(pipeline, Console(stderr=True))).show

    def log(report: EpochReport) -> None:
        _log.info("epoch", pipeline=pipeline, **report.fields())

    return log
