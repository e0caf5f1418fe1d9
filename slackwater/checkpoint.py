"""What Spark's checkpoint says of a pipeline, read before Spark is asked to go on from it.

A streaming checkpoint holds a file for each planned epoch under offsets/, whose last line is the
source's offset as JSON.
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
    jvm: Any = spark._jvm
    jsc: Any = spark._jsc
    offsets = jvm.org.apache.hadoop.fs.Path(checkpoint, "offsets")
    files = offsets.getFileSystem(jsc.hadoopConfiguration())
    if not files.exists(offsets):
        return None
    names = [status.getPath().getName() for status in files.listStatus(offsets)]
    epochs = sorted((name for name in names if name.isdigit()), key=int)
    if not epochs:
        return None
    path = jvm.org.apache.hadoop.fs.Path(offsets, epochs[-1])
    text = spark.sparkContext.wholeTextFiles(path.toString()).first()[1]
    try:
        offset = json.loads(text.rstrip().splitlines()[-1])
    except ValueError:
        offset = None
    if not isinstance(offset, dict):
        raise CheckpointError(
            f"the checkpoint's file {path.toString()} ends with no source's offset.",
            "Use the checkpoint that slackwater made",
        )
    return offset
