"""The position of a pipeline in Spark's checkpoint, read before Spark resumes from it.

A streaming checkpoint holds a file for each planned epoch under offsets/, whose last line is the
source's offset as JSON, and one for each committed epoch under commits/.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from slackwater.errors import CheckpointError
from slackwater.pipeline.spark.jvm import joined, names_in, rename, text_of

Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The position in a checkpoint.

    Attributes:
        planned: the source's offset at the end of the last epoch planned; None if none can be read.
        committed: that of the last epoch committed, None for none. Spark plans an epoch only after
            it has committed the one before, and so it takes that one for committed.
        is_whole: False if Spark can't go on from there: a file of the last two epochs is missing or
            empty. A copy of a checkpoint in use may be like that, and a disk after a power cut.
    """

    planned: Offset | None
    committed: Offset | None
    is_whole: bool


def read_checkpoint(spark: SparkSession, folder: str) -> Checkpoint | None:
    """Return the position in a checkpoint; None if no epoch was planned.

    Raises:
        CheckpointError: it has a file that Spark does not write for a single source.
    """
    planned = _epochs(spark, folder, "offsets")
    committed = _epochs(spark, folder, "commits")
    if not planned:
        return None
    last = planned[-1]
    of_last = _offset(spark, folder, last)
    before = _offset(spark, folder, last - 1) if last - 1 in planned else None
    are_planned = of_last is not None and (before is not None or last == 0)
    are_committed = not committed or (
        committed[-1] <= last and not _is_blank(_text(spark, folder, "commits", committed[-1]))
    )
    return Checkpoint(
        of_last or before,
        of_last if last in committed else before,
        is_whole=are_planned and are_committed,
    )


def has_offsets(spark: SparkSession, folder: str) -> bool:
    """Return whether a checkpoint has any file among its plans, such as a temporary one.

    Spark does not begin a checkpoint with such a file.
    """
    return bool(names_in(spark, joined(spark, folder, "offsets")))


def put_aside(spark: SparkSession, checkpoint: str) -> str | None:
    """Rename a checkpoint, so that the next query begins another one; return its new name.

    None if there is nothing to rename.

    Raises:
        CheckpointError: the file system refused.
    """
    if not names_in(spark, checkpoint):
        return None
    new = f"{checkpoint.rstrip('/')}.replaced-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    try:
        rename(spark, checkpoint, new)
    except OSError as error:
        raise CheckpointError(
            f"{error}.", "Rename it by hand, then run the command again"
        ) from error
    return new


def _epochs(spark: SparkSession, checkpoint: str, log: str) -> list[int]:
    names = names_in(spark, joined(spark, checkpoint, log))
    return sorted(int(name) for name in names if name.isdigit())


def _text(spark: SparkSession, checkpoint: str, log: str, epoch: int) -> str:
    return text_of(spark, joined(spark, checkpoint, f"{log}/{epoch}"))


def _is_blank(text: str) -> bool:
    """Return True for the empty content that a power cut leaves of an unwritten file."""
    return not text.strip("\0 \n")


def _offset(spark: SparkSession, checkpoint: str, epoch: int) -> Offset | None:
    """Return the offset at the end of an epoch; None if the file is empty."""
    text = _text(spark, checkpoint, "offsets", epoch)
    if _is_blank(text):
        return None
    try:
        offset = json.loads(text.rstrip().splitlines()[-1])
    except (ValueError, IndexError):
        offset = None
    if not isinstance(offset, dict):
        raise CheckpointError(
            f"the file offsets/{epoch} of the checkpoint {checkpoint} does not end with a source's"
            " offset.",
            "Use the checkpoint that slackwater made",
        )
    return offset
