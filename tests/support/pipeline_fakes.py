"""A pipeline without Spark, Spanner, a store or a clock: everything that happens is scripted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pytest

from slackwater.pipeline.epochs.recorder import ProgressSource
from slackwater.pipeline.epochs.report import EpochReport
from slackwater.pipeline.lifecycle import Lifecycle
from slackwater.pipeline.observer import Observer
from slackwater.pipeline.progress import Progress
from slackwater.pipeline.query_runner import Query, QueryRunner
from slackwater.pipeline.retries import Retries
from slackwater.pipeline.run_loop import RunLoop
from slackwater.pipeline.transitions import Action, RunMode, State
from slackwater.state.errors import LeaseLostError, StoreUnreachableError
from slackwater.state.models import DesiredState, PipelineState

SECONDS_MAX: Final = 1_000.0


class FakeClock:
    """Time passes only while somebody sleeps; what was scheduled happens then."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._scheduled: list[tuple[float, Callable[[], None]]] = []

    def at(self, seconds: float, happen: Callable[[], None]) -> None:
        self._scheduled.append((seconds, happen))

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float, /) -> None:
        self.now_s += seconds
        assert self.now_s < SECONDS_MAX, "nothing ends the wait"
        due = [entry for entry in self._scheduled if entry[0] <= self.now_s]
        self._scheduled = [entry for entry in self._scheduled if entry[0] > self.now_s]
        for _, happen in due:
            happen()


class FakeQuery:
    """A query that works on an epoch until a test says otherwise."""

    def __init__(self) -> None:
        self.is_active = True
        self.is_busy = True
        self.committed = 0
        self.failure: Exception | None = None
        self.ends: list[str] = []
        self.on_stop: Callable[[], None] = lambda: None

    def commit(self) -> None:
        self.committed += 1
        self.is_busy = False

    def fail(self, error: Exception) -> None:
        self.failure = error
        self.is_active = self.is_busy = False

    def error(self) -> BaseException | None:
        return self.failure

    def stop(self) -> None:
        self.ends.append("stop")
        self.is_active = False

    def stop_and_wait(self) -> None:
        self.ends.append("stop and wait")
        self.is_active = False
        self.on_stop()

    def last_progress(self) -> str | None:
        return None

    def recent_progress(self) -> Sequence[str]:
        return ()


class World(Observer):
    """A pipeline's surroundings, in which its run loop and its query runner work.

    It stands for the store, the lease, the requests, the epochs and the observer, each of which a
    test may look at and change.
    """

    def __init__(self, mode: RunMode) -> None:
        self.clock = FakeClock()
        self.desired = DesiredState.RUNNING
        self.is_reachable = True
        self.is_owned_elsewhere = False
        self.recorded: list[tuple[PipelineState, str]] = []
        self.calls: list[str] = []
        self.failures = 0
        self.queries: list[FakeQuery] = []
        self.on_query: list[Callable[[FakeQuery], None]] = []
        self.on_start: list[Callable[[], None]] = []
        self.starts = 0
        self.epochs = 0
        self.has_reached_end = False
        self.loss: str | None = None
        self._is_lost = False
        self.lifecycle = Lifecycle("orders", self, lambda: self.desired, mode, self.clock)
        self.loop = RunLoop(
            self.lifecycle, self, self, self, self._start, self.spark_loss, "slackwater run -c a b"
        )

    # What a test does.

    def run(self) -> Action:
        return self.loop.run_while_owned(lambda: self.calls.append("stand by"))

    def run_query(self, state: State = State.STARTING) -> Action:
        """Run the query runner alone, from a state."""
        self.starts += 1
        self.lifecycle._state = state
        return self._runner().run()

    def desire(self, desired: DesiredState) -> Callable[[], None]:
        """Return what has an operator, or a signal, desire something."""
        return lambda: setattr(self, "desired", desired)

    def lose_lease(self) -> None:
        self._is_lost = True

    @property
    def states(self) -> list[str]:
        return [state.value for state, _ in self.recorded]

    @property
    def query(self) -> FakeQuery:
        """The query that was started last."""
        return self.queries[-1]

    # The metadata store, as a lifecycle sees it.

    def set_state(self, name: str, state: PipelineState, reason: str, since_ns: int) -> None:
        if not self.is_reachable:
            raise StoreUnreachableError("the store does not answer.")
        self.recorded.append((state, reason))

    # The lease.

    def acquire(
        self, *, wait: bool, until: Callable[[], bool], while_waiting: Callable[[], None]
    ) -> bool:
        while not until():
            if not self.is_owned_elsewhere:
                self._is_lost = False
                return True
            while_waiting()
            self.clock.sleep(0.5)
        return False

    def is_lost(self) -> bool:
        return self._is_lost

    def check(self) -> None:
        if self._is_lost:
            raise LeaseLostError("another process owns the pipeline.")

    def release(self) -> None:
        self.calls.append("release")

    # What is desired.

    def start(self) -> None:
        self.calls.append("start looking")

    def stop(self) -> None:
        self.calls.append("stop looking")

    def await_operator(self) -> None:
        self.calls.append("await operator")
        if self.desired is DesiredState.RUNNING:
            self.desired = DesiredState.AWAITING_OPERATOR

    def close_source(self) -> None:
        self.calls.append("close source")

    # The epochs.

    def record_committed(self, query: ProgressSource) -> None:
        assert isinstance(query, FakeQuery)
        self.epochs += query.committed
        query.committed = 0

    # The observer.

    def scanned(self, pipeline: str, progress: Progress) -> None:
        raise AssertionError

    def epoch_committed(self, pipeline: str, report: EpochReport) -> None:
        raise AssertionError("the epochs are scripted")

    def failed(self, pipeline: str) -> None:
        self.failures += 1

    # Spark.

    def spark_loss(self) -> str | None:
        return self.loss

    # The start.

    def _start(self) -> Action:
        self.starts += 1
        if self.on_start:
            self.on_start.pop(0)()
        self.loop.query_starts()
        return self._runner().run()

    def _runner(self) -> QueryRunner:
        return QueryRunner(
            self._start_query,
            self,
            Retries(
                "the pipeline",
                self.lifecycle,
                self.is_lost,
                self,
                "slackwater resume -c orders.yaml",
                self.spark_loss,
            ),
            self.is_lost,
            self.close_source,
        )

    def _start_query(self) -> Query:
        query = FakeQuery()
        self.queries.append(query)
        if self.on_query:
            self.on_query.pop(0)(query)
        return query


@dataclass(frozen=True)
class Life:
    """What happens to a pipeline, and what it has recorded and done when its run is over.

    Attributes:
        mode: that of its process.
        ends: what the run returns, or the kind of error that it raises.
        states: those that were recorded.
        later: what is desired from a second on, or what else happens then.
        desired: what is desired at first.
        on_start: how the first starts fail, the first one first; or what else happens at them.
        on_query: the same of the queries.
        is_owned_elsewhere: whether another process has the lease at first.
        starts: how often the pipeline was started.
        queries: how many queries there were; None where it is not of interest.
        query_ends: how the last one was ended; None where it is not of interest.
        epochs: how many were recorded; None where it is not of interest.
        failures: how many were counted.
        reason: a part of the last one that was recorded with a state; none was where it is empty.
    """

    mode: RunMode
    ends: Action | type[Exception]
    states: Sequence[str]
    later: Mapping[float, DesiredState | Callable[[World], None]] = field(default_factory=dict)
    desired: DesiredState = DesiredState.RUNNING
    on_start: Sequence[Exception | Callable[[World], None]] = ()
    on_query: Sequence[Exception | Callable[[World], None]] = ()
    is_owned_elsewhere: bool = False
    starts: int = 1
    queries: int | None = None
    query_ends: Sequence[str] | None = None
    epochs: int | None = None
    failures: int = 0
    reason: str = ""

    def lived(self, run: Callable[[World], Action] = World.run) -> World:
        """Live it, check that it was as it says, and return the world for more to look at.

        Args:
            run: has the world run the pipeline, or a part of it.
        """
        world = World(self.mode)
        world.desired = self.desired
        world.is_owned_elsewhere = self.is_owned_elsewhere
        world.on_start += [partial(_happen, world, event) for event in self.on_start]
        world.on_query += [partial(_happen_to, world, event) for event in self.on_query]
        for seconds, event in self.later.items():
            world.clock.at(seconds, partial(_happen, world, event))
        if isinstance(self.ends, Action):
            assert run(world) is self.ends
        else:
            with pytest.raises(self.ends):
                run(world)
        assert world.states == self.states
        assert world.starts == self.starts
        assert self.queries in (None, len(world.queries))
        assert self.query_ends is None or world.query.ends == self.query_ends
        assert self.epochs in (None, world.epochs)
        assert world.failures == self.failures
        reasons = [reason for _, reason in world.recorded if reason]
        assert self.reason in reasons[-1] if reasons else not self.reason
        return world


def _happen(world: World, event: DesiredState | Exception | Callable[[World], None]) -> None:
    if isinstance(event, Exception):
        raise event
    if isinstance(event, DesiredState):
        world.desired = event
    else:
        event(world)


def _happen_to(world: World, event: Exception | Callable[[World], None], query: FakeQuery) -> None:
    if isinstance(event, Exception):
        query.fail(event)
    else:
        event(world)
