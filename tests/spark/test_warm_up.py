"""A standby's Spark, warm and kept so."""

import threading
from contextlib import suppress

import psutil
import pytest
from pyspark.sql import SparkSession

from slackwater.pipeline.spark import warm_up as warm
from tests.support.waiting import wait_until


def workers() -> set[int]:
    """Return the ids of Spark's Python workers and of the process that forks them."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        # One that has just ended has no command line.
        with suppress(psutil.Error):
            if any("worker_daemon" in part for part in process.cmdline()):
                found.add(process.pid)
    return found


def test_the_workers_of_a_warm_spark_are_kept_until_it_is_needed(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm.warm_up(session)
    warmed = workers()
    assert warmed
    jobs = session.sparkContext.statusTracker()
    monkeypatch.setattr(warm, "_KEEP_EVERY_S", 0.01)
    is_needed = threading.Event()
    before = len(jobs.getJobIdsForGroup(None))
    keeping = threading.Thread(target=warm.keep_warm, args=(session, is_needed))
    keeping.start()
    wait_until(
        lambda: len(jobs.getJobIdsForGroup(None)) > before + 2, lambda: "no job", seconds_max=120
    )
    is_needed.set()
    keeping.join(120)
    assert not keeping.is_alive()
    assert warmed <= workers()
