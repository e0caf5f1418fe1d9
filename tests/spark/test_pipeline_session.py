"""What a pipeline's own session of Spark is set to."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from slackwater.spark import session_for_pipeline


@pytest.mark.parametrize(
    ("checkpoint", "manager"),
    [
        ("out/checkpoint", "FileSystemBasedCheckpointFileManager"),
        ("file:///out/checkpoint", "FileSystemBasedCheckpointFileManager"),
        ("hdfs://there/checkpoint", ""),
        ("gs://bucket/checkpoint", ""),
    ],
)
def test_a_local_checkpoint_is_written_without_commands(
    spark: SparkSession, checkpoint: str, manager: str
) -> None:
    session = session_for_pipeline(spark, checkpoint)
    given = session.conf.get("spark.sql.streaming.checkpointFileManagerClass", "")
    assert (given or "").rpartition(".")[2] == manager
