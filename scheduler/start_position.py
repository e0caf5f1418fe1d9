"""Where a new pipeline starts: "now", "earliest" or a time, as a low watermark."""

from __future__ import annotations

from typing import Final

from slackwater.reader.database.change_stream_info import ChangeStreamInfo, partitions_alive
from slackwater.reader.errors import StartInFutureError, StartTooOldError
from slackwater.reader.query_outcome import earliest_start_ns
from slackwater.reader.transport.connection import Connection
from slackwater.scheduler import epoch
from slackwater.scheduler.options import SourceOptions
from slackwater.scheduler.source_settings import EARLIEST, NOW
from slackwater.timestamp import HALF_MICROSECOND_NS, format_rfc3339, seconds_to_ns

_LONG_AGO_NS: Final = 0
_GRACE_NS: Final = seconds_to_ns(60)


def first_watermark_ns(
    options: SourceOptions, connection: Connection, description: ChangeStreamInfo
) -> int:
    """The low watermark after which the pipeline's first records come.

    Raises:
        StartInFutureError: the start lies after Spanner's clock.
        ReaderError: Spanner can't be asked.
    """
    clock_ns = connection.strong_read_timestamp_ns()
    if options.start == NOW:
        return epoch.watermark_before(clock_ns)
    if options.start == EARLIEST:
        return earliest_watermark_ns(options, connection, description)
    start_ns = int(options.start)
    if start_ns > clock_ns:
        raise StartInFutureError(
            f"the start {format_rfc3339(start_ns + HALF_MICROSECOND_NS)} lies after Spanner's"
            f" clock, {format_rfc3339(clock_ns)}.",
            "Use start: now, or an earlier time",
        )
    return start_ns


def check_start(
    options: SourceOptions, connection: Connection, description: ChangeStreamInfo
) -> None:
    """Ask Spanner whether the change stream can be read from the start.

    Raises:
        StartTooOldError: the start lies before the retention or the stream's creation; the
            message names the earliest possible start.
        StartInFutureError: it lies after Spanner's clock.
    """
    start_ns = first_watermark_ns(options, connection, description)
    require_readable(options, connection, description, start_ns)


def require_readable(
    options: SourceOptions, connection: Connection, description: ChangeStreamInfo, watermark_ns: int
) -> None:
    """Ask Spanner whether the change stream can be read from a low watermark.

    Raises:
        StartTooOldError, StartInFutureError: it can't.
    """
    heartbeat_ms = options.heartbeat_ms
    partitions_alive(connection, description.dialect, watermark_ns, heartbeat_ms=heartbeat_ms)


def earliest_watermark_ns(
    options: SourceOptions, connection: Connection, description: ChangeStreamInfo
) -> int:
    """The earliest low watermark to read from: Spanner names it when it refuses an earlier one.

    Raises:
        ReaderError: Spanner can't be asked.
    """
    try:
        require_readable(options, connection, description, _LONG_AGO_NS)
    except StartTooOldError as error:
        # What expires while the first queries run would fail them.
        clock_ns = connection.strong_read_timestamp_ns()
        lasting_ns = clock_ns - description.retention_ns + _GRACE_NS
        return epoch.watermark_at_or_after(
            max(earliest_start_ns(error.message) or lasting_ns, lasting_ns)
        )
    return epoch.watermark_for_start(_LONG_AGO_NS)
