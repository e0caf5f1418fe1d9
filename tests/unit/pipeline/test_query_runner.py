"""A query is watched, drained, paused, stopped and tried again, without Spark and in no time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from slackwater.errors import PipelineFailedError
from slackwater.pipeline.transitions import Action, RunMode, State
from slackwater.reader.errors import StartTooOldError, UnavailableError
from slackwater.state.errors import LeaseLostError, StoreUnreachableError
from slackwater.state.models import DesiredState, PipelineState
from tests.support.pipeline_fakes import FakeQuery, World

SERVICE = RunMode(stays=True, stands_by=True)
ONCE = RunMode(until_caught_up=True)
WORLD_ERROR = UnavailableError("Spanner answered UNAVAILABLE.")


def committing(world: World, at_s: float = 1) -> None:
    """Have the next query commit an epoch."""
    world.on_query.append(lambda query: world.clock.at(at_s, query.commit))


def test_a_query_that_reaches_the_end_finishes_the_run() -> None:
    world = World(ONCE)
    committing(world)
    world.clock.at(2, lambda: setattr(world, "has_reached_end", True))
    assert world.run_query() is Action.FINISH
    assert world.states == ["running", "not running"]
    assert world.query.ends == ["stop and wait"]


def test_a_query_that_ends_by_itself_finishes_the_run() -> None:
    world = World(SERVICE)
    world.on_query.append(lambda query: setattr(query, "is_active", False))
    assert world.run_query() is Action.FINISH


def test_a_paused_query_stays_and_goes_on_at_once() -> None:
    world = World(SERVICE)
    committing(world)
    world.clock.at(2, world.desire(DesiredState.PAUSED))
    world.clock.at(10, world.desire(DesiredState.RUNNING))
    world.clock.at(11, lambda: world.query.commit())
    world.clock.at(12, world.desire(DesiredState.STOPPED))
    assert world.run_query() is Action.FINISH
    assert world.states == ["running", "paused", "starting", "running", "not running"]
    assert len(world.queries) == 1
    assert world.query.ends == ["stop and wait"]


def test_a_paused_query_that_looks_for_an_epoch_stays_paused() -> None:
    world = World(SERVICE)
    committing(world)
    world.clock.at(2, world.desire(DesiredState.PAUSED))
    world.clock.at(3, lambda: setattr(world.query, "is_busy", True))
    world.clock.at(4, lambda: setattr(world.query, "is_busy", False))
    world.clock.at(6, world.desire(DesiredState.STOPPED))
    assert world.run_query() is Action.FINISH
    assert world.states == ["running", "paused", "not running"]


def test_a_pause_lets_the_running_epoch_finish_first() -> None:
    world = World(SERVICE)
    committing(world)
    world.clock.at(2, lambda: setattr(world.query, "is_busy", True))
    world.clock.at(3, world.desire(DesiredState.PAUSED))
    world.clock.at(5, lambda: world.query.commit())
    world.clock.at(6, world.desire(DesiredState.STOPPED))
    assert world.run_query() is Action.FINISH
    assert world.states == ["running", "draining", "paused", "not running"]
    assert world.epochs == 2, "what an idle query has committed is recorded before it is paused"


def test_a_pause_before_the_first_epoch_ends_the_query() -> None:
    world = World(SERVICE)
    world.desired = DesiredState.PAUSED
    world.on_query.append(lambda query: world.clock.at(3, lambda: setattr(query, "is_busy", False)))
    assert world.run_query() is Action.WAIT
    assert world.states == ["draining", "paused"]
    assert world.query.ends == ["stop and wait"]


def test_a_pause_of_a_run_until_caught_up_ends_it_as_refused() -> None:
    world = World(ONCE)
    committing(world)
    world.clock.at(2, world.desire(DesiredState.PAUSED))
    assert world.run_query() is Action.REFUSE


def test_a_resume_while_draining_goes_on() -> None:
    world = World(SERVICE)
    world.desired = DesiredState.PAUSED
    world.clock.at(1, world.desire(DesiredState.RUNNING))
    world.clock.at(2, world.desire(DesiredState.STOPPED))
    assert world.run_query() is Action.FINISH
    assert world.states == ["draining", "starting", "not running"]


def test_a_signal_while_paused_closes_the_source_and_ends_the_query() -> None:
    world = World(SERVICE)
    committing(world)
    world.clock.at(2, world.desire(DesiredState.PAUSED))
    world.clock.at(4, world.desire(DesiredState.DRAINING))
    assert world.run_query() is Action.FINISH
    assert world.states == ["running", "paused", "draining", "not running"]
    assert world.calls == ["close source"]
    assert world.query.ends == ["stop and wait"]


def test_a_drain_closes_the_source_again_and_again_until_the_epoch_ends() -> None:
    world = World(SERVICE)
    world.desired = DesiredState.DRAINING
    committing(world, at_s=1)
    assert world.run_query() is Action.FINISH
    assert len(world.calls) > 10
    assert set(world.calls) == {"close source"}
    # The epoch is the run's last, and is recorded.
    assert world.epochs == 1
    assert world.states == ["draining", "not running"]


def test_an_epoch_that_begins_at_the_last_moment_is_met_by_a_closed_source() -> None:
    """Between the question whether the query is idle and its end, Spark may trigger once more."""
    world = World(SERVICE)
    committing(world)
    world.clock.at(2, world.desire(DesiredState.DRAINING))

    def trigger(name: str, state: PipelineState, reason: str, since_ns: int) -> None:
        if state is PipelineState.DRAINING and "close source" not in world.calls:
            world.query.is_busy = True
            begun.append("epoch")

    begun: list[str] = []
    world.set_state = trigger  # type: ignore[method-assign]
    assert world.run_query() is Action.FINISH
    assert begun == []
    assert world.query.ends == ["stop and wait"], "a second guard"


def test_what_is_desired_is_read_once_in_a_look() -> None:
    """A signal that comes after the look at an idle, paused query has the source closed first."""
    world = World(SERVICE)
    committing(world)
    world.clock.at(2, world.desire(DesiredState.PAUSED))
    asked: list[DesiredState] = []

    class Signalled(FakeQuery):
        @property
        def is_busy(self) -> bool:
            asked.append(world.desired)
            world.desired = DesiredState.DRAINING
            assert asked == [DesiredState.PAUSED] or "close source" in world.calls
            return False

        @is_busy.setter
        def is_busy(self, is_busy: bool) -> None:
            pass

    query = Signalled()
    world.queries.append(query)
    world._start_query = lambda: query  # type: ignore[method-assign]
    world.clock.at(1, query.commit)
    assert world.run_query() is Action.FINISH
    assert asked == [DesiredState.PAUSED, DesiredState.DRAINING]


def test_a_source_that_can_not_be_closed_leaves_no_query_behind() -> None:
    world = World(SERVICE)
    world.desired = DesiredState.DRAINING

    def fail() -> None:
        raise StoreUnreachableError("the store does not answer.")

    world.close_source = fail  # type: ignore[method-assign]
    with pytest.raises(StoreUnreachableError):
        world.run_query()
    assert world.query.ends == ["stop and wait"]


def test_a_lease_that_is_lost_while_a_query_stops_leaves_the_state_to_the_new_owner() -> None:
    world = World(SERVICE)
    world.desired = DesiredState.STOPPED
    world.on_query.append(lambda query: setattr(query, "on_stop", world.lose_lease))
    assert world.run_query() is Action.STAND_BY
    assert world.states == []


def test_a_stop_ends_a_query_that_waits_for_its_first_epoch() -> None:
    world = World(SERVICE)
    world.on_query.append(lambda query: setattr(query, "is_busy", False))
    world.clock.at(1, world.desire(DesiredState.STOPPED))
    assert world.run_query() is Action.FINISH
    assert world.query.ends == ["stop and wait"]
    assert world.states == ["not running"]


def test_a_stop_does_not_wait_for_the_epoch() -> None:
    world = World(SERVICE)
    world.desired = DesiredState.STOPPED
    assert world.run_query() is Action.FINISH
    assert world.query.ends == ["stop and wait"]
    assert world.clock.now_s == 0


def test_a_failed_query_is_started_again_after_a_growing_delay() -> None:
    world = World(SERVICE)
    world.on_query += [lambda query: query.fail(WORLD_ERROR)] * 3
    committing(world, at_s=20)
    world.clock.at(21, world.desire(DesiredState.STOPPED))
    assert world.run_query() is Action.FINISH
    assert len(world.queries) == 4
    assert world.failures == 3
    assert world.states == [*["failed", "starting"] * 3, "running", "not running"]
    assert world.recorded[0][1] == "Spanner answered UNAVAILABLE."


def test_the_delay_begins_again_after_an_epoch() -> None:
    world = World(SERVICE)
    starts: list[float] = []

    def fail(query: FakeQuery) -> None:
        starts.append(world.clock.now_s)
        query.fail(WORLD_ERROR)

    def commit_and_fail(query: FakeQuery) -> None:
        query.committed = 1
        fail(query)

    world.on_query += [fail, fail, commit_and_fail, fail]
    world.clock.at(30, world.desire(DesiredState.STOPPED))
    world.run_query()
    waits = [round(after - before) for before, after in pairwise(starts)]
    assert waits == [1, 2, 1]


def test_three_failures_in_a_row_end_a_run_until_caught_up() -> None:
    world = World(ONCE)
    world.on_query += [lambda query: query.fail(WORLD_ERROR)] * 3
    with pytest.raises(PipelineFailedError, match="UNAVAILABLE") as raised:
        world.run_query()
    assert not raised.value.user_error
    assert len(world.queries) == 3


def test_a_permanent_failure_is_not_tried_again_and_names_the_remedy() -> None:
    world = World(SERVICE)
    world.on_query.append(
        lambda query: query.fail(
            StartTooOldError("it is too old.", "Do `slackwater run --skip-to earliest`")
        )
    )
    with pytest.raises(PipelineFailedError, match="too old") as raised:
        world.run_query()
    assert raised.value.user_error
    assert raised.value.hint.count("`slackwater resume -c orders.yaml --skip-to earliest`") == 1
    assert len(world.queries) == 1


def test_a_failure_while_a_drain_is_desired_is_not_tried_again() -> None:
    world = World(SERVICE)
    world.desired = DesiredState.DRAINING
    world.on_query.append(lambda query: world.clock.at(1, lambda: query.fail(WORLD_ERROR)))
    assert world.run_query() is Action.FINISH
    assert world.states == ["draining", "failed", "not running"]
    assert len(world.queries) == 1


def test_a_failure_while_paused_is_recorded_and_the_pause_holds() -> None:
    world = World(SERVICE)
    committing(world)
    world.clock.at(2, world.desire(DesiredState.PAUSED))
    world.clock.at(4, lambda: world.query.fail(WORLD_ERROR))
    assert world.run_query() is Action.WAIT
    assert world.states == ["running", "paused", "failed", "paused"]


@pytest.mark.parametrize("desired", list(DesiredState))
def test_a_lost_lease_ends_the_query_whatever_is_desired(desired: DesiredState) -> None:
    world = World(SERVICE)
    world.desired = desired
    world.on_query.append(lambda query: world.lose_lease())
    assert world.run_query() is Action.STAND_BY
    assert world.query.ends == ["stop"]
    assert world.states == [], "what a former owner does is not recorded"


def test_a_lease_that_is_lost_while_draining_leaves_the_state_to_the_new_owner() -> None:
    world = World(SERVICE)
    world.desired = DesiredState.DRAINING
    world.clock.at(1, world.lose_lease)
    assert world.run_query() is Action.STAND_BY
    assert world.states == ["draining"]


def test_a_lease_that_is_lost_while_waiting_to_try_again_starts_nothing() -> None:
    world = World(SERVICE)
    world.on_query.append(lambda query: query.fail(WORLD_ERROR))
    world.clock.at(0.5, world.lose_lease)
    assert world.run_query() is Action.STAND_BY
    assert len(world.queries) == 1
    assert world.states == ["failed"]


def test_a_query_that_fails_for_the_lost_lease_is_no_failure() -> None:
    world = World(RunMode())
    world.on_query.append(lambda query: query.fail(LeaseLostError("another process owns it.")))
    assert world.run_query() is Action.RAISE
    assert world.failures == 0
    assert world.states == []


def test_a_store_that_records_no_state_does_not_keep_the_query_from_running() -> None:
    world = World(SERVICE)
    world.is_reachable = False
    committing(world)
    world.clock.at(3, lambda: setattr(world, "is_reachable", True))
    world.clock.at(4, world.desire(DesiredState.STOPPED))
    assert world.run_query() is Action.FINISH
    assert world.lifecycle.state is State.NOT_RUNNING
    assert world.states == ["not running"]
