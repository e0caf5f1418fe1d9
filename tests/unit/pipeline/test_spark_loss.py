"""What a pipeline does whose Spark is of no use any more, without Spark and in no time."""

from __future__ import annotations

import itertools

import pytest

from slackwater.pipeline.transitions import Action, RunMode, State
from slackwater.reader.errors import NotFoundError, UnavailableError
from slackwater.state.models import DesiredState
from tests.support.pipeline_fakes import World
from tests.unit.pipeline.test_run_loop import (
    EXITS,
    LEFT,
    ONCE,
    SERVICE,
    raising,
    user_error,
    world_error,
)


@pytest.mark.parametrize("error", [world_error(), AssertionError("no Spark")])
@pytest.mark.parametrize("mode", [SERVICE, EXITS, ONCE])
def test_a_lost_spark_is_started_anew_and_the_lease_taken_again(
    mode: RunMode, error: Exception
) -> None:
    world = World(mode)
    world.loss = "Spark's JVM has ended."
    world.on_start.append(raising(error))
    assert world.run() is Action.START_SPARK
    assert world.lifecycle.state is State.STANDING_BY
    assert world.recorded[1] == ("failed", "Spark's JVM has ended.")
    assert world.failures == 1
    assert world.calls == LEFT
    world.loss = None
    world.clock.at(3, world.desire(DesiredState.STOPPED))
    assert world.run() is Action.FINISH
    assert world.starts == 2


def test_a_query_that_fails_because_spark_is_lost_is_not_started_again_on_it() -> None:
    world = World(SERVICE)
    world.on_query.append(lambda query: query.fail(world_error()))
    world.loss = "Spark runs no job any more."
    assert world.run() is Action.START_SPARK
    assert len(world.queries) == 1
    assert world.recorded[1] == ("failed", "Spark runs no job any more.")
    assert world.failures == 1


def test_a_spark_that_is_lost_again_and_again_is_started_after_growing_delays() -> None:
    world = World(SERVICE)
    world.loss = "Spark's JVM has ended."
    begun_s = []
    for _ in range(4):
        world.on_start.append(raising(world_error()))
        begun_s.append(world.clock.now_s)
        assert world.run() is Action.START_SPARK
    delays = [after - before for before, after in itertools.pairwise(begun_s)]
    assert delays == pytest.approx([1, 2, 4], abs=0.2)


def test_a_run_until_caught_up_starts_spark_twice_more_and_then_fails() -> None:
    world = World(ONCE)
    world.loss = "Spark's JVM has ended."
    world.on_start += [raising(world_error())] * 3
    assert world.run() is Action.START_SPARK
    assert world.run() is Action.START_SPARK
    with pytest.raises(UnavailableError):
        world.run()
    assert world.recorded[-1] == ("failed permanently", "Spark's JVM has ended.")


def test_a_pause_while_spark_is_lost_holds_until_the_resume() -> None:
    world = World(SERVICE)
    world.loss = "Spark's JVM has ended."
    world.on_start.append(raising(world_error()))
    world.clock.at(0.5, world.desire(DesiredState.PAUSED))
    world.clock.at(50, world.desire(DesiredState.RUNNING))
    assert world.run() is Action.START_SPARK
    assert world.clock.now_s >= 50


def test_a_permanent_failure_does_not_ask_for_another_spark() -> None:
    world = World(EXITS)
    world.loss = "Spark's JVM has ended."
    world.on_start.append(raising(user_error()))
    with pytest.raises(NotFoundError):
        world.run()


def test_a_defect_ends_the_run_while_spark_is_of_use() -> None:
    world = World(SERVICE)
    world.on_start.append(raising(AssertionError("a defect")))
    with pytest.raises(AssertionError, match="a defect"):
        world.run()
