"""The choice of a task's source: queries of its own, or the reader process."""

from typing import Final

from slackwater.scheduler.change_source import PartitionQueries
from slackwater.scheduler.continuous.continuous_queries import ContinuousQueries, Reader, forget
from slackwater.scheduler.continuous.follower import Wanted
from slackwater.scheduler.continuous.frames import FollowedStream
from slackwater.scheduler.continuous.reader_client import ReaderClient
from slackwater.scheduler.lineage import query_start_ns
from slackwater.scheduler.options import StreamOptions
from slackwater.scheduler.plan import Task
from slackwater.scheduler.read_options import Reading
from slackwater.scheduler.spanner_source import SpannerSource

_READER: Final = ReaderClient()


def task_queries(
    source: SpannerSource, task: Task, options: StreamOptions, reader: Reader = _READER
) -> PartitionQueries:
    """Return the source of a task's records.

    After a failed audit it is Spanner, queried once more, and the reader process's records are
    dropped.

    Args:
        source: Spanner.
        task: a part of a plan.
        options: the query's.
        reader: the reader process beside this worker.
    """
    if options.reading is Reading.BOUNDED:
        return source
    stream = FollowedStream(
        options.pipeline,
        options.change_stream,
        source.dialect,
        source.partition_mode,
        options.heartbeat_ms,
        options.reader_memory_bytes,
    )
    plan = task.plan
    if plan.follows_failed_audit:
        forget(reader, stream, plan.end_ns)
        return source
    return ContinuousQueries(source, reader, stream, wanted(task), plan.end_ns)


def wanted(task: Task) -> list[Wanted]:
    """Return the partitions that a task begins with, each with the first time to read."""
    start_ns = task.plan.start_ns
    return [Wanted(root.key, query_start_ns(root, start_ns)) for root in task.roots]
