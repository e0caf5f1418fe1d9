"""Spanner as a source of change records: one change stream, over one connection."""

from __future__ import annotations

from typing import Final

from slackwater.reader.change_stream import Dialect, PartitionMode
from slackwater.reader.database.change_stream_info import (
    ChangeStreamInfo,
    partitions_alive,
    read_change_stream_info,
)
from slackwater.reader.errors import StartTooOldError
from slackwater.reader.query.partition_query import PartitionQuery
from slackwater.reader.query_outcome import earliest_start_ns
from slackwater.reader.transport.connection import Connection
from slackwater.timestamp import seconds_to_ns

_LONG_AGO_NS: Final = 0
# Records that expire while the first queries run would fail them.
_GRACE_NS: Final = seconds_to_ns(60)


class SpannerSource:
    """A change stream of Spanner's: see change_source.ChangeSource.

    Args:
        connection: to the database.
        heartbeat_ms: the heartbeat interval asked of Spanner.
        dialect: the database's, if the caller knows it; then queries do not have to look it up.
        mode: the change stream's partition mode, likewise.
        info: the change stream's, if the caller has it; otherwise it is looked up when needed.
    """

    def __init__(
        self,
        connection: Connection,
        heartbeat_ms: int,
        *,
        dialect: Dialect | None = None,
        mode: PartitionMode | None = None,
        info: ChangeStreamInfo | None = None,
    ) -> None:
        self._connection = connection
        self._heartbeat_ms = heartbeat_ms
        self._dialect = dialect
        self._mode = mode
        self._info = info

    def info(self) -> ChangeStreamInfo:
        """Return what the information schema says of the change stream; looked up once."""
        if self._info is None:
            self._info = read_change_stream_info(self._connection)
        return self._info

    @property
    def dialect(self) -> Dialect:
        """The database's dialect."""
        if self._dialect is None:
            self._dialect = self.info().dialect
        return self._dialect

    @property
    def partition_mode(self) -> PartitionMode:
        """The way in which the change stream's partitions follow the keys."""
        if self._mode is None:
            self._mode = self.info().partition_mode
        return self._mode

    def check(self) -> None:
        """Look the change stream up; see read_change_stream_info for what can be wrong."""
        self.info()

    def strong_read_timestamp_ns(self) -> int:
        """Return Spanner's clock by a strong read."""
        return self._connection.strong_read_timestamp_ns()

    def partitions_alive(self, at_ns: int) -> list[str]:
        """Return the partitions that a query with a NULL partition token announces."""
        return partitions_alive(
            self._connection,
            self.dialect,
            at_ns,
            heartbeat_ms=self._heartbeat_ms,
            mode=self.partition_mode,
        )

    def earliest_start_ns(self) -> int:
        """Return the start that Spanner names when it refuses an earlier one.

        Where Spanner names none, or one that expires within a minute, the retention decides.
        """
        try:
            self.partitions_alive(_LONG_AGO_NS)
        except StartTooOldError as error:
            clock_ns = self.strong_read_timestamp_ns()
            lasting_ns = clock_ns - self.info().retention_ns + _GRACE_NS
            return max(earliest_start_ns(error.message) or lasting_ns, lasting_ns)
        return _LONG_AGO_NS

    def query(self, token: str, start_ns: int, end_ns: int | None) -> PartitionQuery:
        """Return a partition query of the change stream's."""
        return PartitionQuery(
            self._connection,
            self.dialect,
            partition_token=token,
            start_timestamp_ns=start_ns,
            end_timestamp_ns=end_ns,
            heartbeat_ms=self._heartbeat_ms,
            mode=self.partition_mode,
        )
