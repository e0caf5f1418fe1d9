"""What each command does; the command line only parses and reports."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack

import structlog
from rich.console import Console

from reader.timestamp import format_rfc3339
from slackwater.daemon import Daemon
from slackwater.epoch_report import EpochReport
from slackwater.java import find_java
from slackwater.live import LiveView
from slackwater.pipeline import (
    check_new,
    connect,
    last_watermark_ns,
    resume_options,
    source_options,
)
from slackwater.settings import Settings
from slackwater.spark import start_spark, stop_spark
from spark_sink.changelog import Changelog
from state.errors import StateError
from state.store import Store

_log = structlog.get_logger("slackwater.run")


def run(settings: Settings, *, until_caught_up: bool) -> None:
    """Run the pipeline until its end, a signal or a failure.

    Everything that can be refused is refused before anything is written.
    """
    find_java()
    sink = Changelog(settings.sink.path, settings.sink.format)
    spanner = connect(settings)
    with ExitStack() as stack:
        stack.callback(spanner.connection.close)
        if _is_new(settings):
            check_new(spanner)
        store = Store.open(settings.state.url, migrate=True)
        stack.callback(store.close)
        known = store.ensure_pipeline(settings.pipeline, spanner.options.change_stream.path)
        spark = start_spark(settings.pipeline, settings.spark.master, settings.spark.conf)
        stack.callback(stop_spark, spark)
        options = source_options(settings) | resume_options(spark, settings, spanner.options, known)
        options["tasks"] = str(spark.sparkContext.defaultParallelism)
        until_ns = last_watermark_ns(settings, spanner, until_caught_up=until_caught_up)
        if until_ns is not None:
            options["end"] = format_rfc3339(until_ns)
        daemon = Daemon(
            spark,
            pipeline=settings.pipeline,
            options=options,
            sink=sink,
            checkpoint=settings.sink.checkpoint,
            trigger_ms=settings.epoch.trigger,
            store=store,
            connection=spanner.connection,
            on_epoch=_reporter(settings.pipeline, stack),
            until_ns=until_ns,
        )
        _log.info("running", pipeline=settings.pipeline, source=spanner.options.change_stream.path)
        daemon.run()
        _log.info("stopped", pipeline=settings.pipeline)


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
