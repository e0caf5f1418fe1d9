"""A simulated life of a pipeline: epochs planned, read, audited, committed; faults anywhere."""

import random
from collections import Counter
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Final

from sqlalchemy.exc import NoResultFound

from slackwater.pipeline.epochs.audit import audit_written, planned_epoch
from slackwater.reader.change_stream import PartitionMode
from slackwater.reader.errors import ReaderError, StreamAlteredError
from slackwater.scheduler.audit import SinkCounts
from slackwater.scheduler.change_source import PartitionQueries
from slackwater.scheduler.continuous.continuous_queries import forget
from slackwater.scheduler.errors import AuditError, SchedulerError
from slackwater.scheduler.notebook_options import parse_options
from slackwater.scheduler.plan import Task
from slackwater.scheduler.planner import Planner
from slackwater.scheduler.read_options import AuditMode, Proof, ReadOptions
from slackwater.state.errors import LeaseLostError, StateError
from slackwater.state.lease import acquire_lease, read_lease
from slackwater.state.store import Store
from tests.simulation.continuous import STREAM, ContinuousTaskSource, SimulatedReader
from tests.simulation.history import STEP_NS, random_history
from tests.simulation.mutable_history import PLACEMENTS, random_mutable_history
from tests.simulation.mutable_world import MutableStream
from tests.simulation.spark import (
    Attempt,
    Checkpoint,
    ConcurrentWriteError,
    Job,
    JobFailedError,
    Output,
    Worker,
)
from tests.simulation.threads import Process, Scheduler
from tests.simulation.world import (
    DriverSource,
    Faults,
    SimulatedStore,
    SimulatedStream,
    StoreFile,
    TaskSource,
)

# Both bounds are far beyond what any life needs.
_STEPS_MAX: Final = 300_000
_TRIES_MAX: Final = 40


@dataclass(frozen=True)
class Circumstances:
    """What may happen in a life.

    Attributes:
        hide: see SimulatedStream.
        proof: what shows that a partition was read through.
        loses_store: the metadata store may be lost.
        rolls_back: the metadata store may go back to an earlier state.
        faults: how many faults happen at most.
        only_stops: tasks are stopped, often, and jobs cancelled; nothing else happens.
        mode: the change stream's partition mode.
        placements: the stream has a read function for each of three placements.
        adds: one of them is added while the pipeline runs.
        continuous: tasks ask a reader process, whose queries stay open.
    """

    hide: float
    proof: Proof
    loses_store: bool
    rolls_back: bool
    faults: int = 12
    only_stops: bool = False
    mode: PartitionMode = PartitionMode.IMMUTABLE_KEY_RANGE
    placements: bool = False
    adds: bool = False
    continuous: bool = False


class Pipeline:
    """A pipeline over a random history; everything follows from the seed.

    Args:
        seed: makes the history and all choices.
        folder: for the metadata store.
        template: a migrated store to copy.
        circumstances: what may happen.
    """

    def __init__(
        self, seed: int, folder: Path, template: Path, circumstances: Circumstances
    ) -> None:
        self.choose = random.Random(seed)
        self.circumstances = circumstances
        self.stream = self._stream(seed)
        end_ns = self.stream.history.end_ns
        self.first_ns = self.choose.randrange(1, end_ns // STEP_NS) * STEP_NS - 500
        # One epoch more than the history brings what the last cut may have hidden.
        self.end_ns = end_ns + 8 * STEP_NS
        self.scheduler = Scheduler(self.choose)
        self.faults = Faults(self.choose, circumstances.faults)
        self.store_file = StoreFile(folder / f"{seed}.db", template)
        self.checkpoint = Checkpoint()
        self.output = Output()
        self.seen: Counter[str] = Counter()
        # Of two hosts, each of which has some of the epochs.
        self.readers = [SimulatedReader(self.stream, self.choose, self.seen) for _ in range(2)]
        self.options = ReadOptions(
            self.choose.choice((1, 2, 8)), circumstances.proof, AuditMode.STOP, traces=False
        )
        self.failures_max = self.choose.choice((1, 4))
        self._drivers: list[Driver] = []
        self._frozen: list[Driver] = []

    def _stream(self, seed: int) -> SimulatedStream | MutableStream:
        hide = self.circumstances.hide
        if self.circumstances.mode is PartitionMode.MUTABLE_KEY_RANGE:
            functions = PLACEMENTS if self.circumstances.placements else ("",)
            history = random_mutable_history(
                self.choose, functions=functions, adds=self.circumstances.adds
            )
            return MutableStream(history, 0, seed, hide)
        return SimulatedStream(random_history(self.choose), 0, seed, hide)

    def close(self) -> None:
        self.scheduler.kill_all()
        for reader in self.readers:
            reader.close()
        self.store_file.close()

    @property
    def watermark_ns(self) -> int:
        """Where the last committed batch ends."""
        committed = self.checkpoint.committed
        return self.checkpoint.ends[max(committed)] if committed else self.first_ns

    def run(self) -> None:
        """Epochs until everything was read; then what was published is complete."""
        for _ in range(_STEPS_MAX):
            if self.watermark_ns >= self.end_ns:
                return
            self._disturb()
            if not any(driver.is_alive for driver in self._drivers):
                self._drivers = [Driver(self)]
            assert self.scheduler.step(), "all threads wait"
        raise AssertionError("the pipeline does not get on")

    def process(self) -> Process:
        """Return a new process."""
        return Process(self.scheduler, self.choose)

    def store_of(self, process: Process) -> Store:
        """Return the metadata store as a process has it."""
        return SimulatedStore(self.store_file.engine, process, self.faults)

    def attempt(self, task: Task, job: Job) -> Attempt:
        """Start an attempt at a task in a process of its own."""
        process = self.process()
        source = TaskSource(self.stream, process, task.plan, self.faults, job.functions)
        queries = self._queries(source, task)
        worker = Worker(process, self.store_of(process), queries)
        return Attempt(task, worker, self.options, job)

    def _queries(self, source: TaskSource, task: Task) -> PartitionQueries:
        """Return the source of a task, as task_queries() chooses it."""
        if not self.circumstances.continuous:
            return source
        reader = self.choose.choice(self.readers)
        if task.plan.follows_failed_audit:
            forget(reader, STREAM, task.plan.end_ns)
            return source
        return ContinuousTaskSource(source, reader, task)

    def _disturb(self) -> None:
        if self.circumstances.only_stops:
            if self.faults.happens(0.03):
                self.choose.choice([self._stop_attempt] * 3 + [self._fail_query])()
            return
        if not self.faults.happens(0.004):
            return
        disturbances = [
            self._kill_worker,
            self._stop_attempt,
            self._speculate,
            self._kill_driver,
            self._freeze_driver,
            self._fail_query,
        ]
        if self._frozen:
            disturbances += [self._thaw_driver] * 3
        if self.circumstances.rolls_back:
            disturbances += [self.store_file.keep] * 2 + [self._roll_back] * 2
        if self.circumstances.loses_store:
            disturbances.append(self._lose_store)
        self.choose.choice(disturbances)()

    def _running(self) -> list[Attempt]:
        return [a for driver in self._drivers if driver.job for a in driver.job.running()]

    def _kill_worker(self) -> None:
        if running := self._running():
            attempt = self.choose.choice(running)
            self.scheduler.kill(attempt.process)
            self.seen["workers killed"] += 1
            attempt.job.lost(attempt)

    def _stop_attempt(self) -> None:
        if running := self._running():
            self.choose.choice(running).is_stopped = True
            self.seen["attempts stopped"] += 1

    def _speculate(self) -> None:
        if running := self._running():
            attempt = self.choose.choice(running)
            attempt.job.start(attempt.task)
            self.seen["second attempts"] += 1

    def _kill_driver(self) -> None:
        for driver in self._drivers:
            self.scheduler.kill(driver.process)
            self.leave(driver)
            self.seen["crashes"] += 1
        self._drivers = []

    def _freeze_driver(self) -> None:
        for driver in self._drivers:
            driver.process.is_frozen = True
            self._frozen.append(driver)
        self._drivers = []

    def _thaw_driver(self) -> None:
        self._frozen.pop(self.choose.randrange(len(self._frozen))).process.is_frozen = False
        self.seen["awoken owners"] += 1

    def _fail_query(self) -> None:
        for driver in self._drivers:
            if driver.job and not driver.job.is_over:
                driver.job.error = StateError("cancelled")

    def leave(self, driver: "Driver") -> None:
        """Leave a driver's job: its attempts die, stop at their next batch, or go on."""
        if driver.job is None:
            return
        driver.job.is_given_up = True
        for attempt in driver.job.running():
            match self.choose.randrange(3):
                case 0:
                    self.scheduler.kill(attempt.process)
                case 1:
                    attempt.is_stopped = True
        driver.job = None

    def _lose_store(self) -> None:
        self.store_file.go_back(0)
        self.seen["stores lost"] += 1

    def _roll_back(self) -> None:
        self.store_file.go_back(self.choose.randrange(len(self.store_file.snapshots)))
        self.seen["stores rolled back"] += 1


class Driver:
    """A process that runs the pipeline, from when it takes the lease."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.process = pipeline.process()
        self._store = pipeline.store_of(self.process)
        self.job: Job | None = None
        self.is_alive = True
        self.process.start(self._run)

    def _run(self) -> None:
        try:
            self._own()
            while self._pipeline.watermark_ns < self._pipeline.end_ns:
                self._try_epoch()
        except LeaseLostError:
            self._pipeline.seen["refused"] += 1
        except SchedulerError:
            # A former owner that awoke sees what the new one has committed.
            assert not self._is_owner(), "an owner was refused"
        except JobFailedError:
            # The next process looks the read functions up again.
            self._pipeline.seen["functions changed"] += 1
        except (ConcurrentWriteError, NoResultFound, StateError):
            # A store that was lost has no row of the pipeline.
            pass
        self._pipeline.leave(self)
        self.is_alive = False

    def _own(self) -> None:
        self._store.ensure_pipeline("p", _SOURCE)
        lease = None
        while lease is None:
            lease = acquire_lease(self._store, "p", "somebody", read_lease(self._store, "p"))
        self._generation = lease.generation
        # Partitions that no later epoch needs are removed after each one.
        options = replace(parse_options(_OPTIONS, {}), generation=lease.generation, keep_ns=0)
        self._source = DriverSource(self._pipeline.stream)
        minutes = count(0, 60)
        self._planner = Planner(
            options, self._source, self._store, monotonic_s=lambda: float(next(minutes))
        )
        self._repeat_last_end()

    def _repeat_last_end(self) -> None:
        """Ask for an epoch without a span, as Spark does before it repeats an epoch."""
        ends, committed = self._pipeline.checkpoint.ends, self._pipeline.checkpoint.committed
        if (end_ns := ends.get(len(committed))) is not None:
            assert self._planner.plan(end_ns, end_ns) == []

    def _try_epoch(self) -> None:
        """Read an epoch; one that fails is tried again by the same process."""
        batch = len(self._pipeline.checkpoint.committed)
        for _ in range(_TRIES_MAX):
            try:
                self._epoch(batch)
            except LeaseLostError:
                raise
            except AuditError:
                self._pipeline.seen["audits failed"] += 1
            except (JobFailedError, ReaderError, StateError) as error:
                if isinstance(error.__cause__, StreamAlteredError):
                    raise
                is_audit = isinstance(error.__cause__, AuditError)
                self._pipeline.seen["audits failed" if is_audit else "epochs failed"] += 1
            else:
                return
            self._pipeline.leave(self)
            if batch in self._pipeline.checkpoint.committed:
                # Spark goes on with the next one.
                return
        raise AssertionError(f"no way past the cut of batch {batch}")

    def _epoch(self, batch: int) -> None:
        pipeline, checkpoint = self._pipeline, self._pipeline.checkpoint
        start_ns = checkpoint.ends[batch - 1] if batch else pipeline.first_ns
        if batch not in checkpoint.ends:
            checkpoint.plan(batch, start_ns + pipeline.choose.randint(1, 8) * STEP_NS)
        end_ns = checkpoint.ends[batch]
        clock_ns = end_ns + pipeline.choose.randint(1, 3) * STEP_NS
        pipeline.stream.clock_ns = max(pipeline.stream.clock_ns, clock_ns)
        tasks = self._planner.plan(start_ns, end_ns)
        plan = planned_epoch(self._store, "p")
        self.job = Job(tasks, pipeline.attempt, pipeline.failures_max, self._source.read_functions)
        job = self.job
        self.process.wait_until(lambda: job.is_over)
        rows = job.rows()
        self._require_lease()
        times = [time_ns for _, time_ns, _ in rows]
        audit_written(
            self._store,
            plan,
            SinkCounts(len(rows), min(times, default=None), max(times, default=None)),
            AuditMode.STOP,
            generation=self._generation,
        )
        self.process.pause()
        pipeline.output.publish(batch, rows, plan.end_ns)
        self.process.pause()
        checkpoint.commit(batch)
        self.job = None
        self._planner.commit(end_ns)

    def _is_owner(self) -> bool:
        row = self._store.pipeline("p")
        return row is not None and read_lease(self._store, "p").generation == self._generation

    def _require_lease(self) -> None:
        """Check the lease, as LeaseHolder.check does."""
        if not self._is_owner():
            raise LeaseLostError("another owner")


_OPTIONS = {
    "project": "some-project",
    "instance": "some-instance",
    "database": "some-database",
    "change_stream": "S",
    "pipeline": "p",
    "state_url": "sqlite:///unused",
    "tasks": "3",
}
_SOURCE = parse_options(_OPTIONS, {}).change_stream.path
