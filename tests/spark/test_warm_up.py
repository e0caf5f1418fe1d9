"""A standby's Spark, warm and kept so."""

import threading

import psutil
import pytest
from pyspark.sql import SparkSession

from slackwater.pipeline.spark import warm_up as warm
from tests.support.waiting import wait_until


def workers() -> set[int]:
    """Return the ids of the Python workers that Spark has forked."""
    tree = psutil.Process().children(recursive=True)
    names = {process.pid: " ".join(process.cmdline()) for process in tree if process.is_running()}
    return {
        process.pid
        for process in tree
        if "worker_daemon" in names.get(process.pid, "") and process.ppid() in names
    }


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
