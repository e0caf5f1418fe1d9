"""The history of an Iceberg table's current snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slackwater.spark_sink.tables.table_history import Commit, History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A snapshot: its parent, and the low watermark if the pipeline merged an epoch with it."""

    parent: int | None
    low_watermark_us: int | None


def ancestors(
    snapshots: Mapping[int, Ancestor],
    current: int | None,
    published: int | None,
    published_us: int | None,
) -> History:
    """Return the history of a table's current snapshot.

    Args:
        snapshots: those that are not expired, by their ids.
        current: the current one; None without rows.
        published: the one that was current when a low watermark was last published.
        published_us: that low watermark, in microseconds.
    """
    commits: list[Commit] = []
    place = current
    while place is not None and place in snapshots:
        commits.append(Commit(place, snapshots[place].low_watermark_us))
        place = snapshots[place].parent
    commits.reverse()
    if place is None or not commits:
        return History(commits, is_whole=place is None)
    # What the oldest one holds may be known from the publication only, which is of that snapshot or
    # of one that is expired.
    numbers = {commit.version: number for number, commit in enumerate(commits)}
    number = numbers.get(-1 if published is None else published, 0)
    if commits[number].low_watermark_us is None:
        commits[number] = replace(commits[number], low_watermark_us=published_us)
    return History(commits, is_whole=False)


def last_listed_version(
    spark: SparkSession, table: str, application: str, names: tuple[str, str]
) -> int | None:
    """Return the latest version of an application, by a query over the metadata tables.

    Args:
        spark: a session.
        table: its quoted name.
        application: which committed it.
        names: those of application and version in a snapshot's summary.
    """
    from pyspark.sql import functions as F

    summary, (of_application, of_version) = F.col("summary"), names
    current = spark.table(f"{table}.history").where("is_current_ancestor").select("snapshot_id")
    own = spark.table(f"{table}.snapshots").where(summary[of_application] == application)
    version = summary[of_version].cast("bigint")
    row = own.join(current, "snapshot_id").agg(F.max(version)).first()
    return None if row is None or row[0] is None else int(row[0])
