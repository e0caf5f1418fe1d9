"""A batch read of the change stream between two times, in slices read in parallel.

Each slice is a cut, read by one task of a plan of its own: the change stream names the partitions
at its start, and their lineage is in a metadata store that ends with the slice. So slices are
independent, and all records of a transaction lie in one of them, where they are audited. A child
partition that no query showed would be missing for good, because no later epoch reads it: the proof
is always Proof.RECORD.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

import pyarrow as pa

from slackwater.reader.errors import StartTooOldError
from slackwater.scheduler.audit import SinkCounts, audit_epoch
from slackwater.scheduler.change_source import ChangeSource
from slackwater.scheduler.epoch import Cut, watermark_for_end
from slackwater.scheduler.errors import AuditError, OptionError
from slackwater.scheduler.options import StreamOptions
from slackwater.scheduler.planner import Planner
from slackwater.scheduler.read_options import EARLIEST, NOW, AuditMode, Proof
from slackwater.scheduler.start_position import first_watermark_ns, require_readable
from slackwater.scheduler.tasks.task import read_task
from slackwater.state.store import Store
from slackwater.state.task_counts import read_task_counts
from slackwater.timestamp import (
    HALF_MICROSECOND_NS,
    NANOSECONDS_PER_SECOND,
    format_rfc3339,
)

_log = logging.getLogger(__name__)

# Below that the queries of a slice take longer to open than to read.
SLICE_NS_MIN: Final = NANOSECONDS_PER_SECOND


def require_bounds(options: StreamOptions) -> None:
    """Check that a read has a start and an end.

    Raises:
        OptionError: it does not.
    """
    if options.end_ns is None:
        raise OptionError(
            "spark.read needs the option end.",
            "Set it to a time that has passed; spark.readStream reads without an end",
        )
    if options.start == NOW:
        raise OptionError(
            "spark.read needs the option start, and it can't be now.",
            "Set it to a time, or to earliest",
        )


def cut_to_read(options: StreamOptions, source: ChangeSource) -> Cut:
    """Return the cut from the options' start to their end.

    Raises:
        OptionError: a bound is missing, the end lies after the source's clock, or nothing can lie
            between them.
        StartTooOldError: the records at the start, or all up to the end, are no longer retained.
        StartInFutureError: the start lies after the source's clock.
        ReaderError: the source does not exist, or does not answer.
    """
    require_bounds(options)
    assert options.end_ns is not None  # noqa: S101 - checked above
    start_ns, end_ns = first_watermark_ns(options.start, source), options.end_ns
    clock_ns = source.strong_read_timestamp_ns()
    # A transaction that commits later has a later commit timestamp.
    if end_ns - HALF_MICROSECOND_NS > clock_ns:
        raise OptionError(
            f"option end: {_stamp(end_ns)} lies after Spanner's clock, {format_rfc3339(clock_ns)}.",
            "Use an earlier end, or spark.readStream, which waits for it",
        )
    if end_ns <= start_ns and options.start != EARLIEST:
        raise OptionError(
            "no commit timestamp can lie between start and end.",
            "Commit timestamps are whole microseconds; use a later end",
        )
    if end_ns <= start_ns:
        raise StartTooOldError(
            f"the end {_stamp(end_ns)} lies before the earliest time that can be read,"
            f" {format_rfc3339(start_ns + HALF_MICROSECOND_NS)}.",
            "Use a later end",
        )
    require_readable(start_ns, source)
    return Cut(start_ns, end_ns)


def slices(cut: Cut, *, count_max: int) -> list[Cut]:
    """Return the slices of a cut: they follow one another, and their spans are about equal.

    Args:
        cut: the whole.
        count_max: as many slices, unless they would be shorter than SLICE_NS_MIN.
    """
    span_ns = cut.end_ns - cut.start_ns
    count = max(1, min(count_max, span_ns // SLICE_NS_MIN))
    ends = [watermark_for_end(cut.start_ns + span_ns * n // count) for n in range(1, count)]
    bounds = [cut.start_ns, *ends, cut.end_ns]
    return [Cut(start_ns, end_ns) for start_ns, end_ns in pairwise(bounds)]


def read_slice(
    cut: Cut, options: StreamOptions, source: ChangeSource, store: Store
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a slice, in batches of the output's schema, and audit it.

    Args:
        cut: the slice.
        options: of the whole read.
        source: where the records come from.
        store: a metadata store in which the options' pipeline is new.

    Raises:
        AuditError: the records break what the change stream promises, and the audit is to stop.
        ReaderError, StateError: a query or the store failed.
    """
    of_slice = replace(options, start=cut.start_ns, end_ns=cut.end_ns, tasks_max=1)
    read = replace(options.read, proof=Proof.RECORD)
    records = 0
    for task in Planner(of_slice, source, store).plan_first(cut.end_ns):
        for batch in read_task(task, store=store, source=source, options=read):
            records += batch.num_rows
            yield batch
        written = SinkCounts(records, None, None)
        counts = read_task_counts(store, task.plan.plan_id)
        broken = audit_epoch(task.plan, counts, written, low_watermark_ns=None)
        if broken and read.audit is AuditMode.STOP:
            raise AuditError(broken)
        for violation in broken:
            _log.error("a batch read breaks what the change stream promises: %s", violation)


def _stamp(watermark_ns: int) -> str:
    return format_rfc3339(watermark_ns - HALF_MICROSECOND_NS)
