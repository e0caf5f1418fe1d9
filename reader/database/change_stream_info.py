"""The change stream in the information schema, and the partitions alive at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slackwater.reader.change_stream import Dialect, PartitionMode
from slackwater.reader.database.read_functions import (
    OPTION,
    OWN_FUNCTION,
    is_per_placement,
    read_functions,
)
from slackwater.reader.errors import NotFoundError, UnavailableError, UnsupportedStreamError
from slackwater.reader.query.partition_query import PartitionQuery
from slackwater.reader.records import ChildPartitionsRecord, PartitionStartRecord
from slackwater.reader.transport.connection import Connection
from slackwater.reader.transport.statement import CHANGE_STREAM_OPTIONS, DATABASE_DIALECT
from slackwater.timestamp import format_rfc3339, ms_to_ns, ns_to_seconds, parse_duration_ms

_OMITTING: Final = (
    "exclude_insert",
    "exclude_update",
    "exclude_delete",
    "exclude_ttl_deletes",
    "allow_txn_exclusion",
)
_PARTITION_MODE: Final = PartitionMode.IMMUTABLE_KEY_RANGE


@dataclass(frozen=True, slots=True)
class ChangeStreamInfo:
    """A change stream's properties in the information schema.

    Attributes:
        dialect: the database's.
        retention_ns: how long records are retained, nanoseconds; None if Spanner does not say.
        options: the stream's options, as they stand there.
        read_functions: those whose records together are the stream's, as in read_functions.
    """

    dialect: Dialect
    retention_ns: int | None
    options: Mapping[str, str]
    read_functions: tuple[str, ...] = (OWN_FUNCTION,)

    @property
    def partition_mode(self) -> PartitionMode:
        """The way in which the stream's partitions follow the keys."""
        return partition_mode_of(self.options)

    @property
    def omissions(self) -> list[str]:
        """The options by which the stream leaves changes out, or lets transactions do so.

        See "Table modifications filter" and "TTL-based deletes filter" in Spanner's documentation,
        "Change streams overview".
        """
        return [name for name in _OMITTING if self.options.get(name, "").lower() == "true"]


def read_change_stream_info(connection: Connection) -> ChangeStreamInfo:
    """Return the change stream's properties from the information schema.

    Raises:
        NotFoundError: the database has no such change stream; the hint names those it has.
        UnsupportedStreamError: as require_supported() and read_functions().
        ReaderError: as Connection.query().
    """
    dialect, streams = read_change_streams(connection)
    name = connection.change_stream.change_stream
    if name not in streams:
        existing = ", ".join(sorted(streams)) or "none"
        raise NotFoundError(
            f"database {connection.change_stream.database_path} has no change stream {name!r}.",
            f"It has: {existing}",
        )
    options = streams[name]
    require_supported(name, options)
    functions: tuple[str, ...] = (OWN_FUNCTION,)
    if is_per_placement(options):
        functions = read_functions(connection, dialect, partition_mode_of(options), streams)
    retention_ns = parse_retention_ns(options.get("retention_period"))
    return ChangeStreamInfo(dialect, retention_ns, options, functions)


def read_change_streams(
    connection: Connection,
) -> tuple[Dialect, Mapping[str, Mapping[str, str]]]:
    """Return the dialect of a connection's database, and the options of its change streams by name.

    Raises:
        ReaderError: as Connection.query().
    """
    rows = connection.query(DATABASE_DIALECT)
    dialect = Dialect(rows[0][0]) if rows else Dialect.GOOGLE_STANDARD_SQL
    streams: dict[str, dict[str, str]] = {}
    for stream, option, value in connection.query(CHANGE_STREAM_OPTIONS[dialect]):
        options = streams.setdefault(stream, {})
        if option is not None:
            options[option] = value
    return dialect, streams


def require_supported(name: str, options: Mapping[str, str]) -> None:
    """Refuse a kind of change stream that can't be read yet.

    Args:
        name: the stream's.
        options: the stream's, as the information schema shows them.

    Raises:
        UnsupportedStreamError: its partition_mode is not known here, or it has a read function for
            each placement in a mode in which it is not known how these would be read.
    """
    partition_mode = options.get("partition_mode", _PARTITION_MODE)
    if partition_mode.upper() not in set(PartitionMode):
        raise UnsupportedStreamError(
            f"change stream {name!r} has partition_mode {partition_mode}.",
            f"Only {' and '.join(PartitionMode)} can be read; create a stream with one of them",
        )
    is_mutable = partition_mode_of(options) is PartitionMode.MUTABLE_KEY_RANGE
    if is_per_placement(options) and not is_mutable:
        raise UnsupportedStreamError(
            f"change stream {name!r} has {OPTION} = {options[OPTION]} without partition_mode"
            f" {PartitionMode.MUTABLE_KEY_RANGE}.",
            "Create a stream with both options, or with neither",
        )


def partition_mode_of(options: Mapping[str, str]) -> PartitionMode:
    """Return the partition mode of a stream with these options."""
    return PartitionMode(options.get("partition_mode", _PARTITION_MODE).upper())


def parse_retention_ns(text: str | None) -> int | None:
    """Return a retention_period such as 36h or 7d in nanoseconds; None if it is not stated.

    Spanner's default is one day in older documents and seven in newer ones.
    """
    try:
        return ms_to_ns(parse_duration_ms(text))
    except ValueError:
        return None


def retention_text(retention_ns: int | None) -> str:
    """Return a retention period for people."""
    if retention_ns is None:
        return "for an unknown time"
    return f"for {ns_to_seconds(retention_ns) / 86_400:g} d"


def partitions_alive(
    connection: Connection,
    dialect: Dialect,
    at_ns: int,
    *,
    heartbeat_ms: int,
    mode: PartitionMode = PartitionMode.IMMUTABLE_KEY_RANGE,
    function: str = OWN_FUNCTION,
) -> list[str]:
    """Return the tokens of the partitions alive at a time: a query with a NULL partition token.

    Those of one read function, as in reader.database.read_functions.

    Raises:
        StartTooOldError: the time is before the retention period or the stream's creation.
        UnavailableError: the answer names no partition.
        ReaderError: any other answer of Spanner.
    """
    query = PartitionQuery(
        connection,
        dialect,
        partition_token=None,
        start_timestamp_ns=at_ns,
        end_timestamp_ns=at_ns,
        heartbeat_ms=heartbeat_ms,
        mode=mode,
        function=function,
    )
    tokens: set[str] = set()
    for message in query:
        for record in message.records:
            if isinstance(record, ChildPartitionsRecord):
                tokens.update(child.token for child in record.child_partitions)
            elif isinstance(record, PartitionStartRecord):
                tokens.update(record.partition_tokens)
    if not tokens:
        # A stream has partitions at every time since it was made. Without any, an epoch would pass
        # with nothing read.
        raise UnavailableError(
            f"Spanner's answer names no partition of {connection.change_stream.path} at"
            f" {format_rfc3339(at_ns)}.",
            "Nothing was skipped: try again later",
        )
    return sorted(tokens)
