"""The history of an Iceberg table's current snapshot."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyiceberg.table import Table

from slackwater.spark_sink.output.iceberg.snapshots import (
    PUBLISHED_SNAPSHOT,
    fields_of,
    merged_version_of,
    parent_of,
)
from slackwater.spark_sink.tables.table_changes import LOW_WATERMARK_PROPERTY
from slackwater.spark_sink.tables.table_history import Commit, History
from slackwater.timestamp import ns_to_us, parse_rfc3339


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A snapshot.

    Attributes:
        parent: its id; None for the first.
        low_watermark_us: of the epoch that the pipeline merged with it, in microseconds.
        has_rows: whether there are any in it.
    """

    parent: int | None
    low_watermark_us: int | None
    has_rows: bool = True


def history_of(table: "Table", application: str) -> History:
    """Return the current snapshot and its ancestors that are not expired.

    Args:
        table: as it was loaded.
        application: that of the merges.
    """
    properties = table.properties
    published, at = properties.get(PUBLISHED_SNAPSHOT), properties.get(LOW_WATERMARK_PROPERTY)
    return ancestors(
        {
            snapshot.snapshot_id: Ancestor(
                parent_of(snapshot, table.metadata),
                merged_version_of(snapshot, application),
                fields_of(snapshot).get("total-records") != "0",
            )
            for snapshot in table.snapshots()
        },
        table.metadata.current_snapshot_id,
        int(published) if published else None,
        ns_to_us(parse_rfc3339(at)) if at else None,
    )


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
        snapshot = snapshots[place]
        commits.append(Commit(place, snapshot.low_watermark_us, has_rows=snapshot.has_rows))
        place = snapshots[place].parent
    commits.reverse()
    if place is None or not commits:
        return History(commits, is_whole=place is None)
    # The low watermark of the oldest one may come from the publication only, which is of that
    # snapshot or of one that is expired.
    numbers = {commit.version: number for number, commit in enumerate(commits)}
    number = numbers.get(-1 if published is None else published, 0)
    if commits[number].low_watermark_us is None:
        commits[number] = replace(commits[number], low_watermark_us=published_us)
    return History(commits, is_whole=False)
