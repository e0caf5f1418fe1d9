"""The life of a pipeline in one process, as a table: state, desired state, event; state, action.

The run loop and the query runner watch the lease, the query and the clock, turn what they see into
an event, and do the table's action. They decide nothing themselves but which event a failure is:
QueryRunner.run for the query, RunMode.failed for the rest. In the table:

    state          the pipeline's in this process. All but STANDING_BY and EXITED are the
                   owner's, and are recorded in the metadata store for monitoring
    desired state  set by an operator or a signal, as DesiredStatePoller read it last
    event          an observation, just made
    action         the next step, which leads to the next event

A row stands for all combinations of its states and desired states. A combination that no row names
can't occur; transition() raises there, because a guess would hide a defect. The drawing in
docs/architecture.md is made from this table (tests/support/state_diagram.py), and a test holds them
equal.

Rules that need explanation:

- A pause keeps the query, so that a resumed pipeline continues at once. Before its first epoch a
  query can't wait: the source answers with the start, and Spark replays what an earlier query left.
  Such a query is ended (QUERY_NEW), as is any query of a run that ends when it has caught up.
- A drain lets the running epoch finish and a stop does not; both then end the run. A signal is a
  drain that no resume takes back. The source is closed first and only then the query is asked
  whether it is idle: otherwise an epoch could begin in between.
- Whether a failure is tried again depends on the error and on the process: one that stays shows a
  permanent failure and waits for an operator; another one ends with the error (see RunMode).
- A lost lease ends everything at once. A running epoch does no harm: it checks the lease before it
  becomes visible.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from slackwater.state.models import DesiredState, PipelineState


class State(Enum):
    """The state of the pipeline in this process; the recorded ones have the store's values."""

    STANDING_BY = "standing by"
    STARTING = PipelineState.STARTING
    RUNNING = PipelineState.RUNNING
    DRAINING = PipelineState.DRAINING
    PAUSED = PipelineState.PAUSED
    FAILED = PipelineState.FAILED
    FAILED_PERMANENTLY = PipelineState.FAILED_PERMANENTLY
    NOT_RUNNING = PipelineState.NOT_RUNNING
    EXITED = "exited"

    @property
    def recorded(self) -> PipelineState | None:
        """The state in the store's form; None if this process does not own the pipeline."""
        return self.value if isinstance(self.value, PipelineState) else None


class Event(Enum):
    """The events that the table takes.

    LEASE_TAKEN_ELSEWHERE: another process owns the pipeline, or the lease is not free yet.
    NO_QUERY: this process owns the pipeline and no query runs; seen again and again while it waits.
    NO_QUERY_TO_CATCH_UP: the same in a run that ends when it has caught up.
    DELAY_OVER: the time before the next try is over.
    EPOCH_RUNNING: the query works on an epoch, or looks for one.
    QUERY_IDLE: the query waits between epochs, and can be kept through a pause.
    QUERY_NEW: the query waits, but has committed no epoch yet or must not be kept.
    EPOCH_COMMITTED: Spark has committed an epoch.
    WORK_DONE: the pipeline's end is reached, or the query has ended by itself without an error.
    FAILED: a failure that another try may overcome.
    FAILED_AND_EXITS: the same outside the query, in a process that does not stay.
    FAILED_PERMANENTLY: a failure that only an operator can overcome, in a process that stays.
    GIVEN_UP: such a failure, or the last of too many, in a process that does not stay.
    SPARK_LOST: the time before the next try is over, and Spark has to be started again for it.
    LEASE_LOST: another process took the pipeline over, and this one stands by.
    LEASE_LOST_AND_EXITS: the same in a process that does not stand by.
    """

    LEASE_TAKEN_ELSEWHERE = auto()
    NO_QUERY = auto()
    NO_QUERY_TO_CATCH_UP = auto()
    DELAY_OVER = auto()
    EPOCH_RUNNING = auto()
    QUERY_IDLE = auto()
    QUERY_NEW = auto()
    EPOCH_COMMITTED = auto()
    WORK_DONE = auto()
    FAILED = auto()
    FAILED_AND_EXITS = auto()
    FAILED_PERMANENTLY = auto()
    GIVEN_UP = auto()
    SPARK_LOST = auto()
    LEASE_LOST = auto()
    LEASE_LOST_AND_EXITS = auto()


class Action(Enum):
    """The action that follows an event.

    WAIT: poll again in a moment.
    START: start a query.
    CONTINUE: leave the query as it is, and poll again in a moment.
    CLOSE_SOURCE: make the source offer no further epoch, and poll again in a moment.
    END_QUERY: end the query, which is between epochs. Where the run is to end, the source was
        closed before the query was seen idle.
    STOP_QUERY: end the query at once; the running epoch is left to be replayed.
    RETRY: wait for the delay of a failure, then start again.
    AWAIT_OPERATOR: note in the store that nothing happens until an operator resumes.
    STAND_BY: leave the lease and wait for it.
    START_SPARK: leave the lease, start Spark again, and take the lease again.
    FINISH: leave the lease; the run is over.
    RAISE: leave the lease and end the run with the error.
    REFUSE: leave the lease and end the run, because the pipeline is paused.
    """

    WAIT = auto()
    START = auto()
    CONTINUE = auto()
    CLOSE_SOURCE = auto()
    END_QUERY = auto()
    STOP_QUERY = auto()
    RETRY = auto()
    AWAIT_OPERATOR = auto()
    STAND_BY = auto()
    START_SPARK = auto()
    FINISH = auto()
    RAISE = auto()
    REFUSE = auto()


@dataclass(frozen=True, slots=True)
class Row:
    """Several lines of the table at once.

    Attributes:
        states: the states in which the row counts.
        desired: the desired states for which it counts.
        event: the observation.
        next_state: the state that follows; None for the one before.
        action: what to do.
    """

    states: tuple[State, ...]
    desired: tuple[DesiredState, ...]
    event: Event
    next_state: State | None
    action: Action


_ANY: Final = tuple(DesiredState)
_RUN: Final = (DesiredState.RUNNING,)
_PAUSE: Final = (DesiredState.PAUSED,)
_AWAIT: Final = (DesiredState.AWAITING_OPERATOR,)
_DRAIN: Final = (DesiredState.DRAINING,)
_STOP: Final = (DesiredState.STOPPED,)
_END: Final = (DesiredState.DRAINING, DesiredState.STOPPED)
_DO_NOT_END: Final = (
    DesiredState.RUNNING,
    DesiredState.PAUSED,
    DesiredState.AWAITING_OPERATOR,
)

_STAND_BY: Final = (State.STANDING_BY,)
_BEGINNING: Final = (State.STARTING, State.RUNNING)
_HELD: Final = (State.DRAINING, State.PAUSED)
_WITH_QUERY: Final = (*_BEGINNING, *_HELD)
# A query that is kept through a pause has committed an epoch.
_WITH_NEW_QUERY: Final = (*_BEGINNING, State.DRAINING)

_OWNING: Final = (*_WITH_QUERY, State.FAILED, State.FAILED_PERMANENTLY)
# FAILED waits for its delay, and so does not start at the first poll.
_MAY_START: Final = (*_STAND_BY, *_WITH_QUERY, State.FAILED_PERMANENTLY)

TABLE: Final = (
    # Until the lease is this process's.
    Row(_STAND_BY, _DO_NOT_END, Event.LEASE_TAKEN_ELSEWHERE, None, Action.WAIT),
    Row(_STAND_BY, _END, Event.LEASE_TAKEN_ELSEWHERE, State.EXITED, Action.FINISH),
    # Owned, and nothing runs.
    Row(_MAY_START, _RUN, Event.NO_QUERY, State.STARTING, Action.START),
    Row((State.FAILED,), _RUN, Event.NO_QUERY, None, Action.WAIT),
    Row((*_STAND_BY, *_OWNING), _PAUSE, Event.NO_QUERY, State.PAUSED, Action.WAIT),
    Row((*_STAND_BY, *_OWNING), _END, Event.NO_QUERY, State.NOT_RUNNING, Action.FINISH),
    Row((State.PAUSED,), _AWAIT, Event.NO_QUERY, None, Action.WAIT),
    Row(
        (*_STAND_BY, *_WITH_NEW_QUERY, State.FAILED, State.FAILED_PERMANENTLY),
        _AWAIT,
        Event.NO_QUERY,
        State.FAILED_PERMANENTLY,
        Action.WAIT,
    ),
    # The same if the run ends when it has caught up: it never waits for an operator.
    Row(
        (*_STAND_BY, *_WITH_NEW_QUERY),
        _RUN,
        Event.NO_QUERY_TO_CATCH_UP,
        State.STARTING,
        Action.START,
    ),
    Row((State.FAILED,), _RUN, Event.NO_QUERY_TO_CATCH_UP, None, Action.WAIT),
    Row(
        (*_STAND_BY, *_WITH_NEW_QUERY, State.FAILED),
        (*_PAUSE, *_AWAIT),
        Event.NO_QUERY_TO_CATCH_UP,
        State.NOT_RUNNING,
        Action.REFUSE,
    ),
    Row(
        (*_STAND_BY, *_WITH_NEW_QUERY, State.FAILED),
        _END,
        Event.NO_QUERY_TO_CATCH_UP,
        State.NOT_RUNNING,
        Action.FINISH,
    ),
    Row((State.FAILED,), _RUN, Event.DELAY_OVER, State.STARTING, Action.START),
    # The next event leads to another action.
    Row((State.FAILED,), (*_PAUSE, *_AWAIT, *_END), Event.DELAY_OVER, None, Action.WAIT),
    # The query works on an epoch.
    Row(_BEGINNING, _RUN, Event.EPOCH_RUNNING, None, Action.CONTINUE),
    Row(_HELD, _RUN, Event.EPOCH_RUNNING, State.STARTING, Action.CONTINUE),
    Row(_WITH_NEW_QUERY, (*_PAUSE, *_AWAIT), Event.EPOCH_RUNNING, State.DRAINING, Action.CONTINUE),
    # A paused query looks for an epoch now and then, and is offered none.
    Row((State.PAUSED,), _PAUSE, Event.EPOCH_RUNNING, None, Action.CONTINUE),
    Row((State.PAUSED,), _AWAIT, Event.EPOCH_RUNNING, State.DRAINING, Action.CONTINUE),
    Row(_WITH_QUERY, _DRAIN, Event.EPOCH_RUNNING, State.DRAINING, Action.CLOSE_SOURCE),
    Row(_WITH_QUERY, _STOP, Event.EPOCH_RUNNING, None, Action.STOP_QUERY),
    # The query waits between epochs and can be kept.
    Row(_BEGINNING, _RUN, Event.QUERY_IDLE, None, Action.CONTINUE),
    Row(_HELD, _RUN, Event.QUERY_IDLE, State.STARTING, Action.CONTINUE),
    Row(_WITH_QUERY, _PAUSE, Event.QUERY_IDLE, State.PAUSED, Action.CONTINUE),
    Row(_WITH_QUERY, (*_DRAIN, *_AWAIT), Event.QUERY_IDLE, State.DRAINING, Action.END_QUERY),
    Row(_WITH_QUERY, _STOP, Event.QUERY_IDLE, None, Action.STOP_QUERY),
    # The query waits and can't be kept.
    Row(_BEGINNING, _RUN, Event.QUERY_NEW, None, Action.CONTINUE),
    Row((State.DRAINING,), _RUN, Event.QUERY_NEW, State.STARTING, Action.CONTINUE),
    Row(
        _WITH_NEW_QUERY,
        (*_PAUSE, *_DRAIN, *_AWAIT),
        Event.QUERY_NEW,
        State.DRAINING,
        Action.END_QUERY,
    ),
    Row(_WITH_NEW_QUERY, _STOP, Event.QUERY_NEW, None, Action.STOP_QUERY),
    # Events of Spark.
    Row(_BEGINNING, _ANY, Event.EPOCH_COMMITTED, State.RUNNING, Action.CONTINUE),
    Row(_HELD, _ANY, Event.EPOCH_COMMITTED, None, Action.CONTINUE),
    Row(_WITH_QUERY, _ANY, Event.WORK_DONE, State.NOT_RUNNING, Action.FINISH),
    # Failures.
    Row(_WITH_QUERY, _ANY, Event.FAILED, State.FAILED, Action.RETRY),
    Row(_WITH_QUERY, _ANY, Event.FAILED_AND_EXITS, State.FAILED, Action.RAISE),
    Row(
        _WITH_QUERY,
        _ANY,
        Event.FAILED_PERMANENTLY,
        State.FAILED_PERMANENTLY,
        Action.AWAIT_OPERATOR,
    ),
    Row(_WITH_QUERY, _ANY, Event.GIVEN_UP, State.FAILED_PERMANENTLY, Action.RAISE),
    # Hanging work in the old Spark is a former owner's, like that of a process that froze.
    Row((State.STARTING,), _ANY, Event.SPARK_LOST, State.STANDING_BY, Action.START_SPARK),
    # The lease.
    Row(_OWNING, _ANY, Event.LEASE_LOST, State.STANDING_BY, Action.STAND_BY),
    Row(_OWNING, _ANY, Event.LEASE_LOST_AND_EXITS, State.EXITED, Action.RAISE),
)


def expand(
    table: tuple[Row, ...],
) -> dict[tuple[State, DesiredState, Event], tuple[State, Action]]:
    """Return the table with a line for each combination.

    Raises:
        ValueError: two rows name one combination.
    """
    lines: dict[tuple[State, DesiredState, Event], tuple[State, Action]] = {}
    for row in table:
        for state in row.states:
            for desired in row.desired:
                key = (state, desired, row.event)
                if key in lines:
                    raise ValueError(f"two rows name {key}")
                lines[key] = (row.next_state or state, row.action)
    return lines


_LINES: Final = expand(TABLE)


class ImpossibleTransitionError(Exception):
    """The table has no such combination: a defect in the code that saw the event."""


def transition(state: State, desired: DesiredState, event: Event) -> tuple[State, Action]:
    """Return the state that follows an event, and what to do.

    Raises:
        ImpossibleTransitionError: the table has no such combination.
    """
    try:
        return _LINES[state, desired, event]
    except KeyError:
        raise ImpossibleTransitionError(
            f"{event.name} can't come about in state {state.name} while {desired.name} is desired"
        ) from None


# The states of an owner that has obeyed a request.
OBEYED: Final[Mapping[DesiredState, frozenset[PipelineState]]] = {
    DesiredState.PAUSED: frozenset({PipelineState.PAUSED}),
    DesiredState.RUNNING: frozenset({PipelineState.STARTING, PipelineState.RUNNING}),
    DesiredState.DRAINING: frozenset({PipelineState.NOT_RUNNING}),
    DesiredState.STOPPED: frozenset({PipelineState.NOT_RUNNING}),
}
_TRIES_MAX: Final = 3
FAILED_STATES: Final = frozenset({PipelineState.FAILED, PipelineState.FAILED_PERMANENTLY})


def ends_run(desired: DesiredState) -> bool:
    """Return True if the run has to end, at the epoch's end or at once."""
    return desired in _END


def may_begin(desired: DesiredState) -> bool:
    """Return True if another epoch, or another part of a scan, may begin."""
    return desired in _RUN


@dataclass(frozen=True, slots=True)
class RunMode:
    """The time that a process stays with a pipeline, which decides the effect of a failure.

    Attributes:
        until_caught_up: the run ends after the epoch that reaches the time of its start.
        stays: a failure that only an operator can overcome leaves the process running, to show it.
        stands_by: a process that lost the lease waits to become the owner again.
    """

    until_caught_up: bool = False
    stays: bool = False
    stands_by: bool = False

    def is_last_try(self, failures: int) -> bool:
        """Return True if a pipeline that has failed so often in a row is not tried again.

        Anyone who waits for --until-caught-up to end has to learn of a failure.
        """
        return self.until_caught_up and failures >= _TRIES_MAX

    def without_query(self) -> Event:
        """Return the event of owning the pipeline while no query runs."""
        return Event.NO_QUERY_TO_CATCH_UP if self.until_caught_up else Event.NO_QUERY

    def with_query(self, *, is_busy: bool, has_epoch: bool) -> Event:
        """Return the event of polling a query.

        Args:
            is_busy: it works on an epoch.
            has_epoch: it has committed one since it was started.
        """
        if is_busy:
            return Event.EPOCH_RUNNING
        return Event.QUERY_IDLE if has_epoch and not self.until_caught_up else Event.QUERY_NEW

    def failed(self, *, is_permanent: bool, is_given_up: bool) -> Event:
        """Return the event of a failure that the query runner does not try again.

        Args:
            is_permanent: only an operator can overcome it.
            is_given_up: it has been tried often enough.
        """
        if self.stays:
            return Event.FAILED_PERMANENTLY if is_permanent else Event.FAILED
        return Event.GIVEN_UP if is_permanent or is_given_up else Event.FAILED_AND_EXITS

    def lease_lost(self) -> Event:
        """Return the event of a lost lease."""
        return Event.LEASE_LOST if self.stands_by else Event.LEASE_LOST_AND_EXITS
