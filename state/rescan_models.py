"""The record of a table that is read again, as a frozen dataclass that does not need a database."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# Why a table is read again: somebody asked, verify found it different, or it is watched only now.
REQUESTED: Final = "requested"
REPAIR: Final = "repair"
NEW_TABLE: Final = "new table"


class RescanState(StrEnum):
    """What has become of a request to read a table again; no chunk is read unless it is RUNNING."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Rescan:
    """A table that is read again, chunk by chunk in its key's order, while the changes go on.

    Attributes:
        pipeline: the pipeline's name.
        table: the table's full name.
        requested_at_ns: by the clock of the machine that asked. It tells requests apart.
        reason: why it is read again, as status shows it.
        state: what has become of it.
        after_key: JSON of the key up to which the output was found equal; None at the beginning.
        records: the number of rows read so far.
        corrected: the number of rows of the output that differed.
        chunks: the number of chunks so far.
        at_ns: the low watermark at which the last chunk was read; None before the first.
    """

    pipeline: str
    table: str
    requested_at_ns: int
    reason: str
    state: RescanState = RescanState.RUNNING
    after_key: str | None = None
    records: int = 0
    corrected: int = 0
    chunks: int = 0
    at_ns: int | None = None
