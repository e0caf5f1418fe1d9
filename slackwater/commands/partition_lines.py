"""The partitions in the metadata store, printed: `slackwater partitions`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from slackwater.commands.options import PartitionFormat
from slackwater.commands.stored_pipeline import open_pipeline
from slackwater.config.settings import Settings
from slackwater.errors import SettingsError
from slackwater.monitoring.json_fields import partition_fields, position_fields, short_token
from slackwater.monitoring.lineage_graph import to_dot
from slackwater.printing import in_one_line
from slackwater.scheduler.bigtable.stored_positions import positions_of
from slackwater.scheduler.lineage import states
from slackwater.state.open_queries import stalls

_DAY: Final = len("2026-01-31")
_SECOND: Final = len("2026-01-31T09:00:00")


def partition_lines(settings: Settings, partition_format: PartitionFormat) -> Iterator[str]:
    """Yield the lines of a table, of JSON or of a graph in Graphviz's language.

    Raises:
        PipelineNotStartedError: the pipeline has never run.
        SettingsError: a graph is to be drawn of Bigtable's partitions.
        StateError: the store can't be read.
    """
    with open_pipeline(settings) as (store, pipeline):
        partitions = store.partitions(settings.pipeline)
        stalled = stalls(store, settings.pipeline)
        positions = positions_of(store, settings.pipeline)
    if positions and partition_format is PartitionFormat.DOT:
        raise SettingsError(
            "Bigtable's partitions have no parents on record, of which a graph could be drawn.",
            "Use --format table or json",
        )
    if partition_format is PartitionFormat.DOT:
        yield from to_dot(partitions, low_watermark_ns=pipeline.low_watermark_ns).splitlines()
        return
    state_of = states(partitions, pipeline.low_watermark_ns or 0)
    rows = [partition_fields(p, state_of[p.label], stalled.get(p.label, 0)) for p in partitions]
    rows_of_positions = position_fields(positions)
    if partition_format is PartitionFormat.JSON:
        yield json.dumps(rows or rows_of_positions, indent=2)
    elif positions:
        yield from position_table(rows_of_positions)
    else:
        yield from partition_table(rows)


def partition_table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table: 80 columns, unless stalled partitions are older than their day.

    The lines are escaped here, because escapes make some tokens longer.

    Args:
        rows: as json_fields.partition_fields() returns them.
    """
    table = [["token", "state", "start (UTC)", "end", "parents", "stalls"]]
    for row in rows:
        start, end = row["start_timestamp"], row["end_timestamp"]
        first, *others = [short_token(parent) for parent in row["parents"]] or [""]
        cells = [short_token(row["token"]), row["state"], _shown(start), _end(start, end), first]
        table.append([*cells, str(row["stalls"] or "")])
        table += [["", "", "", "", parent, ""] for parent in others]
    table = [[in_one_line(cell) for cell in cells] for cells in table]
    if not any(row["stalls"] for row in rows):
        table = [cells[:-1] for cells in table]
    yield from _aligned(table)


def position_table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table of Bigtable's partitions; the keys, of any length, come last.

    Args:
        rows: as json_fields.position_fields() returns them.
    """
    times = ["position_at", "replication_stands_at"]
    table = [["position (UTC)", "replication", "token", "keys", "waits for the rest of"]]
    for row in rows:
        cells = [_shown(row[time]) if row[time] else "-" for time in times]
        cells.append("yes" if row["has_token"] else "-")
        table.append([*cells, row["keys"], row["waits_for_the_rest_of"] or "-"])
    yield from _aligned([[in_one_line(cell) for cell in cells] for cells in table])


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        yield "  ".join(padded).rstrip()


def _shown(time: str) -> str:
    return time[:_SECOND].replace("T", " ")


def _end(start: str, end: str | None) -> str:
    """Return an end without its day if it is the start's."""
    if end is None:
        return "-"
    return end[_DAY + 1 : _SECOND] if end[:_DAY] == start[:_DAY] else _shown(end)
