"""What `run`, `pause`, `resume`, `drain` and `stop` do; the command line parses and reports."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

import structlog
from pyspark.sql import SparkSession
from rich.console import Console

from slackwater.commands.status import open_pipeline
from slackwater.config.settings import Settings
from slackwater.errors import RequestTimeoutError
from slackwater.monitoring.epoch_history import EpochHistory
from slackwater.monitoring.http import serving
from slackwater.monitoring.live_view import LiveView
from slackwater.monitoring.metrics import Metrics
from slackwater.monitoring.tracing import tracing
from slackwater.pipeline.epoch_report import EpochReport
from slackwater.pipeline.lease_holder import owner_is_dead
from slackwater.pipeline.observer import Observer, Observers
from slackwater.pipeline.recovery import Recovery
from slackwater.pipeline.signals import TerminationSignals, termination_signals
from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import start_spark, stop_spark
from slackwater.pipeline.supervisor import PipelineSupervisor, RunOptions
from slackwater.state.models import DesiredState, Pipeline, PipelineState
from slackwater.state.store import Store

_log = structlog.get_logger("slackwater.commands.run")

_POLL_S: Final = 0.1
_OBEYED: Final = {
    DesiredState.PAUSED: (PipelineState.PAUSED,),
    DesiredState.RUNNING: (PipelineState.STARTING, PipelineState.RUNNING),
    DesiredState.DRAINING: (PipelineState.NOT_RUNNING,),
    DesiredState.STOPPED: (PipelineState.NOT_RUNNING,),
}


def run(pipelines: Sequence[Settings], *, until_caught_up: bool, recovery: Recovery) -> None:
    """Run pipelines until their end, a signal or a failure; each fails alone.

    A process of one pipeline and without HTTP ends where the pipeline fails for good. Others stay:
    there is more to run, or somebody to be shown the failure.

    Raises:
        SettingsError, ReaderError, StateError, SlackwaterError: what a pipeline ended with.
    """
    find_java()
    first = pipelines[0]
    stays = not until_caught_up and (len(pipelines) > 1 or first.http.listen is not None)
    options = RunOptions(until_caught_up, recovery, stays)
    with termination_signals() as signalled:
        try:
            _run(pipelines, options, signalled)
        except Exception as error:
            if not signalled.is_set():
                raise
            # Nothing is lost, and whoever asked for the end has got it.
            reason = getattr(error, "message", None) or repr(error)
            _log.warning("ended by a signal while it failed", error=reason)


def _run(pipelines: Sequence[Settings], options: RunOptions, signalled: TerminationSignals) -> None:
    first, metrics, history = pipelines[0], Metrics(), EpochHistory()
    with ExitStack() as stack:
        observers: list[Observer] = [_shown(pipelines, stack), metrics, history]
        traced = stack.enter_context(tracing(first.trace.endpoint))
        observers += [] if traced is None else [traced]
        supervisors: list[PipelineSupervisor] = []
        for settings in pipelines:
            metrics.begin(settings.pipeline)
            supervisors.append(
                PipelineSupervisor(settings, options, signalled, Observers(observers))
            )
            stack.callback(supervisors[-1].close)
        stack.enter_context(serving(first.http, supervisors, history, metrics))
        spark = start_spark(
            [supervisor.name for supervisor in supervisors],
            first.spark.master,
            first.spark.conf,
            {settings.sink.needs for settings in pipelines},
            jars=first.spark.jars,
            class_archive=first.spark.class_archive,
        )
        stack.callback(stop_spark, spark)
        signalled.listen()
        if len(supervisors) == 1:
            supervisors[0].run(spark)
        else:
            _run_together(supervisors, spark, signalled)


class _LogLines:
    """A line in the log for each epoch."""

    def epoch_committed(self, pipeline: str, report: EpochReport) -> None:
        _log.info("epoch", pipeline=pipeline, **report.fields())

    def failed(self, pipeline: str) -> None:
        """It is logged where it is known why."""


def _shown(pipelines: Sequence[Settings], stack: ExitStack) -> Observer:
    """On a terminal a live view, elsewhere and for several pipelines the log."""
    if len(pipelines) == 1 and sys.stderr.isatty():
        return stack.enter_context(LiveView(pipelines[0].pipeline, Console(stderr=True)))
    return _LogLines()


def _run_together(
    supervisors: Sequence[PipelineSupervisor], spark: SparkSession, signalled: TerminationSignals
) -> None:
    """Run each in a thread of its own, and raise the first error when all have ended."""
    errors: list[Exception] = []

    def work(supervisor: PipelineSupervisor) -> None:
        try:
            supervisor.run(spark)
        except Exception as error:  # noqa: BLE001 - the others go on; it is raised at the end
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
        # In short pieces, so that signals are taken meanwhile.
        while thread.is_alive():
            thread.join(_POLL_S)
    if errors and not signalled.is_set():
        raise errors[0]


def request(settings: Settings, desired: DesiredState, *, seconds_max: float) -> Iterator[str]:
    """Have a pipeline pause, resume, drain or stop, and say what has become of it.

    Args:
        settings: the pipeline's.
        desired: what shall become of it.
        seconds_max: how long to wait until its owner has obeyed; 0 for not at all.

    Yields:
        What a person is told.

    Raises:
        SettingsError: the store does not know the pipeline.
        StateError: it can't be reached.
        RequestTimeoutError: the time was up.
    """
    store, known = open_pipeline(settings)
    try:
        name = settings.pipeline
        if known.owner is None and desired in (DesiredState.DRAINING, DesiredState.STOPPED):
            yield f"{name}: nobody runs it"
            return
        store.set_desired_state(name, desired)
        if known.owner is None or owner_is_dead(known.owner):
            yield f"{name}: nobody runs it; wanted: {desired.value}"
            return
        if seconds_max > 0:
            _wait(store, known, desired, seconds_max)
        yield f"{name}: {_state(store, known)}"
    finally:
        store.close()


def _wait(store: Store, known: Pipeline, desired: DesiredState, seconds_max: float) -> None:
    """Until the owner that was known has obeyed.

    Raises:
        RequestTimeoutError: the time was up.
    """
    until = time.monotonic() + seconds_max
    while time.monotonic() < until:
        now = store.pipeline(known.name)
        if now is None or now.state in _OBEYED[desired] or now.owner != known.owner:
            return
        time.sleep(_POLL_S)
    raise RequestTimeoutError(
        f"pipeline {known.name!r} is {_state(store, known)} after {seconds_max:g} s, and"
        f" {desired.value} is wanted.",
        "It obeys at its epoch's end; look at the log of " + str(known.owner),
    )


def _state(store: Store, known: Pipeline) -> str:
    now = store.pipeline(known.name)
    if now is None or now.state is None:
        return "not started"
    return f"{now.state.value} ({now.state_reason})" if now.state_reason else now.state.value
