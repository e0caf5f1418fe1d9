"""A table of Bigtable's as a source: its clock, from when it can be read, its partitions."""

from collections.abc import Sequence
from typing import Final

from slackwater.reader.bigtable.partition_read import PartitionRead
from slackwater.reader.bigtable.positions import reads_of, starting_at
from slackwater.reader.bigtable.row_range import RowRange
from slackwater.reader.bigtable.service import BigtableService, ChangeStreamConfig
from slackwater.reader.errors import StartInFutureError, StartTooOldError, UnsupportedStreamError
from slackwater.timestamp import format_rfc3339, ns_to_us, seconds_to_ns, us_to_ns

# The first reads would fail if their changes expired meanwhile.
_GRACE_NS: Final = seconds_to_ns(60)
_SECOND_NS: Final = seconds_to_ns(1)
_MARGIN_US: Final = 60_000_000
_HEARTBEAT_MS: Final = 1_000


class BigtableSource:
    """A table with a change stream as a change_source.ReadableSource.

    Args:
        service: Bigtable's API.
    """

    def __init__(self, service: BigtableService) -> None:
        self.service = service
        self._config: ChangeStreamConfig | None = None

    def check(self) -> None:
        """Look the table up.

        Raises:
            UnsupportedStreamError: it has no change stream.
            ReaderError: there is no such table, or Bigtable does not answer.
        """
        self.retention_ns()

    def families(self) -> frozenset[str]:
        """Return the names of the table's column families; looked up once. Raises as check()."""
        return self._looked_up().families

    def _looked_up(self) -> ChangeStreamConfig:
        if self._config is None:
            self._config = self.service.config()
        return self._config

    def retention_ns(self) -> int:
        """Return how long changes are kept; looked up once. Raises as check()."""
        retention_ns = self._looked_up().retention_ns
        if retention_ns is None:
            table = self.service.table
            raise UnsupportedStreamError(
                f"{table.path} has no change stream.",
                f"gcloud bigtable instances tables update {table.table}"
                f" --instance={table.instance} --change-stream-retention-period=7d",
            )
        return retention_ns

    def strong_read_timestamp_ns(self) -> int:
        """Return this machine's clock: Bigtable's can't be asked for."""
        return self.service.now_ns()

    def partitions_alive(self, at_ns: int) -> Sequence[RowRange]:
        """Return the present partitions, if they can be read from a time on.

        Raises:
            StartTooOldError, StartInFutureError: they can't.
            ReaderError: Bigtable does not answer.
        """
        if at_ns > self.service.now_ns():
            raise StartInFutureError(
                f"the start {format_rfc3339(at_ns)} lies in the future.", "Use start: now"
            )
        partitions = self.service.partitions()
        if not self._is_readable(partitions, at_ns):
            earliest = format_rfc3339(self._earliest_ns(partitions))
            raise StartTooOldError(
                f"the start {format_rfc3339(at_ns)} lies before the change stream's retention"
                f" period or its creation: it can be read from {earliest} on.",
                "Use start: earliest",
            )
        return partitions

    def earliest_start_ns(self) -> int:
        """Return the time from which all changes can be read, with a minute to spare."""
        return self._earliest_ns(self.service.partitions())

    def _earliest_ns(self, partitions: Sequence[RowRange]) -> int:
        """Return the edge of the retention, or if the stream is younger about its creation."""
        later_ns = self.service.now_ns()
        earlier_ns = later_ns - self.retention_ns() + _GRACE_NS
        if self._is_readable(partitions, earlier_ns):
            return earlier_ns
        while later_ns - earlier_ns > _SECOND_NS:
            middle_ns = (earlier_ns + later_ns) // 2
            if self._is_readable(partitions, middle_ns):
                later_ns = middle_ns
            else:
                earlier_ns = middle_ns
        return later_ns

    def before_or_at_us(self, partitions: Sequence[RowRange], start_us: int) -> int:
        """Return a time a minute earlier, if changes can be read from there; else the time."""
        earlier_us = start_us - _MARGIN_US
        return earlier_us if self._is_readable(partitions, us_to_ns(earlier_us)) else start_us

    def _is_readable(self, partitions: Sequence[RowRange], at_ns: int) -> bool:
        """Return whether Bigtable still has the changes after a low watermark."""
        at_us = ns_to_us(at_ns) + 1
        [read] = reads_of(starting_at(partitions[:1], at_us))
        try:
            PartitionRead(self.service, read, at_us, _HEARTBEAT_MS, lambda _: None).run()
        except StartTooOldError:
            return False
        return True
