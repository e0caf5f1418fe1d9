"""The layout of partitions as a table of plain lines; times are in whole seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from slackwater.monitoring.json_fields import short_token
from slackwater.printing import in_one_line

_DAY: Final = len("2026-01-31")
_SECOND: Final = len("2026-01-31T09:00:00")


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
