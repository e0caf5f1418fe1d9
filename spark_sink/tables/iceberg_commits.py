"""Commits to an Iceberg table that are refused if another one came between.

Iceberg's own commit of a snapshot is tried again on top of what others have committed meanwhile,
and so is that of a former owner. These never are: whoever commits looks at the table again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.java import java_raised, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How often a commit is tried, because others commit at the same time what does not conflict.
COMMITS_MAX: Final = 10
CONFLICT: Final = "CommitFailedException"
_BRANCH: Final = "main"


def commit(operations: Any, base: Any, metadata: Any) -> bool:
    """Replace a table's metadata, if nobody has since they were read.

    A REST catalog compares only what a change is about: for a snapshot, which one is current.

    Args:
        operations: Iceberg's TableOperations of the table.
        base: the metadata that were read.
        metadata: the new ones, built from these.

    Returns:
        False if somebody has.

    Raises:
        Py4JJavaError: the commit failed, or its answer was lost.
    """
    try:
        operations.commit(base, metadata)
    except java_raised() as error:
        if CONFLICT not in str(error)[:2_000]:
            raise
        return False
    return True


def with_current(spark: SparkSession, base: Any, snapshot: Any) -> Any:
    """Return a table's metadata with a new snapshot as the current one."""
    builder = jvm_of(spark).org.apache.iceberg.TableMetadata.buildFrom(base)
    return builder.setBranchSnapshot(snapshot, _BRANCH).build()


def snapshot_id(snapshot: Any) -> int | None:
    """Return a snapshot's number; None for none."""
    return None if snapshot is None else int(snapshot.snapshotId())
