"""Listed cells of a synthetic Bigtable's changes, as sinks of data change records show them."""

from base64 import b64decode
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from slackwater.timestamp import datetime_to_us
from tests.synthetic.bigtable.history import Change, DeleteFamily, SetCell

CELLS: Final = ("info:q0", "info:q1", "stats:q2", "info:long")
# As source.columns has them.
COLUMNS: Final = {"row_key": "BYTES", **dict.fromkeys(CELLS, "BYTES")}


class Listed(NamedTuple):
    """A change with the cells of CELLS; None for one that it does not set."""

    row_key: bytes
    commit_us: int
    cells: tuple[bytes | None, ...]


def listed_in(change: Change) -> Listed:
    """Return what has to be seen of a change."""
    cells: dict[str, bytes | None] = dict.fromkeys(CELLS)
    for entry in change.entries:
        if isinstance(entry, SetCell):
            cells[f"{entry.family}:{entry.qualifier.decode()}"] = entry.value
        elif isinstance(entry, DeleteFamily):
            cells.update({name: None for name in cells if name.startswith(f"{entry.family}:")})
    return Listed(change.row_key, change.commit_us, tuple(cells[name] for name in CELLS))


def typed(row: Mapping[str, Any]) -> Listed:
    """Return what a typed changelog's row shows."""
    at_us = datetime_to_us(row["commit_timestamp"])
    return Listed(row["key"]["row_key"], at_us, tuple(row["after"][cell] for cell in CELLS))


def shown(commit: datetime, key: Mapping[str, Any], after: Mapping[str, Any]) -> Listed:
    """Return what is shown in JSON, where bytes are in Base64."""
    cells = [after.get(cell) for cell in CELLS]
    values = tuple(None if cell is None else b64decode(cell) for cell in cells)
    return Listed(b64decode(key["row_key"]), datetime_to_us(commit), values)


def shown_in(message: Mapping[str, Any]) -> Listed:
    """Return what a message in the envelope flat shows."""
    commit = datetime.fromisoformat(message["commit_timestamp"])
    return shown(commit, message["key"], message["after"])
