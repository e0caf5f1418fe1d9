"""The summaries of an Iceberg table's snapshots, with the pipelines that committed them."""

import json
from collections.abc import Iterator, Mapping
from typing import Final

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from slackwater.spark_sink.errors import ObjectStoreError

# In a snapshot's summary: the application that committed it, and its version.
APPLICATION: Final = "slackwater.application"
VERSION: Final = "slackwater.version"
# The table's property with the snapshot of the published low watermark: properties have no history.
PUBLISHED_SNAPSHOT: Final = "slackwater.snapshot"
# The process, after the application of its epochs; and the line in the watermark log.
_OWNER: Final = "slackwater.owner"
_LINE: Final = "slackwater.line"
# The table's property with the last summaries of a pipeline, whose application follows; and in each
# of them the sequence number of its snapshot.
_LAST: Final = "slackwater.last."
_SEQUENCE: Final = "slackwater.sequence"
# How many applications besides the latest are in it.
_OTHERS_MAX: Final = 8
# In the place of a snapshot that the catalog does not show.
UNKNOWN: Final = -1


def summary_of(
    application: str, version: int | None, owner: tuple[str, str], line: str | None
) -> dict[str, str]:
    """Return the summary of a commit's snapshot.

    Args:
        application: names the writer.
        version: of the application; None for none.
        owner: the application of the pipeline's epochs, and a name that only this process has.
        line: see TableCommits.append().
    """
    fields = {APPLICATION: application, _OWNER: " ".join(owner)}
    if version is not None:
        fields[VERSION] = str(version)
    return fields if line is None else {**fields, _LINE: line}


def line_of_snapshots(metadata: TableMetadata) -> Iterator[Snapshot]:
    """Yield the current snapshot and its ancestors, up to one that is expired."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    place = metadata.current_snapshot_id
    while place is not None and (snapshot := by_id.get(place)) is not None:
        yield snapshot
        place = snapshot.parent_snapshot_id


def last_property(
    metadata: TableMetadata, pipeline: str, summary: Mapping[str, str]
) -> dict[str, str]:
    """Return the property that keeps a pipeline's last summaries; see _summaries().

    Args:
        metadata: before the commit.
        pipeline: the application of its epochs.
        summary: of the commit.
    """
    new = {**summary, _SEQUENCE: str(metadata.next_sequence_number())}
    others = [one for one in _stated(metadata, pipeline) if one[APPLICATION] != new[APPLICATION]]
    # A rescan's chunks have an application each, and the pipeline's own may be the oldest.
    own = (one for one in others[_OTHERS_MAX:] if one[APPLICATION] == pipeline)
    return {f"{_LAST}{pipeline}": json.dumps([new, *others[:_OTHERS_MAX], *own])}


def _summaries(metadata: TableMetadata, pipeline: str) -> Iterator[Mapping[str, str]]:
    """Yield the summaries of the current snapshot and its ancestors, the latest first.

    Where ancestors are not there, those that a property keeps take their place: somebody has
    expired them, or the catalog shows the current one alone, as Nessie does.
    """
    oldest = None
    for oldest in line_of_snapshots(metadata):
        yield fields_of(oldest)
    if oldest is not None and parent_of(oldest, metadata) is not None:
        yield from _last_summaries(metadata, pipeline)


def parent_of(snapshot: Snapshot, metadata: TableMetadata) -> int | None:
    """Return the snapshot before one; UNKNOWN if the catalog does not show it; None for none.

    A table that was replaced has another first snapshot, and the earlier ones besides.
    """
    if snapshot.parent_snapshot_id is not None:
        return snapshot.parent_snapshot_id
    earliest = min(other.sequence_number or 0 for other in metadata.snapshots)
    return UNKNOWN if (snapshot.sequence_number or 0) == earliest > 1 else None


def _last_summaries(metadata: TableMetadata, pipeline: str) -> list[Mapping[str, str]]:
    """Return the summaries that a property keeps, up to the current snapshot.

    Raises:
        ObjectStoreError: all of them are later.
    """
    current = metadata.current_snapshot()
    latest = 0 if current is None else current.sequence_number or 0
    stated = _stated(metadata, pipeline)
    summaries = [summary for summary in stated if int(summary[_SEQUENCE]) <= latest]
    if stated and not summaries:
        raise ObjectStoreError(
            f"{metadata.location} was rolled back to a time before all commits that it knows of:"
            " which epochs it has can't be told.",
            "Restore the table as of a time whose snapshots are not expired, or name another one",
        )
    return summaries


def _stated(metadata: TableMetadata, pipeline: str) -> list[Mapping[str, str]]:
    stated: list[Mapping[str, str]] = json.loads(
        metadata.properties.get(f"{_LAST}{pipeline}", "[]")
    )
    return stated


def last_of(metadata: TableMetadata, application: str, pipeline: str) -> Mapping[str, str]:
    """Return the summary of an application's latest snapshot with a version; empty without one.

    Args:
        metadata: the table's.
        application: the pipeline's own, or that of an initial scan of it.
        pipeline: the application of its epochs.
    """
    for fields in _summaries(metadata, pipeline):
        if fields.get(APPLICATION) == application and VERSION in fields:
            return fields
    return {}


def version_of(summary: Mapping[str, str]) -> int | None:
    """Return the version in a summary; None for none."""
    return int(summary[VERSION]) if VERSION in summary else None


def merged_version_of(snapshot: Snapshot, application: str) -> int | None:
    """Return the version that an application has merged with a snapshot; None for any other.

    A take-over repeats the version of the epoch before, and changes nothing.
    """
    fields = fields_of(snapshot)
    is_take_over = snapshot.summary is not None and snapshot.summary.operation == Operation.APPEND
    if fields.get(APPLICATION) != application or is_take_over:
        return None
    return version_of(fields)


def watermark_line_of(summary: Mapping[str, str]) -> str | None:
    """Return the line in a summary; None for none."""
    return summary.get(_LINE)


def owner_of(metadata: TableMetadata, application: str) -> str | None:
    """Return the name of the process that has committed the latest of a pipeline's snapshots."""
    for fields in _summaries(metadata, application):
        owner = fields.get(_OWNER, "")
        if owner.rpartition(" ")[0] == application:
            return owner.rpartition(" ")[2]
    return None


def fields_of(snapshot: Snapshot) -> Mapping[str, str]:
    """Return the fields of a snapshot's summary, which other writers' may lack."""
    return {} if snapshot.summary is None else snapshot.summary.additional_properties
