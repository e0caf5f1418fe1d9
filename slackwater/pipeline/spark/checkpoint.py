"""The position of a pipeline in Spark's checkpoint, read before Spark resumes from it.

A streaming checkpoint holds a file for each planned epoch under offsets/, whose last line is the
source's offset as JSON, and one for each committed epoch under commits/.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession

from slackwater.errors import CheckpointError
from slackwater.pipeline.spark.jvm import joined, names_in


def last_offset(spark: SparkSession, checkpoint: str) -> dict[str, Any] | None:
    """Return the source's offset of the last epoch planned; None if there is none.

    Raises:
        CheckpointError: the file is not one that Spark writes for a single source.
    """
    epochs = _epochs(spark, checkpoint, "offsets")
    return _offset(spark, checkpoint, epochs[-1]) if epochs else None


def committed_offset(spark: SparkSession, checkpoint: str) -> dict[str, Any] | None:
    """Return the source's offset of the last epoch committed; None if there is none.

    Raises:
        CheckpointError: as last_offset().
    """
    epochs = _epochs(spark, checkpoint, "commits")
    return _offset(spark, checkpoint, epochs[-1]) if epochs else None


def _epochs(spark: SparkSession, checkpoint: str, log: str) -> list[int]:
    names = names_in(spark, joined(spark, checkpoint, log))
    return sorted(int(name) for name in names if name.isdigit())


def _offset(spark: SparkSession, checkpoint: str, epoch: int) -> dict[str, Any]:
    path = joined(spark, checkpoint, f"offsets/{epoch}")
    text = spark.sparkContext.wholeTextFiles(path).first()[1]
    try:
        offset = json.loads(text.rstrip().splitlines()[-1])
    except (ValueError, IndexError):
        offset = None
    if not isinstance(offset, dict):
        raise CheckpointError(
            f"the checkpoint's file {path} does not end with a source's offset.",
            "Use the checkpoint that slackwater made",
        )
    return offset
