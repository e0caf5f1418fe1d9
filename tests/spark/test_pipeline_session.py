"""The settings of a pipeline's own Spark session."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from slackwater.pipeline.spark.jvm import jvm_process
from slackwater.pipeline.spark.session import session_for_pipeline, start_spark, stop_spark

SETTING = "spark.sql.streaming.checkpointFileManagerClass"
OURS = "FileSystemBasedCheckpointFileManager"
SPARKS = "FileContextBasedCheckpointFileManager"


def test_a_session_that_is_stopped_leaves_no_jvm() -> None:
    """A notebook may start and stop several."""
    session = start_spark(["orders"], "local[1]", {}, ())
    jvm = jvm_process()
    assert jvm is not None
    stop_spark(session)
    assert jvm.poll() is not None


def test_workers_look_for_modules_in_no_archive() -> None:
    """Python reads the directory of each again before every task, and Delta's jars are some."""
    session = start_spark(["orders"], "local[1]", {}, ["delta"])
    try:
        rows = session.range(1).select(F.udf(archives, "array<string>")("id").alias("archives"))
        assert rows.collect()[0]["archives"] == []
    finally:
        stop_spark(session)


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
    spark: SparkSession, checkpoint: str
) -> None:
    assert manager(spark, checkpoint) == SPARKS
    assert manager(session_for_pipeline(spark, checkpoint), checkpoint) == OURS


@pytest.mark.parametrize("checkpoint", ["hdfs://there/checkpoint", "gs://bucket/checkpoint"])
def test_the_choice_for_other_file_systems_is_sparks(spark: SparkSession, checkpoint: str) -> None:
    assert session_for_pipeline(spark, checkpoint).conf.get(SETTING, None) is None


def test_a_users_own_choice_wins(spark: SparkSession) -> None:
    jsc: Any = spark._jsc
    theirs = f"org.apache.spark.sql.execution.streaming.checkpointing.{SPARKS}"
    jsc.sc().conf().set(SETTING, theirs)
    try:
        assert manager(session_for_pipeline(spark, "out/checkpoint"), "out/checkpoint") == SPARKS
    finally:
        jsc.sc().conf().remove(SETTING)
