"""The start of a new pipeline, "now", "earliest" or a time, as a low watermark."""

from slackwater.reader.errors import StartInFutureError
from slackwater.scheduler import epoch
from slackwater.scheduler.change_source import ReadableSource
from slackwater.scheduler.read_options import EARLIEST, NOW
from slackwater.timestamp import HALF_MICROSECOND_NS, format_rfc3339


def first_watermark_ns(start: str | int, source: ReadableSource) -> int:
    """Return the low watermark after which the pipeline's first records come.

    Args:
        start: NOW, EARLIEST or a low watermark, as in SourceOptions.
        source: where the records come from.

    Raises:
        StartInFutureError: the start lies after the source's clock.
        ReaderError: the source does not exist, or does not answer.
    """
    source.check()
    clock_ns = source.strong_read_timestamp_ns()
    if start == NOW:
        return epoch.watermark_before(clock_ns)
    if start == EARLIEST:
        return earliest_watermark_ns(source)
    start_ns = int(start)
    if start_ns > clock_ns:
        raise StartInFutureError(
            f"the start {format_rfc3339(start_ns + HALF_MICROSECOND_NS)} lies after the source's"
            f" clock, {format_rfc3339(clock_ns)}.",
            "Use start: now, or an earlier time",
        )
    return start_ns


def check_start(start: str | int, source: ReadableSource) -> None:
    """Check that the change stream can be read from the start.

    Raises:
        StartTooOldError: the start lies before the retention or the stream's creation; the
            message names the earliest possible start.
        StartInFutureError: it lies after the source's clock.
    """
    require_readable(first_watermark_ns(start, source), source)


def require_readable(watermark_ns: int, source: ReadableSource) -> None:
    """Check that the change stream can be read from a low watermark.

    Raises:
        StartTooOldError, StartInFutureError: it can't.
    """
    source.partitions_alive(watermark_ns)


def earliest_watermark_ns(source: ReadableSource) -> int:
    """Return the earliest low watermark from which all records can be read.

    Raises:
        ReaderError: the source does not answer.
    """
    return epoch.watermark_at_or_after(source.earliest_start_ns())
