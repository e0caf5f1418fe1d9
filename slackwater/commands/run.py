"""The command `run`."""

import os
import resource
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Final

import structlog
from pyspark.sql import SparkSession
from rich.console import Console

from slackwater.commands.spark import spark_of
from slackwater.config.settings import Settings
from slackwater.extras import require_extras
from slackwater.monitoring.epoch_history import EpochHistory
from slackwater.monitoring.http_socket import listen
from slackwater.monitoring.live_view import LiveView
from slackwater.pipeline.epochs.report import EpochReport
from slackwater.pipeline.observer import Observer, Observers
from slackwater.pipeline.recovery import Recovery
from slackwater.pipeline.run_options import RunOptions
from slackwater.pipeline.signals import TerminationSignals, termination_signals
from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import stop_spark
from slackwater.pipeline.spark.shared import SharedSpark
from slackwater.pipeline.supervisor import PipelineSupervisor

# Some programs check each descriptor that they may have, and a hard limit may be a billion.
_DESCRIPTORS_MAX: Final = 65_536
_log = structlog.get_logger("slackwater.commands.run")

_POLL_S: Final = 0.1


def raise_descriptor_limit() -> None:
    """Raise this process's limit of descriptors, which Spark, stores and sinks need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def run(
    pipelines: Sequence[Settings],
    *,
    until_caught_up: bool,
    recovery: Recovery,
    file_option: str = "",
    names_pipeline: bool = False,
) -> None:
    """Run pipelines until they end, fail or a signal arrives; each fails alone.

    A process with one pipeline and without HTTP ends when the pipeline fails permanently. Others
    stay: there are more pipelines to run, or there is a page to show the failure.

    Raises:
        MissingExtraError: what they need is not installed.
        SettingsError, ReaderError, StateError, SlackwaterError: the error that ended a pipeline.
    """
    require_extras(pipelines)
    find_java()
    raise_descriptor_limit()
    first = pipelines[0]
    keeps_running = not until_caught_up and (len(pipelines) > 1 or first.http.listen is not None)
    options = RunOptions(until_caught_up, recovery, keeps_running, file_option, names_pipeline)
    with termination_signals() as signalled:
        try:
            _run(pipelines, options, signalled)
        except Exception as error:
            if not signalled.is_set():
                raise
            # Nothing is lost, and the process was asked to end.
            reason = getattr(error, "message", None) or repr(error)
            _log.warning("failed while ending on a signal", error=reason)


def _run(pipelines: Sequence[Settings], options: RunOptions, signalled: TerminationSignals) -> None:
    first = pipelines[0]
    # The mode is for all files of this process and of those that it starts.
    os.umask(first.sink.umask)
    with ExitStack() as stack:
        observers: list[Observer] = [_display(pipelines, stack)]
        if first.trace.endpoint is not None:
            # With a library that is not installed without the extra otel.
            from slackwater.monitoring.tracing import tracing

            observers.append(stack.enter_context(tracing(first.trace.endpoint)))
        serve = None if first.http.listen is None else _page(pipelines, observers)
        supervisors: list[PipelineSupervisor] = []
        for settings in pipelines:
            supervisors.append(
                PipelineSupervisor(settings, options, signalled, Observers(observers))
            )
            stack.callback(supervisors[-1].close)
        if serve is not None:
            stack.enter_context(serve(supervisors))
        shared = SharedSpark(partial(_started, pipelines, signalled), stop_spark)
        stack.callback(shared.stop)
        if len(supervisors) == 1:
            supervisors[0].run(shared)
        else:
            _run_together(supervisors, shared, signalled)


def _page(
    pipelines: Sequence[Settings], observers: list[Observer]
) -> Callable[[Sequence[PipelineSupervisor]], AbstractContextManager[str]]:
    """Return the context that serves the page and the metrics of supervisors.

    Raises:
        HttpError: the address can't be listened on, or a file can't be used.
    """
    # With a server that is not installed without the extra http.
    from slackwater.monitoring.http import secrets_of, serving
    from slackwater.monitoring.metrics import Metrics

    settings, metrics, history = pipelines[0].http, Metrics(), EpochHistory()
    # Refused before the supervisors make a store.
    secrets_of(settings)
    listen(settings).close()
    for pipeline in pipelines:
        metrics.begin(pipeline.pipeline)
    observers += [metrics, history]
    return lambda supervisors: serving(settings, supervisors, history, metrics)


def _started(pipelines: Sequence[Settings], signalled: TerminationSignals) -> SparkSession:
    """Start Spark, and take the signals back from it; it takes them on the main thread only."""
    try:
        return spark_of(pipelines)
    finally:
        if threading.current_thread() is threading.main_thread():
            signalled.listen()


class _LogLines(Observer):
    """An observer that logs a line for each committed epoch."""

    def epoch_committed(self, pipeline: str, report: EpochReport) -> None:
        _log.info("epoch", pipeline=pipeline, **report.fields())


def _display(pipelines: Sequence[Settings], stack: ExitStack) -> Observer:
    """Return a live view for one pipeline on a terminal, log lines otherwise."""
    if len(pipelines) == 1 and sys.stderr.isatty():
        return stack.enter_context(LiveView(pipelines[0].pipeline, Console(stderr=True)))
    return _LogLines()


def _run_together(
    supervisors: Sequence[PipelineSupervisor], shared: SharedSpark, signalled: TerminationSignals
) -> None:
    """Run each pipeline in a thread of its own; raise the first error when all have ended."""
    errors: list[Exception] = []

    def work(supervisor: PipelineSupervisor) -> None:
        try:
            supervisor.run(shared)
        except Exception as error:  # noqa: BLE001 - the others continue; it is raised at the end
            _log.error(
                "ended with an error",
                pipeline=supervisor.name,
                error=getattr(error, "message", None) or repr(error),
            )
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=(supervisor,), name=supervisor.name)
        for supervisor in supervisors
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        # In short waits, so that signals are handled meanwhile.
        while thread.is_alive():
            thread.join(_POLL_S)
    if errors and not signalled.is_set():
        raise errors[0]
