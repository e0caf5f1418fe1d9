"""The record of a table that is read again, as a frozen dataclass that does not need a database."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# The reasons for reading a table again: an operator's request, a difference that verify found, a
# table that is watched only now, or another table that has the name now.
REQUESTED: Final = "requested"
REPAIR: Final = "repair"
NEW_TABLE: Final = "new table"
OTHER_TABLE: Final = "other table"
_OF_LACKING: Final = frozenset({NEW_TABLE, OTHER_TABLE})


class RescanState(StrEnum):
    """The state of a request to read a table again; no chunk is read unless it is RUNNING."""

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
        state: of the request.
        after_key: JSON of the key up to which the output was found equal; None at the beginning.
        records: the number of rows read so far.
        corrected: the number of rows of the output that differed.
        chunks: the number of chunks so far.
        at_ns: the low watermark at which the last chunk was read, also of an earlier request for
            the table; None before the first.
        pending_at_ns: that of a chunk that may be in the output already; None for none. It is read
            again at the same time and up to the same key, so that it is the same chunk.
        pending_key: JSON of the key at which it ends; None for the table's end.
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
    pending_at_ns: int | None = None
    pending_key: str | None = None

    @property
    def lacks_rows(self) -> bool:
        """Whether the output lacks rows of the table until the request is done.

        A table that the pipeline no longer reads lacks none: its output stays as it is.
        """
        is_over = self.state in (RescanState.DONE, RescanState.FAILED)
        return self.reason in _OF_LACKING and not is_over

    @property
    def last_at_ns(self) -> int:
        """The low watermark of the last chunk that may be in the output; 0 for none."""
        return max(self.at_ns or 0, self.pending_at_ns or 0)
