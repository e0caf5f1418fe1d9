"""A pipeline over a synthetic Bigtable in one process: real planner, tasks and store, no Spark.

What is simulated is the clock, calls that break, tasks that are lost, a sink that keeps whole
epochs in memory, and processes that die between any two steps, or lose the store.
"""

import random
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import pyarrow as pa

from slackwater.endpoint import plaintext
from slackwater.pipeline.start_positions import ExactStart, Origin, StartFacts, origin_of, set_start
from slackwater.reader.bigtable.service import BigtableService, ChangeMessage, ChangeStreamConfig
from slackwater.reader.bigtable.table import BigtableTable
from slackwater.reader.errors import ReaderError
from slackwater.reader.transport.stream_call import Call, CallError
from slackwater.scheduler.bigtable.bigtable_source import BigtableSource
from slackwater.scheduler.bigtable.planner import TabletPlanner, TabletTask
from slackwater.scheduler.bigtable.tablet_task import read_tablets
from slackwater.scheduler.epoch import watermark_for_end, watermark_for_start
from slackwater.scheduler.options import SourceOptions
from slackwater.scheduler.read_options import AuditMode, Proof, Reading, ReadOptions
from slackwater.state.errors import AlreadySealedError
from slackwater.state.plans import latest_plan, sealed_plan_id, unsealed_tasks
from slackwater.state.positions import positions_at_ns, positions_text
from slackwater.state.store import Store
from slackwater.timestamp import us_to_ns
from tests.support.calls import IteratedCall
from tests.synthetic.bigtable.history import History
from tests.synthetic.bigtable.service import BigtableService as Synthetic
from tests.synthetic.grpc_over_h2 import AbortError, Ready

TABLE = BigtableTable("project", "instance", "table", endpoint=plaintext("localhost:1"))
PIPELINE = "changes"
_DEATHS_WITH_LOSSES: Final = 10
# Longer than a heartbeat, after which a partition is left, and shorter than the last epoch waits.
_STILL_S: Final = 2
_HEARTBEAT_MS: Final = 200
_BREAKS = (
    *(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.DEADLINE_EXCEEDED),
    *(grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNKNOWN),
)


class SimulatedBigtable(BigtableService):
    """Bigtable's API in this process, with a clock that is set, and calls that break.

    Args:
        history: of the table.
        choose: decides which calls break.
        breaks: how likely a message is the last one of its call.
    """

    def __init__(self, history: History, choose: random.Random, breaks: float) -> None:
        super().__init__(TABLE)
        self.clock_us = history.created_us
        self._synthetic = Synthetic(history, clock_us=lambda: self.clock_us)
        self._choose, self._breaks = choose, breaks

    def now_ns(self) -> int:
        return us_to_ns(self.clock_us)

    def config(self) -> ChangeStreamConfig:
        return ChangeStreamConfig(us_to_ns(7 * 86_400 * 1_000_000))

    def _streaming(self, method: str, request: Any, seconds_max: float | None = None) -> Call:
        del seconds_max
        name = method.rsplit("/", 1)[1]
        is_read = name == "ReadChangeStream"
        answer = self._synthetic.read if is_read else self._synthetic.generate
        messages = self._messages(answer(request.SerializeToString()), is_read=is_read)
        return IteratedCall(messages, lambda: None)

    def _messages(self, answer: Iterator[Ready], *, is_read: bool) -> Iterator[bytes]:
        try:
            for ready in answer:
                if isinstance(ready, int):
                    self.clock_us = max(self.clock_us, ready)
                    continue
                for message in ready:
                    yield message
                    if is_read and self._choose.random() < self._breaks:
                        yield from self._ending()
                        return
        except AbortError as error:
            raise CallError(error.code, error.details) from error

    def _ending(self) -> Iterator[bytes]:
        """End a call early: with an error, without a CloseStream, or as if its end had come."""
        match self._choose.randrange(4):
            case 0:
                return
            case 1:
                yield ChangeMessage(close_stream={"status": {}}).SerializeToString()
            case _:
                raise CallError(self._choose.choice(_BREAKS), "broken")


class StillClock:
    """The time in this process, by which partitions seem to stand still now and then."""

    def __init__(self, choose: random.Random, likely: float) -> None:
        self._choose, self._likely = choose, likely

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic() + (_STILL_S if self._choose.random() < self._likely else 0)


class DiedError(Exception):
    """The process died here."""


class World:
    """A pipeline whose process dies now and then, and its output.

    Args:
        history: of the table.
        file: of the metadata store.
        seed: of all that is decided by chance.
        likely: how likely the process dies at a step; some deaths take parts along.

    Attributes:
        output: the rows of each epoch, by its low watermark.
        deaths: how often the process died.
        losses: how often the store was lost or set back, or the checkpoint lost.
        different: how often an epoch that was read again had other rows.
    """

    def __init__(self, history: History, file: Path, seed: int, *, likely: float) -> None:
        self.history = history
        self._file = file
        self._choose = random.Random(seed)
        self._likely = likely
        self.bigtable = SimulatedBigtable(history, self._choose, self._choose.choice((0, 0.02)))
        # As a changelog in files does; others have the low watermark only.
        self.names_positions = self._choose.random() < 0.5
        self.store = self._new_store()
        self.output: dict[int, list[pa.RecordBatch]] = {}
        # As the last commit of the output names them; an epoch without rows has none.
        self._committed_positions: str | None = None
        # As Spark's checkpoint has them.
        self._planned_ns: int | None = None
        self._committed_ns: int | None = None
        # Where a new checkpoint begins; None for the first one.
        self._begins_ns: int | None = None
        self.end_ns: int | None = None
        self._read_before: dict[int, int] = {}
        self.deaths = self.losses = self.different = 0
        self.clock = StillClock(self._choose, self._choose.choice((0, 0.4)))

    def _new_store(self) -> Store:
        return Store.open(f"sqlite:///{self._file}", migrate=True)

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows of the output, in the order in which they were written."""
        return [row for batches in self.output.values() for b in batches for row in b.to_pylist()]

    def run_through(self, end_us: int) -> None:
        """Run to an end, at which the output has all that arrived before, whatever dies."""
        self.end_ns = watermark_for_end(us_to_ns(end_us))
        while self._committed_ns != self.end_ns:
            try:
                self._live()
            except (AlreadySealedError, ReaderError):
                continue
            except DiedError:
                self._lose_parts()
            self._resume()

    def _lose_parts(self) -> None:
        """Lose the store, set it back to a copy, or lose the checkpoint; mostly do nothing."""
        copy = self._file.with_suffix(".copy")
        match self._choose.randrange(_DEATHS_WITH_LOSSES):
            case 0 if self.names_positions and self._committed_positions:
                self._replace_store(None)
            case 1 if self.names_positions and self._committed_positions and copy.exists():
                self._replace_store(copy)
            case 2 if self.output:
                self.losses += 1
                self._begins_ns, self._planned_ns, self._committed_ns = max(self.output), None, None
            case 3:
                shutil.copy(self._file, copy)

    def _replace_store(self, copy: Path | None) -> None:
        self.losses += 1
        self.store.close()
        self._file.unlink()
        if copy is not None:
            shutil.copy(copy, self._file)
        self.store = self._new_store()

    def _resume(self) -> None:
        """Set the store to where the output ends, as slackwater.pipeline.resume_point does."""
        self.store.ensure_pipeline(PIPELINE, TABLE.path)
        if not self.output:
            return
        at_ns, plan = max(self.output), latest_plan(self.store, PIPELINE)
        facts = StartFacts(
            at_ns,
            max((ns for ns, rows in self.output.items() if rows), default=None),
            is_told=True,
            is_in_output=self.names_positions and self._committed_positions is not None,
            stored_ns=positions_at_ns(self.store, PIPELINE),
            has_plan=plan is not None
            and plan.end_ns == at_ns
            and sealed_plan_id(self.store, PIPELINE, plan.start_ns, at_ns) is not None,
        )
        origin = origin_of(facts)
        is_new_checkpoint = self._begins_ns == at_ns and self._planned_ns is None
        if origin is Origin.OUTPUT or is_new_checkpoint:
            assert origin is not Origin.LOST, facts
            start = ExactStart(at_ns, origin, self._committed_positions)
            set_start(self.store, PIPELINE, start, generation=None)

    def _live(self) -> None:
        """Run a process until its death, or until the end."""
        planner = TabletPlanner(self._options(), BigtableSource(self.bigtable), self.store)
        while self._committed_ns != self.end_ns:
            start_ns = self._committed_ns
            if self._planned_ns == start_ns:
                self.bigtable.clock_us += self._choose.randint(1, 2_000_000)
                self._planned_ns = (
                    planner.first_watermark_ns()
                    if start_ns is None
                    else planner.next_watermark_ns(start_ns)
                )
            assert self._planned_ns is not None
            self._may_die()
            tasks = (
                planner.plan_first(self._planned_ns)
                if start_ns is None
                else planner.plan(start_ns, self._planned_ns)
            )
            self._may_die()
            batches = [batch for task in tasks for batch in self._read(task)]
            rows = sum(batch.num_rows for batch in batches)
            before = self._read_before.setdefault(self._planned_ns, rows) if tasks else rows
            self.different += before != rows
            self._may_die()
            self._publish(self._planned_ns, batches)
            self._may_die()
            planner.commit(self._planned_ns)
            self._may_die()
            self._committed_ns = self._planned_ns

    def _options(self) -> SourceOptions[BigtableTable]:
        return SourceOptions(
            TABLE,
            PIPELINE,
            self.store.url,
            keep_ns=0,
            start=self._begins_ns or watermark_for_start(us_to_ns(self.history.created_us)),
            is_checkpoint_lost=self._begins_ns is not None,
            end_ns=self.end_ns,
            span_max_ns=us_to_ns(1_000_000),
            reading=Reading.BOUNDED,
            reader_memory_bytes=0,
            heartbeat_ms=_HEARTBEAT_MS,
            read=ReadOptions(1, Proof.OK, AuditMode.STOP, traces=False),
            tasks_max=self._choose.randint(1, 3),
            checkpoint_ns=self._planned_ns,
            written_ns=max((ns for ns, rows in self.output.items() if rows), default=None),
        )

    def _read(self, task: TabletTask) -> list[pa.RecordBatch]:
        """Read a task as Spark does: an attempt may be lost, before or after it was sealed."""
        while True:
            rows = read_tablets(
                task,
                store=self.store,
                service=self.bigtable,
                heartbeat_ms=_HEARTBEAT_MS,
                options=self._options().read,
            )
            batches = []
            for batch in rows:
                self._may_die()
                batches.append(batch)
            if self._choose.random() >= self._likely:
                return batches
            # Lost with its rows: the next attempt finds the task sealed.

    def _publish(self, low_watermark_ns: int, batches: Sequence[pa.RecordBatch]) -> None:
        plan = latest_plan(self.store, PIPELINE)
        assert plan is not None
        assert plan.end_ns == low_watermark_ns
        assert not unsealed_tasks(self.store, plan.plan_id)
        if self.output.get(low_watermark_ns):
            assert not batches
            return
        # An epoch without rows has a line in the log, which fences nobody.
        assert all(low_watermark_ns >= earlier_ns for earlier_ns in self.output)
        self.output[low_watermark_ns] = list(batches)
        if batches:
            self._committed_positions = positions_text(self.store, plan)

    def _may_die(self) -> None:
        if self._choose.random() < self._likely:
            self.deaths += 1
            raise DiedError
