"""Epochs of a pipeline in this process: the real planner and tasks without Spark."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import pyarrow as pa

from slackwater.endpoint import Endpoint
from slackwater.pipeline.epochs.audit import audit_written, planned_epoch
from slackwater.reader.change_stream import ChangeStream
from slackwater.reader.schema import SCHEMA
from slackwater.reader.transport.connection import Connection
from slackwater.scheduler.audit import SinkCounts
from slackwater.scheduler.continuous.reader_client import ReaderClient
from slackwater.scheduler.continuous.task_queries import task_queries
from slackwater.scheduler.notebook_options import parse_options
from slackwater.scheduler.options import StreamOptions
from slackwater.scheduler.plan import Task
from slackwater.scheduler.planner import Planner
from slackwater.scheduler.read_options import AuditMode
from slackwater.scheduler.spanner_source import SpannerSource
from slackwater.scheduler.tasks.task import read_task
from slackwater.state.models import Plan
from slackwater.state.store import Store
from slackwater.timestamp import format_rfc3339


class AbandonedError(Exception):
    """The epoch was abandoned in the middle, as when its process dies."""


def endpoint_options(endpoint: Endpoint) -> dict[str, str]:
    """Return an endpoint as options of the Spark source."""
    named = {("endpoint" if k == "host" else k): v for k, v in asdict(endpoint).items() if v}
    return {key: "true" if value is True else value for key, value in named.items()}


class EpochLoop:
    """Reads epochs as Spark does: one after the other, with an epoch's tasks in parallel.

    Args:
        stream: the change stream; its endpoint may be a proxy's.
        state_url: the URL of the metadata store, which is created if missing.
        start_ns: a low watermark or any other time, at which the first epoch begins.
        options: further options of the Spark source.
        resume: a loop that was given up, in whose place this one goes on as a new process would.
    """

    def __init__(
        self,
        stream: ChangeStream,
        state_url: str,
        *,
        start_ns: int,
        options: Mapping[str, str] | None = None,
        resume: "EpochLoop | None" = None,
    ) -> None:
        source_options = {
            "project": stream.project,
            "instance": stream.instance,
            "database": stream.database,
            "change_stream": stream.change_stream,
            **endpoint_options(stream.endpoint),
            "pipeline": "orders",
            "state_url": state_url,
            "start": format_rfc3339(start_ns),
            "tasks": "3",
            "heartbeat": "1s",
            # With the variable, all tests that read epochs do so with continuous reading.
            "reading": os.environ.get("SLACKWATER_EPOCH_READING", "bounded"),
        }
        self.options: StreamOptions = parse_options({**source_options, **(options or {})}, {})
        self.connection = Connection(stream)
        self.store = Store.open(state_url, migrate=True)
        self.source = SpannerSource(self.connection, self.options.heartbeat_ms)
        self.reader = ReaderClient(parent_pid=os.getpid())
        self.planner = Planner(self.options, self.source, self.store)
        self.late_records = 0
        self.watermark_ns: int | None = resume.watermark_ns if resume else None
        # The end of the epoch that is planned and not committed: Spark keeps it in its log.
        self.planned_ns: int | None = resume.planned_ns if resume else None
        if self.planned_ns is not None:
            # As Spark does before it repeats an epoch.
            assert self.planner.plan(self.planned_ns, self.planned_ns) == []

    def close(self) -> None:
        self.connection.close()
        self.store.close()

    def epoch(self, *, end_ns: int | None = None, only_tasks: int | None = None) -> pa.Table:
        """Read and commit one epoch, up to end_ns or to the end that the planner chooses.

        Args:
            end_ns: its end; an epoch that was begun keeps its end.
            only_tasks: abandon the epoch after reading this many of its tasks.

        Raises:
            AbandonedError: the epoch was abandoned.
        """
        if self.planned_ns is None:
            self.planned_ns = end_ns or (
                self.planner.first_watermark_ns()
                if self.watermark_ns is None
                else self.planner.next_watermark_ns(self.watermark_ns)
            )
        if self.watermark_ns is None:
            tasks = self.planner.plan_first(self.planned_ns)
        else:
            tasks = self.planner.plan(self.watermark_ns, self.planned_ns)
        plan = planned_epoch(self.store, self.options.pipeline)
        table = self.read(tasks[:only_tasks])
        if only_tasks is not None:
            raise AbandonedError
        self.audit(plan, table)
        self.planner.commit(self.planned_ns)
        self.watermark_ns, self.planned_ns = self.planned_ns, None
        return table

    def audit(self, plan: Plan, table: pa.Table) -> None:
        """Audit an epoch as the pipeline does before the sink's commit.

        Raises:
            AuditError: the epoch breaks a promise.
        """
        times = [time * 1_000 for time in table["commit_timestamp"].cast("int64").to_pylist()]
        written = SinkCounts(len(times), min(times, default=None), max(times, default=None))
        self.late_records += audit_written(self.store, plan, written, AuditMode.STOP).late_records

    def epochs(self, through_ns: int) -> Iterator[pa.Table]:
        """Read epochs until the low watermark has reached a time."""
        while self.watermark_ns is None or self.watermark_ns < through_ns:
            yield self.epoch()

    def read(self, tasks: Sequence[Task]) -> pa.Table:
        """Return the records of a plan's tasks; like a Spark job, fail if one of them fails."""

        def run(task: Task) -> list[pa.RecordBatch]:
            return list(
                read_task(
                    task,
                    store=self.store,
                    source=task_queries(self.source, task, self.options, self.reader),
                    options=self.options.read,
                )
            )

        with ThreadPoolExecutor(max(1, len(tasks))) as pool:
            batches = [batch for of_task in pool.map(run, tasks) for batch in of_task]
        return pa.Table.from_batches(batches, SCHEMA)
