"""The summaries of an Iceberg table's snapshots, with the pipelines that committed them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

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

    Of two applications: an initial scan's and the pipeline's own.

    Args:
        metadata: before the commit.
        pipeline: the application of its epochs.
        summary: of the commit.
    """
    new = {**summary, _SEQUENCE: str(metadata.next_sequence_number())}
    others = [
        one for one in _last_summaries(metadata, pipeline) if one[APPLICATION] != new[APPLICATION]
    ]
    return {f"{_LAST}{pipeline}": json.dumps([new, *others[:1]])}


def _summaries(metadata: TableMetadata, pipeline: str) -> Iterator[Mapping[str, str]]:
    """Yield the summaries of the current snapshot and its ancestors, the latest first.

    Where ancestors are not there, those that a property keeps take their place: somebody has
    expired them, or the catalog shows the current one alone, as Nessie does.
    """
    oldest = None
    for oldest in line_of_snapshots(metadata):
        yield fields_of(oldest)
    is_cut = oldest is not None and (oldest.parent_snapshot_id or (oldest.sequence_number or 0) > 1)
    if is_cut:
        yield from _last_summaries(metadata, pipeline)


def _last_summaries(metadata: TableMetadata, pipeline: str) -> list[Mapping[str, str]]:
    """Return the kept summaries up to the current snapshot: the table may be rolled back."""
    current = metadata.current_snapshot()
    latest = 0 if current is None else current.sequence_number or 0
    summaries = json.loads(metadata.properties.get(f"{_LAST}{pipeline}", "[]"))
    return [summary for summary in summaries if int(summary[_SEQUENCE]) <= latest]


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
