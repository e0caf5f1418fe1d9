"""The settings of a pipeline's own Spark session."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from slackwater.pipeline.spark.jvm import jvm_process
from slackwater.pipeline.spark.session import session_for_pipeline
from tests.spark.sessions import SharedSpark, with_one_slot

SETTING = "spark.sql.streaming.checkpointFileManagerClass"
OURS = "FileSystemBasedCheckpointFileManager"
SPARKS = "FileContextBasedCheckpointFileManager"


def test_workers_look_for_modules_in_no_archive(session: SparkSession) -> None:
    """Python reads the directory of each again before every task, and Delta's jars are some."""
    rows = session.range(1).select(F.udf(archives, "array<string>")("id").alias("archives"))
    assert rows.collect()[0]["archives"] == []


def archives(_: int) -> list[str]:
    """Those in which this process looks for modules."""
    places = [*sys.path, *sys.path_importer_cache]
    return [place for place in places if ".jar" in place or "pyspark.zip" in place]


def manager(session: SparkSession, checkpoint: str) -> str:
    """Which class Spark itself takes for a checkpoint."""
    jvm: Any = session._jvm
    streaming = jvm.org.apache.spark.sql.execution.streaming.checkpointing
    made = streaming.CheckpointFileManager.create(
        jvm.org.apache.hadoop.fs.Path(checkpoint),
        session._jsparkSession.sessionState().newHadoopConf(),
    )
    return str(made.getClass().getSimpleName())


@pytest.mark.parametrize("checkpoint", ["out/checkpoint", "file:///out/checkpoint"])
def test_a_local_checkpoint_is_written_without_readlink(
    session: SparkSession, checkpoint: str
) -> None:
    assert manager(session, checkpoint) == SPARKS
    assert manager(session_for_pipeline(session, checkpoint), checkpoint) == OURS


@pytest.mark.parametrize("checkpoint", ["hdfs://there/checkpoint", "gs://bucket/checkpoint"])
def test_the_choice_for_other_file_systems_is_sparks(
    session: SparkSession, checkpoint: str
) -> None:
    assert session_for_pipeline(session, checkpoint).conf.get(SETTING, None) is None


def test_a_users_own_choice_wins(session: SparkSession) -> None:
    jsc: Any = session._jsc
    theirs = f"org.apache.spark.sql.execution.streaming.checkpointing.{SPARKS}"
    jsc.sc().conf().set(SETTING, theirs)
    try:
        assert manager(session_for_pipeline(session, "out/checkpoint"), "out/checkpoint") == SPARKS
    finally:
        jsc.sc().conf().remove(SETTING)


def test_a_session_that_is_stopped_leaves_no_jvm(
    session: SparkSession, shared_spark: SharedSpark
) -> None:
    """A notebook may start and stop several."""
    jvm = jvm_process()
    assert jvm is not None
    shared_spark.stop()
    assert jvm.poll() is not None


def test_no_pipeline_waits_while_the_others_go_on(shared_spark: SharedSpark) -> None:
    """With one slot for three threads, a job waits for one job of each other thread at most."""
    spark = shared_spark.started_by(with_one_slot)
    ended: list[str] = []
    waited: list[int] = []

    def run_jobs(name: str) -> None:
        for _ in range(12):
            before = len(ended)
            spark.sparkContext.parallelize([0], 1).foreach(lambda _: time.sleep(0.05))
            waited.append(len(ended) - before)
            ended.append(name)

    threads = [threading.Thread(target=run_jobs, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ended) == 36
    assert max(waited) <= 4
