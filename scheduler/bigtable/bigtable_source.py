"""A table of Bigtable's as a source: its clock, from when it can be read, its partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slackwater.reader.bigtable.partition_read import PartitionRead
from slackwater.reader.bigtable.positions import reads_of, starting_at
from slackwater.reader.bigtable.row_range import RowRange
from slackwater.reader.bigtable.service import BigtableService, ChangeStreamConfig
from slackwater.reader.errors import StartInFutureError, StartTooOldError, UnsupportedStreamError
from slackwater.timestamp import format_rfc3339, seconds_to_ns

# The first reads would fail if their changes expired meanwhile.
_GRACE_NS: Final = seconds_to_ns(60)
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

    def retention_ns(self) -> int:
        """Return how long changes are kept; looked up once. Raises as check()."""
        if self._config is None:
            self._config = self.service.config()
        if self._config.retention_ns is None:
            table = self.service.table
            raise UnsupportedStreamError(
                f"{table.path} has no change stream.",
                f"gcloud bigtable instances tables update {table.table}"
                f" --instance={table.instance} --change-stream-retention-period=7d",
            )
        return self._config.retention_ns

    def strong_read_timestamp_ns(self) -> int:
        """Return this machine's clock: Bigtable's can't be asked for."""
        return self.service.now_ns()

    def partitions_alive(self, at_ns: int) -> Sequence[RowRange]:
        """Return the present partitions, which can be read from any time within the retention.

        Raises:
            StartTooOldError, StartInFutureError: the time is not.
            ReaderError: Bigtable does not answer.
        """
        if at_ns > self.service.now_ns():
            raise StartInFutureError(
                f"the start {format_rfc3339(at_ns)} lies in the future.", "Use start: now"
            )
        if (earliest_ns := self.earliest_start_ns() - _GRACE_NS) > at_ns:
            raise StartTooOldError(
                f"the start {format_rfc3339(at_ns)} lies before the change stream's retention"
                f" period, which reaches back to {format_rfc3339(earliest_ns)}.",
                "Use start: earliest",
            )
        return self.service.partitions()

    def earliest_start_ns(self) -> int:
        """Return the time from which all changes can be read, with a minute to spare."""
        return self.service.now_ns() - self.retention_ns() + _GRACE_NS

    def readable_before_us(self, partitions: Sequence[RowRange], start_us: int) -> int:
        """Return a time a minute earlier, if changes can be read from there; else the time."""
        earlier_us = start_us - _MARGIN_US
        [read] = reads_of(starting_at(partitions[:1], earlier_us))
        try:
            PartitionRead(self.service, read, earlier_us, _HEARTBEAT_MS, lambda _: None).run()
        except StartTooOldError:
            return start_us
        return earlier_us
