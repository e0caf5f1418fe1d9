"""The SQL of change stream queries and their parameters, in both dialects.

See "Change stream read functions and query syntax" in Spanner's documentation. The stream's name is
part of the function's name, which can't be a parameter: it is checked by reader.change_stream and
quoted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from slackwater.reader.change_stream import Dialect, PartitionMode
from slackwater.reader.transport.quoting import identifier
from slackwater.timestamp import format_rfc3339

HEARTBEAT_MS_MIN: Final = 1_000
HEARTBEAT_MS_MAX: Final = 300_000

CHANGE_STREAM_OPTIONS: Final = {
    Dialect.GOOGLE_STANDARD_SQL: (
        "SELECT s.CHANGE_STREAM_NAME, o.OPTION_NAME, o.OPTION_VALUE"
        " FROM INFORMATION_SCHEMA.CHANGE_STREAMS s"
        " LEFT JOIN INFORMATION_SCHEMA.CHANGE_STREAM_OPTIONS o"
        " ON o.CHANGE_STREAM_NAME = s.CHANGE_STREAM_NAME"
    ),
    Dialect.POSTGRESQL: (
        "SELECT s.change_stream_name, o.option_name, o.option_value"
        " FROM information_schema.change_streams s"
        " LEFT JOIN information_schema.change_stream_options o"
        " ON o.change_stream_name = s.change_stream_name"
    ),
}
DATABASE_DIALECT: Final = (
    "SELECT option_value FROM information_schema.database_options"
    " WHERE option_name = 'database_dialect'"
)


# The read functions that the session may execute, and the database's placements.
READ_FUNCTIONS: Final = {
    Dialect.GOOGLE_STANDARD_SQL: "SELECT ROUTINE_NAME FROM INFORMATION_SCHEMA.ROUTINES",
    Dialect.POSTGRESQL: "SELECT routine_name FROM information_schema.routines",
}
PLACEMENTS: Final = {
    Dialect.GOOGLE_STANDARD_SQL: (
        "SELECT PLACEMENT_NAME, IF(IS_DEFAULT, 'YES', 'NO') FROM INFORMATION_SCHEMA.PLACEMENTS"
    ),
    Dialect.POSTGRESQL: "SELECT placement_name, is_default FROM information_schema.placements",
}

# All queries of an epoch end at one time, and most begin at one.
_time_text = lru_cache(format_rfc3339)


@dataclass(frozen=True, slots=True)
class Statement:
    """An SQL statement: text, parameters as Spanner's JSON values, and their type codes."""

    sql: str
    params: Mapping[str, str | None]
    types: Mapping[str, str]


def partition_query(
    dialect: Dialect,
    change_stream: str,
    *,
    start_timestamp_ns: int,
    end_timestamp_ns: int | None,
    partition_token: str | None,
    heartbeat_ms: int,
    mode: PartitionMode = PartitionMode.IMMUTABLE_KEY_RANGE,
    function: str = "",
) -> Statement:
    """Return the query of one partition.

    Args:
        dialect: the database's.
        change_stream: the stream's name, checked.
        start_timestamp_ns, end_timestamp_ns: both inclusive; without an end, the query runs until
            the partition ends.
        partition_token: None asks for the partitions that are alive at the start.
        heartbeat_ms: the heartbeat interval, milliseconds.
        mode: the stream's partition mode. In PostgreSQL the name of the function depends on it.
        function: as in reader.database.read_functions, checked.

    Raises:
        ValueError: heartbeat_ms is outside Spanner's 1,000 to 300,000, or end is before start, or
            there is none with mutable key ranges.
    """
    if not HEARTBEAT_MS_MIN <= heartbeat_ms <= HEARTBEAT_MS_MAX:
        raise ValueError(
            f"a heartbeat of {heartbeat_ms} ms is outside {HEARTBEAT_MS_MIN} to {HEARTBEAT_MS_MAX}"
        )
    is_mutable = mode is PartitionMode.MUTABLE_KEY_RANGE
    if end_timestamp_ns is None and is_mutable:
        raise ValueError("a change stream query needs an end with mutable key ranges")
    if end_timestamp_ns is not None and end_timestamp_ns < start_timestamp_ns:
        raise ValueError("a change stream query can't end before it starts")
    values = (
        ("TIMESTAMP", _time_text(start_timestamp_ns)),
        ("TIMESTAMP", None if end_timestamp_ns is None else _time_text(end_timestamp_ns)),
        ("STRING", partition_token),
        ("INT64", str(heartbeat_ms)),
    )
    name = function_name(dialect, mode, change_stream, function)
    quoted = identifier(dialect, name)
    if dialect is Dialect.POSTGRESQL:
        sql = f'SELECT * FROM "spanner".{quoted}($1, $2, $3, $4, null)'  # noqa: S608 - quoted
        names: tuple[str, ...] = ("p1", "p2", "p3", "p4")
    else:
        sql = (
            f"SELECT ChangeRecord FROM {quoted}("  # noqa: S608 - quoted
            "start_timestamp => @start_timestamp, end_timestamp => @end_timestamp,"
            " partition_token => @partition_token, heartbeat_milliseconds => @heartbeat_ms)"
        )
        names = ("start_timestamp", "end_timestamp", "partition_token", "heartbeat_ms")
    return Statement(
        sql=sql,
        params={name: value for name, (_, value) in zip(names, values, strict=True)},
        types={name: code for name, (code, _) in zip(names, values, strict=True)},
    )


def function_name(
    dialect: Dialect, mode: PartitionMode, change_stream: str, function: str = ""
) -> str:
    """Return the name of a read function of a change stream, without schema and quotes.

    Args:
        dialect: the database's.
        mode: the stream's partition mode.
        change_stream: the stream's name.
        function: as in reader.database.read_functions.
    """
    prefix = "READ_"
    if dialect is Dialect.POSTGRESQL:
        is_mutable = mode is PartitionMode.MUTABLE_KEY_RANGE
        prefix = "read_proto_bytes_" if is_mutable else "read_json_"
    return f"{prefix}{change_stream}_{function}" if function else f"{prefix}{change_stream}"
