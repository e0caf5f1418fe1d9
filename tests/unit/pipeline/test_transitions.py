"""The table of a pipeline's states: complete where the world decides, and closed elsewhere."""

import pytest

from slackwater.pipeline.transitions import (
    OBEYED,
    TABLE,
    Action,
    Event,
    ImpossibleTransitionError,
    Row,
    RunMode,
    State,
    expand,
    transition,
)
from slackwater.state.models import DesiredState
from tests.support.state_diagram import OWNER, PAGE, diagram, drawn

LINES = expand(TABLE)
WITH_QUERY = (State.STARTING, State.RUNNING, State.DRAINING, State.PAUSED)
LOOKS = (Event.EPOCH_RUNNING, Event.QUERY_IDLE, Event.QUERY_NEW)
END = (DesiredState.DRAINING, DesiredState.STOPPED)
FAILURES = (
    Event.FAILED,
    Event.FAILED_AND_EXITS,
    Event.FAILED_PERMANENTLY,
    Event.GIVEN_UP,
)
# The events that the world decides on, in each state; what is desired may change at any moment.
POSSIBLE = [
    *((State.STANDING_BY, event) for event in (Event.LEASE_TAKEN_ELSEWHERE, Event.NO_QUERY)),
    *((state, event) for state in OWNER for event in (Event.NO_QUERY, Event.LEASE_LOST)),
    *((state, Event.LEASE_LOST_AND_EXITS) for state in OWNER),
    (State.FAILED, Event.DELAY_OVER),
    (State.STARTING, Event.SPARK_LOST),
    *((state, event) for state in WITH_QUERY for event in LOOKS[:2]),
    *((state, Event.QUERY_NEW) for state in WITH_QUERY if state is not State.PAUSED),
    *((state, event) for state in WITH_QUERY for event in (Event.EPOCH_COMMITTED, *FAILURES)),
    *((state, Event.WORK_DONE) for state in WITH_QUERY),
    # A run until caught up neither pauses nor waits for an operator.
    *(
        (state, Event.NO_QUERY_TO_CATCH_UP)
        for state in (State.STANDING_BY, *WITH_QUERY[:3], State.FAILED)
    ),
]


@pytest.mark.parametrize("desired", list(DesiredState))
def test_each_event_that_can_come_about_has_an_answer(desired: DesiredState) -> None:
    for state, event in POSSIBLE:
        assert transition(state, desired, event) == LINES[state, desired, event]


def test_the_table_has_nothing_else() -> None:
    assert {(state, event) for state, _, event in LINES} == set(POSSIBLE)


def test_an_impossible_event_is_an_error() -> None:
    with pytest.raises(ImpossibleTransitionError, match="EPOCH_COMMITTED can't come about"):
        transition(State.STANDING_BY, DesiredState.RUNNING, Event.EPOCH_COMMITTED)


def test_two_rows_must_not_name_one_combination() -> None:
    row = Row((State.FAILED,), (DesiredState.PAUSED,), Event.NO_QUERY, None, Action.WAIT)
    with pytest.raises(ValueError, match="two rows"):
        expand((*TABLE, row))


@pytest.mark.parametrize("event", list(Event))
def test_each_transition_keeps_the_rules(event: Event) -> None:
    answers = {key[:2]: answer for key, answer in LINES.items() if key[2] is event}
    assert answers
    for (state, desired), answer in answers.items():
        keeps_the_rules(state, desired, event, *answer)


def keeps_the_rules(
    state: State, desired: DesiredState, event: Event, next_state: State, action: Action
) -> None:
    if action is Action.START:
        assert desired is DesiredState.RUNNING
        assert next_state is State.STARTING
    # The lease alone makes an owner, and nothing is recorded without it.
    if state is State.STANDING_BY and event is Event.LEASE_TAKEN_ELSEWHERE:
        assert next_state.recorded is None
    if event in (Event.LEASE_LOST, Event.LEASE_LOST_AND_EXITS):
        assert next_state.recorded is None
    # Nothing is begun that is not desired.
    if event in LOOKS and desired is not DesiredState.RUNNING:
        assert next_state in (state, State.DRAINING, State.PAUSED)
    if event in LOOKS and desired is DesiredState.RUNNING:
        is_held = state in (State.DRAINING, State.PAUSED)
        assert (next_state, action) == (State.STARTING if is_held else state, Action.CONTINUE)
    if event in LOOKS and desired is DesiredState.STOPPED:
        assert action is Action.STOP_QUERY
    if event in LOOKS and desired is DesiredState.DRAINING:
        assert action in (Action.CLOSE_SOURCE, Action.END_QUERY)
    # An epoch that runs is ended by a stop only.
    if event is Event.EPOCH_RUNNING and action is Action.STOP_QUERY:
        assert desired is DesiredState.STOPPED
    assert (event is Event.EPOCH_RUNNING) <= (action is not Action.END_QUERY)
    if event is Event.DELAY_OVER and desired is not DesiredState.RUNNING:
        assert (next_state, action) == (state, Action.WAIT)
    if event in FAILURES:
        assert next_state in (State.FAILED, State.FAILED_PERMANENTLY)
    if event in (Event.NO_QUERY, Event.NO_QUERY_TO_CATCH_UP) and desired in END:
        assert (next_state, action) == (State.NOT_RUNNING, Action.FINISH)


def test_nothing_follows_the_end() -> None:
    ends = {next_state for next_state, action in LINES.values() if action is Action.FINISH}
    assert ends == {State.NOT_RUNNING, State.EXITED}
    assert not {state for state, _, _ in LINES} & ends


def test_a_paused_query_goes_on_at_once_and_a_new_one_is_ended() -> None:
    paused, running = DesiredState.PAUSED, DesiredState.RUNNING
    assert transition(State.RUNNING, paused, Event.QUERY_IDLE) == (State.PAUSED, Action.CONTINUE)
    assert transition(State.PAUSED, running, Event.QUERY_IDLE) == (State.STARTING, Action.CONTINUE)
    assert transition(State.STARTING, paused, Event.QUERY_NEW) == (State.DRAINING, Action.END_QUERY)


@pytest.mark.parametrize(
    ("mode", "is_permanent", "is_given_up", "event"),
    [
        (RunMode(stays=True), False, False, Event.FAILED),
        (RunMode(stays=True), True, True, Event.FAILED_PERMANENTLY),
        (RunMode(), False, False, Event.FAILED_AND_EXITS),
        (RunMode(), True, False, Event.GIVEN_UP),
        (RunMode(until_caught_up=True), False, True, Event.GIVEN_UP),
    ],
)
def test_what_a_failure_means_depends_on_the_process(
    mode: RunMode, is_permanent: bool, is_given_up: bool, event: Event
) -> None:
    assert mode.failed(is_permanent=is_permanent, is_given_up=is_given_up) is event


def test_a_run_until_caught_up_gives_up_after_three_failures() -> None:
    assert [RunMode(until_caught_up=True).is_last_try(n) for n in (1, 2, 3)] == [False, False, True]
    assert not any(RunMode().is_last_try(n) for n in range(1, 100))


def test_a_request_is_obeyed_in_a_state_that_the_table_reaches_for_it() -> None:
    for desired, states in OBEYED.items():
        reached = {line[0].recorded for key, line in LINES.items() if key[1] is desired}
        assert states <= reached


def test_the_drawing_in_the_documentation_is_the_tables() -> None:
    assert drawn(PAGE.read_text()) == diagram(), "run python -m tests.support.state_diagram"
