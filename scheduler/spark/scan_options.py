"""The options of a query of the source of initial scans."""

from collections.abc import Sequence
from dataclasses import dataclass

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.scheduler.options import to_option
from slackwater.state.models import Scan, ScanPart


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """The parts of an initial scan to read.

    Attributes:
        change_stream: of the database.
        dialect: the database's.
        scan: the scan.
        parts: those of its parts that are read.
        data_boost: Spanner reads with capacity of its own.
    """

    change_stream: ChangeStream
    dialect: Dialect
    scan: Scan
    parts: Sequence[ScanPart]
    data_boost: bool

    def hand_over(self) -> dict[str, str]:
        """Return the option by which the source gets them."""
        return to_option(self)
