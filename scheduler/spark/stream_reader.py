"""The epochs of a change stream of Spanner's, as Spark's micro-batches."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from slackwater.reader.change_stream import ChangeStream, Dialect, PartitionMode
from slackwater.reader.transport.connection import Connection
from slackwater.scheduler.continuous.task_queries import task_queries
from slackwater.scheduler.options import StreamOptions
from slackwater.scheduler.plan import Task
from slackwater.scheduler.planner import Planner
from slackwater.scheduler.spanner_source import SpannerSource
from slackwater.scheduler.spark.epochs_reader import EpochsReader, ToRows
from slackwater.scheduler.tasks.task import read_task
from slackwater.state.store import Store


class TaskPartition(InputPartition):
    """The input of a Spark task: a task of the plan, and the properties that its queries need.

    These are the dialect of the database, and the partition mode and the read functions of the
    change stream.
    """

    def __init__(
        self, task: Task, dialect: Dialect, mode: PartitionMode, functions: Sequence[str]
    ) -> None:
        super().__init__(task.index)
        self.task = task
        self.dialect = dialect
        self.mode = mode
        self.functions = functions


class SpannerChangesStreamReader(EpochsReader[Task]):
    """The epochs of a change stream of Spanner's; see EpochsReader."""

    _options: StreamOptions

    def __init__(self, options: StreamOptions, to_rows: ToRows | None = None) -> None:
        super().__init__(options, to_rows)
        self._spanner: SpannerSource | None = None

    def _make_planner(self, store: Store) -> Planner:
        return Planner(self._options, self._source(), store)

    def _source(self) -> SpannerSource:
        if self._spanner is None:
            connection = connection_of(self._options.change_stream)
            self._spanner = SpannerSource(connection, self._options.heartbeat_ms)
        return self._spanner

    def _inputs(self, tasks: Sequence[Task]) -> list[InputPartition]:
        source = self._source()
        return [
            TaskPartition(task, source.dialect, source.partition_mode, source.read_functions)
            for task in tasks
        ]

    def _batches(self, partition: Any, store: Store) -> Iterator[pa.RecordBatch]:
        options = self._options
        connection = connection_of(options.change_stream)
        source = SpannerSource(
            connection,
            options.heartbeat_ms,
            dialect=partition.dialect,
            mode=partition.mode,
            functions=partition.functions,
        )
        return read_task(
            partition.task,
            store=store,
            source=task_queries(source, partition.task, options),
            options=options.read,
        )


# Spark forks its Python workers and keeps them over batches. Connections are opened
# after the fork, once, and stay open: connecting costs more than a query.
_CONNECTIONS: dict[str, Connection] = {}


def connection_of(change_stream: ChangeStream) -> Connection:
    """Return this process's connection to a change stream."""
    key = repr(change_stream)
    if key not in _CONNECTIONS:
        _CONNECTIONS[key] = Connection(change_stream)
    return _CONNECTIONS[key]
