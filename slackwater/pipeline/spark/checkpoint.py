"""What Spark's checkpoint says of a pipeline, read before Spark is asked to go on from it.

A streaming checkpoint holds a file for each planned epoch under offsets/, whose last line is the
source's offset as JSON, and one for each committed epoch under commits/.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession

from slackwater.errors import CheckpointError


def last_offset(spark: SparkSession, checkpoint: str) -> dict[str, Any] | None:
    """The source's offset of the last epoch planned, None where no epoch was.

    Raises:
        CheckpointError: the file is none that Spark writes for one source.
    """
    epochs = _epochs(spark, checkpoint, "offsets")
    return _offset(spark, checkpoint, epochs[-1]) if epochs else None


def committed_offset(spark: SparkSession, checkpoint: str) -> dict[str, Any] | None:
    """The source's offset of the last epoch committed, None where no epoch was.

    Raises:
        CheckpointError: as last_offset().
    """
    epochs = _epochs(spark, checkpoint, "commits")
    return _offset(spark, checkpoint, epochs[-1]) if epochs else None


def _epochs(spark: SparkSession, checkpoint: str, log: str) -> list[int]:
    jvm: Any = spark._jvm
    jsc: Any = spark._jsc
    folder = jvm.org.apache.hadoop.fs.Path(checkpoint, log)
    files = folder.getFileSystem(jsc.hadoopConfiguration())
    if not files.exists(folder):
        return []
    names = [status.getPath().getName() for status in files.listStatus(folder)]
    return sorted(int(name) for name in names if name.isdigit())


def _offset(spark: SparkSession, checkpoint: str, epoch: int) -> dict[str, Any]:
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(checkpoint, f"offsets/{epoch}").toString()
    text = spark.sparkContext.wholeTextFiles(path).first()[1]
    try:
        offset = json.loads(text.rstrip().splitlines()[-1])
    except (ValueError, IndexError):
        offset = None
    if not isinstance(offset, dict):
        raise CheckpointError(
            f"the checkpoint's file {path} ends with no source's offset.",
            "Use the checkpoint that slackwater made",
        )
    return offset
