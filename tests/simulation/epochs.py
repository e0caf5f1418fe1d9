"""A simulated life of a pipeline: epochs planned, read, audited, committed; crashes anywhere."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from slackwater.reader.errors import UnavailableError
from slackwater.scheduler.audit import SinkCounts, audit_epoch
from slackwater.scheduler.errors import AuditError
from slackwater.scheduler.options import parse_options
from slackwater.scheduler.plan import Task
from slackwater.scheduler.planner import Planner
from slackwater.scheduler.read_options import Proof
from slackwater.state.errors import LeaseLostError
from slackwater.state.lease import acquire_lease, read_lease
from slackwater.state.models import Plan
from slackwater.state.plans import latest_plan, reject_plans
from slackwater.state.store import Store
from slackwater.state.task_counts import read_task_counts
from tests.simulation.history import STEP_NS, History, random_history
from tests.simulation.world import Row, SimulatedStream, SimulatedTask, Zombies


class CrashError(Exception):
    """The driver dies; what was recorded stays."""


class Pipeline:
    """A pipeline over a random history; everything follows from the seed.

    Args:
        seed: makes the history and all choices.
        folder: for the metadata store.
        template: a migrated store to copy.
        hide: see SimulatedStream.
        proof: what shows that a partition was read through.
    """

    def __init__(
        self, seed: int, folder: Path, template: Path, *, hide: float, proof: Proof
    ) -> None:
        self.choose = random.Random(seed)
        self.history: History = random_history(self.choose)
        first_ns = self.choose.randrange(1, self.history.end_ns // STEP_NS) * STEP_NS - 500
        self.first_ns = self.watermark_ns = first_ns
        self.stream = SimulatedStream(self.history, 0, self.choose, hide)
        self.proof = proof
        self.committed: dict[int, list[Row]] = {}
        self.late: list[Row] = []
        self.crashes = self.refused = self.audits_failed = 0
        self._path = folder / f"{seed}.db"
        self._template = template
        self._completed: set[tuple[str, str]] = set()
        self._zombies = Zombies(self.choose)
        self._former: list[Planner] = []
        self._planned_ns: int | None = None
        self._make_store()

    def close(self) -> None:
        self.store.close()
        self._path.unlink()

    def run(self) -> None:
        """Epochs until everything was read; then what was committed is complete."""
        # One epoch more than the history brings what the last cut may have hidden.
        end_ns = self.history.end_ns + 8 * STEP_NS
        while self.watermark_ns < end_ns:
            try:
                self._epoch()
            except CrashError:
                self.crashes += 1
                self._after_crash()

    def _epoch(self) -> None:
        if self._planned_ns is None:
            # Spark has the end in its log before it plans: a replay has the same cut.
            steps = self.choose.randint(1, 8)
            self._planned_ns = self.watermark_ns + steps * STEP_NS
        end_ns = self._planned_ns
        self.stream.clock_ns = end_ns + self.choose.randint(1, 3) * STEP_NS
        self._may_crash()
        tasks = self._planner.plan(self.watermark_ns, end_ns)
        rows = self._read(tasks)
        plan = latest_plan(self.store, "p")
        assert plan is not None
        self._audit(plan, rows)
        # The sink's commit: idempotent by the epoch's low watermark.
        if end_ns not in self.committed:
            self.late += [row for row in rows if row[1] <= self.watermark_ns]
        self.committed.setdefault(end_ns, rows)
        assert sorted(self.committed[end_ns]) == sorted(rows), "a replay gave other rows"
        self._may_crash()
        self.watermark_ns, self._planned_ns = end_ns, None
        self._planner.commit(end_ns)
        self._old_owner_wakes(end_ns)

    def _read(self, tasks: list[Task]) -> list[Row]:
        """Spark's part: every task in some attempt to its end, in any interleaving."""
        attempts = {task.index: [self._attempt(task)] for task in tasks}
        rows: list[Row] = []
        by_index = {task.index: task for task in tasks}
        while attempts:
            index = self.choose.choice(sorted(attempts))
            running = attempts[index]
            self._disturb(by_index[index], running)
            attempt, steps = self.choose.choice(running)
            try:
                next(steps)
            except StopIteration:
                rows += attempt.rows
                # Attempts that Spark started beside this one are told to stop, some day.
                for other, late_steps in running:
                    if other is not attempt:
                        self._zombies.add(late_steps)
                del attempts[index]
            except AuditError as error:
                self.audits_failed += 1
                raise CrashError from error
            except UnavailableError as error:
                # It did not show an end in any of its tries: rare, and an epoch's failure.
                raise CrashError from error
            self._zombies.step()
        return rows

    def _disturb(self, task: Task, running: list[tuple[SimulatedTask, Iterator[None]]]) -> None:
        chance = self.choose.random()
        if chance < 0.01:
            for _, steps in running:
                self._zombies.add(steps)
            raise CrashError
        if chance < 0.05:
            # The worker dies, and Spark tries the task again.
            running[:] = [self._attempt(task)]
        elif chance < 0.08 and len(running) == 1:
            # Speculative execution: the same task twice at once.
            running.append(self._attempt(task))

    def _attempt(self, task: Task) -> tuple[SimulatedTask, Iterator[None]]:
        made = SimulatedTask(task, self.stream, self.store, self.proof, self._completed)
        return made, made.run()

    def _audit(self, plan: Plan, rows: list[Row]) -> None:
        times = [time_ns for _, time_ns in rows]
        known = self.store.pipeline("p")
        assert known is not None
        broken = audit_epoch(
            plan,
            read_task_counts(self.store, plan.plan_id),
            SinkCounts(len(rows), min(times, default=None), max(times, default=None)),
            low_watermark_ns=known.low_watermark_ns,
        )
        if broken:
            reject_plans(self.store, plan)
            self.audits_failed += 1
            raise CrashError

    def _may_crash(self) -> None:
        if self.choose.random() < 0.04:
            raise CrashError

    def _after_crash(self) -> None:
        """A new process, or another one that takes over; now and then the store is lost."""
        # An end that no committed epoch has shown is known to the store alone: to lose it then is
        # the one way to lose records; proof: record has none such. See docs/reliability.md.
        may_lose_store = self.proof is Proof.RECORD or not self.stream.hide
        if may_lose_store and self.choose.random() < 0.1:
            self.store.close()
            self._path.unlink()
            self._make_store()
            return
        if self.choose.random() < 0.7:
            self._former.append(self._planner)
            self._own()

    def _old_owner_wakes(self, end_ns: int) -> None:
        """A frozen former owner goes on where it was: nothing that it writes may count."""
        if not self._former or self.choose.random() > 0.3:
            return
        old = self.choose.choice(self._former)
        for write in (lambda: old.commit(end_ns + STEP_NS), lambda: old.plan(end_ns, end_ns)):
            try:
                write()
            except LeaseLostError:
                self.refused += 1
            else:
                raise AssertionError("a former owner was let in")

    def _make_store(self) -> None:
        shutil.copy(self._template, self._path)
        self.store = Store.open(f"sqlite:///{self._path}", migrate=True)
        self.store.ensure_pipeline("p", _SOURCE)
        self._former = []
        self._own()

    def _own(self) -> None:
        lease = acquire_lease(self.store, "p", "somebody", read_lease(self.store, "p"))
        assert lease is not None
        options = parse_options({**_OPTIONS, "generation": str(lease.generation)}, {})
        self._planner = Planner(options, self.stream, self.store)


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
