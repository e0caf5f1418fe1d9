"""The history of an Iceberg table's current snapshot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.java import jvm_of
from slackwater.spark_sink.tables.table_history import Commit, History

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# In a snapshot's summary: the application that committed it, and its version.
APPLICATION: Final = "slackwater.application"
VERSION: Final = "slackwater.version"
# How many snapshots are looked at one by one: those since the application's last.
_ANCESTORS_MAX: Final = 100


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


def has_version(spark: SparkSession, metadata: Any, application: str, version: int) -> bool:
    """Return whether a version or a later one is there; see last_version()."""
    last = last_version(spark, metadata, application)
    return last is not None and last >= version


def last_version(spark: SparkSession, metadata: Any, application: str) -> int | None:
    """Return the latest version in the summaries of the current snapshot and its ancestors.

    Args:
        spark: a session with Iceberg's jar.
        metadata: Iceberg's TableMetadata.
        application: whose version.
    """
    for number, snapshot in enumerate(_line(metadata)):
        if number == _ANCESTORS_MAX:
            return _last_version_in_text(spark, metadata, application)
        # Other writers' may have none.
        summary: Any = snapshot.summary() or {}
        if summary.get(APPLICATION) == application:
            return int(summary.get(VERSION))
    return None


def has_all_since(metadata: Any, snapshot: int | None) -> bool:
    """Return whether of the current snapshot's ancestors none is expired that came after another.

    Args:
        metadata: Iceberg's TableMetadata.
        snapshot: the other one's id; None for the time before the first.
    """
    oldest = None
    for oldest in _line(metadata):
        if int(oldest.snapshotId()) == snapshot:
            return True
    return oldest is None or oldest.parentId() in (None, snapshot)


def _line(metadata: Any) -> Iterator[Any]:
    """Yield the current snapshot and its ancestors, up to one that is expired."""
    snapshot = metadata.currentSnapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parentId()
        snapshot = None if parent is None else metadata.snapshot(parent)


def _last_version_in_text(spark: SparkSession, metadata: Any, application: str) -> int | None:
    """Return what last_version() does, from the metadata as one text."""
    # Each step above is a few calls to the JVM.
    parser = jvm_of(spark).org.apache.iceberg.TableMetadataParser
    fields = json.loads(parser.toJson(metadata))
    snapshots = {item["snapshot-id"]: item for item in fields.get("snapshots", ())}
    snapshot = snapshots.get(fields.get("current-snapshot-id"))
    while snapshot is not None:
        summary = snapshot.get("summary", {})
        if summary.get(APPLICATION) == application:
            return int(summary[VERSION])
        snapshot = snapshots.get(snapshot.get("parent-snapshot-id"))
    return None
