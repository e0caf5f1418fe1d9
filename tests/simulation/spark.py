"""What Spark does for a pipeline: it runs a plan's tasks, and keeps checkpoint and output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from slackwater.reader.errors import ReaderError
from slackwater.scheduler.change_source import PartitionQueries
from slackwater.scheduler.errors import AuditError
from slackwater.scheduler.plan import Task
from slackwater.scheduler.read_options import ReadOptions
from slackwater.scheduler.tasks.task import read_task
from slackwater.state.errors import StateError
from slackwater.state.store import Store
from tests.simulation.threads import KilledError, Process

Row = tuple[str, int, str]


class JobFailedError(Exception):
    """A task failed more often than Spark tries it."""


class ConcurrentWriteError(Exception):
    """Another process has written this batch to the checkpoint; Spark ends the query."""


@dataclass(frozen=True)
class Worker:
    """A process for one attempt at a task, with what it reads by."""

    process: Process
    store: Store
    source: PartitionQueries


class Attempt:
    """One attempt at a task, in a process of its own."""

    def __init__(self, task: Task, worker: Worker, options: ReadOptions, job: Job) -> None:
        self.task = task
        self.process = worker.process
        self.rows: list[Row] = []
        self.is_stopped = False
        self.has_ended = False
        self._worker = worker
        self._options = options
        self.job = job
        worker.process.start(self._run)

    def _run(self) -> None:
        worker = self._worker
        batches: Any = read_task(
            self.task,
            store=worker.store,
            source=worker.source,
            options=self._options,
            threads=worker.process,
        )
        try:
            for batch in batches:
                self.rows += _rows(batch)
                self.process.pause()
                if self.is_stopped:
                    batches.close()
                    break
        except KilledError:
            with suppress(KilledError):
                batches.close()
            raise
        except (StateError, AuditError, ReaderError) as error:
            self.has_ended = True
            self.job.failed(self, error)
            return
        self.has_ended = True
        if self.is_stopped:
            self.job.lost(self)
        else:
            self.job.done(self)


def _rows(batch: Any) -> list[Row]:
    tokens = batch.column("partition_token").to_pylist()
    times = batch.column("commit_timestamp").cast("int64").to_pylist()
    sequences = batch.column("record_sequence").to_pylist()
    return [
        (token, us * 1_000, sequence)
        for token, us, sequence in zip(tokens, times, sequences, strict=True)
    ]


class Job:
    """A Spark job over a plan's tasks: each is done once one attempt has succeeded.

    Args:
        tasks: the tasks.
        attempt: starts an attempt at a task.
        failures_max: how often one may fail.
        functions: the read functions with which the tasks were planned.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        attempt: Callable[[Task, Job], Attempt],
        failures_max: int,
        functions: Sequence[str] = ("",),
    ) -> None:
        self.functions = functions
        self._attempt = attempt
        self._failures_max = failures_max
        self._failures: Counter[int] = Counter()
        self.error: Exception | None = None
        self.is_given_up = False
        self.results: dict[int, list[Row]] = {}
        self.tasks = {task.index: task for task in tasks}
        self.attempts: list[Attempt] = []
        for task in tasks:
            self.start(task)

    @property
    def is_over(self) -> bool:
        """True if all tasks are done, or the job has failed."""
        return self.error is not None or len(self.results) == len(self.tasks)

    def start(self, task: Task) -> None:
        """Start an attempt, beside others or after them."""
        self.attempts.append(self._attempt(task, self))

    def running(self) -> list[Attempt]:
        """Return the attempts that have not ended."""
        return [
            attempt
            for attempt in self.attempts
            if not (attempt.has_ended or attempt.process.is_dead)
        ]

    def done(self, attempt: Attempt) -> None:
        """Take the rows of the first attempt that succeeds, and stop the others."""
        index = attempt.task.index
        self.results.setdefault(index, attempt.rows)
        for other in self.running():
            if other.task.index == index:
                other.is_stopped = True

    def failed(self, attempt: Attempt, error: Exception) -> None:
        """Count a failure, and try again."""
        self._failures[attempt.task.index] += not attempt.is_stopped
        if self._failures[attempt.task.index] >= self._failures_max:
            self.error = self.error or error
        else:
            self.lost(attempt)

    def lost(self, attempt: Attempt) -> None:
        """Try a task again if no attempt at it is left."""
        index = attempt.task.index
        is_left = any(other.task.index == index for other in self.running())
        if not (self.is_given_up or self.is_over or is_left or index in self.results):
            self.start(attempt.task)

    def rows(self) -> list[Row]:
        """Return the rows of all tasks.

        Raises:
            JobFailedError: the job has failed.
        """
        if self.error is not None:
            raise JobFailedError from self.error
        return [row for rows in self.results.values() for row in rows]


@dataclass
class Checkpoint:
    """Spark's logs of a query: where each batch ends, and which are committed."""

    ends: dict[int, int] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)

    def plan(self, batch: int, end_ns: int) -> None:
        """Write a batch's end.

        Raises:
            ConcurrentWriteError: it is there already.
        """
        if batch in self.ends:
            raise ConcurrentWriteError
        self.ends[batch] = end_ns

    def commit(self, batch: int) -> None:
        """Write that a batch is committed.

        Raises:
            ConcurrentWriteError: it is there already.
        """
        if batch in self.committed:
            raise ConcurrentWriteError
        self.committed.add(batch)


@dataclass
class Output:
    """A sink that publishes each batch once."""

    published: dict[int, list[Row]] = field(default_factory=dict)
    watermarks: dict[int, int] = field(default_factory=dict)

    def publish(self, batch: int, rows: list[Row], watermark_ns: int) -> None:
        """Make a batch visible; a second time it has to be the same."""
        if batch in self.published:
            assert sorted(self.published[batch]) == sorted(rows), "a replay gave other rows"
            assert self.watermarks[batch] == watermark_ns, "a replay gave another low watermark"
            return
        self.published[batch] = rows
        self.watermarks[batch] = watermark_ns
