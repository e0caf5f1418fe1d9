"""What the tests' sources of change records and their queries have in common."""

from collections.abc import Mapping
from types import MappingProxyType

from slackwater.scheduler.change_source import Query


class QuietQuery:
    """A Query without its records, in which nothing but them ever comes."""

    watermark_ns = open_ms = silent_ms = stalls = 0
    retried: Mapping[str, int] = MappingProxyType({})
    queried_source = True

    def cancel(self) -> None:
        """Do nothing."""


class PlannedSource:
    """A ChangeSource that is only planned with, without its clock and its partitions.

    It can be read from the beginning of time on.
    """

    def check(self) -> None:
        """Do nothing: the source is there."""

    def require_same_functions(self) -> None:
        """Do nothing: the read functions stay."""

    def earliest_start_ns(self) -> int:
        """Return the beginning of time."""
        return 0

    def query(self, token: str, start_ns: int, end_ns: int | None, function: str = "") -> Query:
        """Raise: what reads has a source of its own."""
        raise NotImplementedError
