"""The Spark that the pipelines of a process share, started again when it is lost.

Starting a query again helps in many cases, but not if the JVM has ended, its context was stopped,
its executor died, or it hangs.
"""

import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog
from pyspark.sql import SparkSession

from slackwater.pipeline.spark.jvm import abandon, failed_job, jvm_process

_log = structlog.get_logger("slackwater.pipeline.spark.shared")

_PROBE_S_MAX: Final = 20.0
_END_S_MAX: Final = 2.0


class RunningSpark:
    """A Spark that was started, and may be lost by now.

    Args:
        session: from which each pipeline makes its own.
    """

    def __init__(self, session: SparkSession) -> None:
        self.session: Final = session
        self._process = jvm_process()
        self._loss: str | None = None

    def is_lost(self, seconds_max: float = 0) -> bool:
        """Return True if it was found unusable, or if its JVM ends within a time."""
        if self._loss is None and self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                status = self._process.wait(seconds_max)
                self._lose(f"Spark's JVM has ended, with status {status}.")
        return self._loss is not None

    def loss(self) -> str | None:
        """Return why it can't be used any more; None if it runs a job, or may after a while."""
        reason = None if self.is_lost() else failed_job(self.session, _PROBE_S_MAX)
        # A JVM that dies closes its connections before it has ended.
        if reason is not None and not self.is_lost(_END_S_MAX):
            self._lose(f"Spark runs no job any more: {reason}")
        return self._loss

    def kill(self, reason: str) -> None:
        """Treat it as lost, and end its JVM with all hanging threads.

        A JVM that started this process can't be started again by it: then this process ends.
        """
        if self._loss is not None:
            return
        self._lose(reason)
        if self._process is None:
            os._exit(1)
        self._process.kill()

    def _lose(self, reason: str) -> None:
        self._loss = reason
        _log.error("Spark is lost", error=reason)


class SharedSpark:
    """A starter of Spark, which starts it again when it is lost.

    Args:
        start: starts it.
        stop: ends a usable one.

    Raises:
        SettingsError, SparkFailedError: it did not start.
    """

    def __init__(
        self, start: Callable[[], SparkSession], stop: Callable[[SparkSession], None]
    ) -> None:
        self._start = start
        self._stop = stop
        self._lock = threading.Lock()
        self._running = RunningSpark(start())

    def running(self) -> RunningSpark:
        """Return the running Spark, started again if the last one was lost.

        Raises:
            SettingsError, SparkFailedError: it did not start.
        """
        with self._lock:
            if self._running.is_lost():
                abandon()
                self._running = RunningSpark(self._start())
            return self._running

    def stop(self) -> None:
        """End it."""
        with self._lock:
            if self._running.is_lost():
                abandon()
            else:
                self._stop(self._running.session)
