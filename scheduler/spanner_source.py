"""Spanner as a source of change records: one change stream, over one connection."""

from collections.abc import Sequence
from typing import Final

from slackwater.reader.change_stream import Dialect, PartitionMode
from slackwater.reader.database.change_stream_info import (
    ChangeStreamInfo,
    partitions_alive,
    read_change_stream_info,
)
from slackwater.reader.database.read_functions import OWN_FUNCTION
from slackwater.reader.errors import StartTooOldError, StreamAlteredError
from slackwater.reader.query.partition_query import PartitionQuery
from slackwater.reader.query_outcome import earliest_start_ns, named_start_ns
from slackwater.reader.transport.connection import Connection
from slackwater.state.models import Partition
from slackwater.timestamp import seconds_to_ns

# Spanner's documentation, "Change streams overview": a stream can't have a shorter one.
_RETENTION_LEAST_NS: Final = seconds_to_ns(86_400)
_LONG_AGO_NS: Final = 0
# The first queries would fail if their records expired meanwhile.
_GRACE_NS: Final = seconds_to_ns(60)


class SpannerSource:
    """A change stream of Spanner's as a change_source.ChangeSource.

    Args:
        connection: to the database.
        heartbeat_ms: the heartbeat interval asked of Spanner.
        dialect: the database's, if the caller knows it; then queries do not have to look it up.
        mode, functions: the change stream's partition mode and read functions, likewise.
        info: the change stream's, if the caller has it; otherwise it is looked up when needed.
    """

    def __init__(
        self,
        connection: Connection,
        heartbeat_ms: int,
        *,
        dialect: Dialect | None = None,
        mode: PartitionMode | None = None,
        functions: Sequence[str] | None = None,
        info: ChangeStreamInfo | None = None,
    ) -> None:
        self._connection = connection
        self._heartbeat_ms = heartbeat_ms
        self._dialect = dialect
        self._mode = mode
        self._functions = functions
        self._info = info

    def info(self) -> ChangeStreamInfo:
        """Return the change stream's properties in the information schema; looked up once."""
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

    @property
    def read_functions(self) -> Sequence[str]:
        """The read functions whose records together are the change stream's."""
        if self._functions is None:
            self._functions = self.info().read_functions
        return self._functions

    def check(self) -> None:
        """Look the change stream up; errors as read_change_stream_info raises them."""
        self.info()

    def require_same_functions(self) -> None:
        """Check that the information schema still has the read functions that are known here.

        Only a stream with mutable key ranges can have others.
        """
        if self.partition_mode is PartitionMode.IMMUTABLE_KEY_RANGE:
            return
        present = read_change_stream_info(self._connection).read_functions
        if set(present) != set(self.read_functions):
            raise StreamAlteredError(
                f"the read functions of {self._connection.change_stream.path} were"
                f" {_names(self.read_functions)} when the epoch was planned, and now they are"
                f" {_names(present)}.",
                "The epoch is planned again with them",
            )

    def strong_read_timestamp_ns(self) -> int:
        """Return Spanner's clock by a strong read."""
        return self._connection.strong_read_timestamp_ns()

    def partitions_alive(
        self, at_ns: int, functions: Sequence[str] | None = None
    ) -> Sequence[Partition]:
        """Return the partitions that queries with a NULL partition token announce."""
        if self.partition_mode is PartitionMode.IMMUTABLE_KEY_RANGE:
            return [Partition(token, at_ns) for token in self._tokens(at_ns, OWN_FUNCTION)]
        alive: list[Partition] = []
        for function in self.read_functions if functions is None else functions:
            start_ns = at_ns
            try:
                tokens = self._tokens(at_ns, function)
            except StartTooOldError as error:
                start_ns = self._begin_ns(function, at_ns, error)
                tokens = self._tokens(start_ns, function)
            alive += [Partition(token, start_ns, function=function) for token in tokens]
        return alive

    def _begin_ns(self, function: str, at_ns: int, refusal: StartTooOldError) -> int:
        """Return when a read function began that Spanner refuses to read at a time.

        Spanner refuses with the same words where records are no longer retained. Then another
        function, asked after this one, is refused too.

        Raises:
            StartTooOldError: that is the case, or the refusal does not say when it began.
        """
        begin_ns = named_start_ns(refusal.message)
        others = [other for other in self.read_functions if other != function]
        if begin_ns is None or begin_ns <= at_ns or not others:
            raise refusal
        for other in others:
            try:
                self._tokens(at_ns, other)
            except StartTooOldError:
                continue
            return begin_ns
        raise refusal

    def _tokens(self, at_ns: int, function: str) -> list[str]:
        return partitions_alive(
            self._connection,
            self.dialect,
            at_ns,
            heartbeat_ms=self._heartbeat_ms,
            mode=self.partition_mode,
            function=function,
        )

    def earliest_start_ns(self) -> int:
        """Return the start that Spanner names when it refuses an earlier one.

        Where Spanner names none, or one that expires within a minute, the retention decides. If
        that is not known, a start that moves with the clock is taken for its end.
        """
        named_ns = self._earliest_named_ns()
        retention_ns = self.info().retention_ns
        if named_ns is None:
            return _LONG_AGO_NS
        if retention_ns is None and named_ns == _LONG_AGO_NS:
            retention_ns = _RETENTION_LEAST_NS
        if retention_ns is not None:
            return max(named_ns, self.strong_read_timestamp_ns() - retention_ns + _GRACE_NS)
        is_moving = self._earliest_named_ns() != named_ns
        return named_ns + _GRACE_NS if is_moving else named_ns

    def _earliest_named_ns(self) -> int | None:
        """Return the start that Spanner names in its refusal; None if it refuses none."""
        refused_ns = []
        for function in self.read_functions:
            try:
                self._tokens(_LONG_AGO_NS, function)
            except StartTooOldError as error:
                refused_ns.append(earliest_start_ns(error.message) or _LONG_AGO_NS)
            else:
                return None
        return min(refused_ns)

    def query(
        self, token: str, start_ns: int, end_ns: int | None, function: str = OWN_FUNCTION
    ) -> PartitionQuery:
        """Return a partition query of the change stream's."""
        return PartitionQuery(
            self._connection,
            self.dialect,
            partition_token=token,
            start_timestamp_ns=start_ns,
            end_timestamp_ns=end_ns,
            heartbeat_ms=self._heartbeat_ms,
            mode=self.partition_mode,
            function=function,
        )


def _names(functions: Sequence[str]) -> str:
    return " and ".join(function or "its own" for function in functions)
