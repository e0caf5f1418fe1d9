"""What a pipeline does whose Spark is of no use any more, without Spark and in no time."""

import itertools
from collections.abc import Callable
from functools import partial

import pytest

from slackwater.pipeline.transitions import Action, RunMode, State
from slackwater.state.models import DesiredState
from tests.support.pipeline_fakes import Life, World
from tests.unit.pipeline.test_run_loop import (
    EXITS,
    GIVEN_UP,
    LEFT,
    ONCE,
    PAUSED,
    RUNNING,
    SERVICE,
    TRIED,
    USER_ERROR,
    WORLD_ERROR,
)

ENDED, USELESS = "Spark's JVM has ended.", "Spark runs no job any more."


def lose_spark(world: World) -> None:
    world.loss = ENDED
    raise WORLD_ERROR


def lose_spark_by_defect(world: World) -> None:
    world.loss = ENDED
    raise AssertionError("no Spark")


def lose_spark_by_user(world: World) -> None:
    world.loss = ENDED
    raise USER_ERROR


def fail_on_useless_spark(world: World) -> None:
    world.loss = USELESS
    world.query.fail(WORLD_ERROR)


@pytest.mark.parametrize("loss", [lose_spark, lose_spark_by_defect])
@pytest.mark.parametrize("mode", [SERVICE, EXITS, ONCE])
def test_a_lost_spark_is_started_anew_and_the_lease_taken_again(
    mode: RunMode, loss: Callable[[World], None]
) -> None:
    life = Life(
        mode, Action.START_SPARK, [*TRIED, "starting"], on_start=[loss], failures=1, reason=ENDED
    )
    world = life.lived()
    assert world.lifecycle.state is State.STANDING_BY
    assert world.calls == LEFT
    world.loss = None
    world.clock.at(3, world.desire(DesiredState.STOPPED))
    assert world.run() is Action.FINISH
    assert world.starts == 2


LIVES = {
    "a query that fails because Spark is lost is not started again on it": Life(
        SERVICE,
        Action.START_SPARK,
        [*TRIED, "starting"],
        on_query=[fail_on_useless_spark],
        queries=1,
        failures=1,
        reason=USELESS,
    ),
    "a pause while Spark is lost holds until the resume": Life(
        SERVICE,
        Action.START_SPARK,
        [*TRIED, "paused", "starting"],
        {0.5: PAUSED, 50: RUNNING},
        on_start=[lose_spark],
        failures=1,
    ),
    "a permanent failure does not ask for another Spark": Life(
        EXITS, type(USER_ERROR), GIVEN_UP, on_start=[lose_spark_by_user], failures=1
    ),
}


@pytest.mark.parametrize("life", LIVES.values(), ids=list(LIVES))
def test_a_pipeline_lives_on_with_another_spark_where_that_may_help(life: Life) -> None:
    life.lived()


def test_a_spark_that_is_lost_again_and_again_is_started_after_growing_delays() -> None:
    world = World(SERVICE)
    begun_s = []
    for _ in range(4):
        world.on_start.append(partial(lose_spark, world))
        begun_s.append(world.clock.now_s)
        assert world.run() is Action.START_SPARK
    delays = [after - before for before, after in itertools.pairwise(begun_s)]
    assert delays == pytest.approx([1, 2, 4], abs=0.2)


def test_a_run_until_caught_up_starts_spark_twice_more_and_then_fails() -> None:
    world = World(ONCE)
    world.on_start += [partial(lose_spark, world)] * 3
    assert world.run() is Action.START_SPARK
    assert world.run() is Action.START_SPARK
    with pytest.raises(type(WORLD_ERROR)):
        world.run()
    assert world.recorded[-1] == ("failed permanently", ENDED)
