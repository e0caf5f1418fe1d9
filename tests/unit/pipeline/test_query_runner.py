"""A query is watched, drained, paused, stopped and tried again, without Spark and in no time."""

from dataclasses import replace
from itertools import pairwise

import pytest

from slackwater.errors import PipelineFailedError
from slackwater.pipeline.transitions import Action, RunMode, State
from slackwater.reader.errors import StartTooOldError
from slackwater.state.errors import LeaseLostError, StoreUnreachableError
from slackwater.state.models import DesiredState, PipelineState
from tests.support.pipeline_fakes import FakeQuery, Life, World
from tests.unit.pipeline.test_run_loop import (
    DRAINING,
    FINISH,
    ONCE,
    PAUSED,
    RUNNING,
    SERVICE,
    STAND_BY,
    STOPPED,
    WORLD_ERROR,
    commit,
)

WAITED_FOR = ["stop and wait"]


def rest(world: World) -> None:
    world.query.is_busy = False


def work(world: World) -> None:
    world.query.is_busy = True


def end(world: World) -> None:
    world.query.is_active = False


def reach_end(world: World) -> None:
    world.has_reached_end = True


def fail(world: World) -> None:
    world.query.fail(WORLD_ERROR)


def lose_lease_when_stopped(world: World) -> None:
    world.query.on_stop = world.lose_lease


LIVES = {
    "one that reaches the end finishes the run": Life(
        ONCE,
        FINISH,
        ["running", "not running"],
        {1: commit, 2: reach_end},
        query_ends=WAITED_FOR,
    ),
    "one that ends by itself finishes the run": Life(
        SERVICE, FINISH, ["not running"], on_query=[end]
    ),
    "one that is paused stays and goes on at once": Life(
        SERVICE,
        FINISH,
        ["running", "paused", "starting", "running", "not running"],
        {1: commit, 2: PAUSED, 10: RUNNING, 11: commit, 12: STOPPED},
        queries=1,
        query_ends=WAITED_FOR,
    ),
    "a paused one that looks for an epoch stays paused": Life(
        SERVICE,
        FINISH,
        ["running", "paused", "not running"],
        {1: commit, 2: PAUSED, 3: work, 4: rest, 6: STOPPED},
    ),
    "a pause lets the running epoch finish first, which is recorded": Life(
        SERVICE,
        FINISH,
        ["running", "draining", "paused", "not running"],
        {1: commit, 2: work, 3: PAUSED, 5: commit, 6: STOPPED},
        epochs=2,
    ),
    "a pause before the first epoch ends it": Life(
        SERVICE,
        Action.WAIT,
        ["draining", "paused"],
        {3: rest},
        desired=PAUSED,
        query_ends=WAITED_FOR,
    ),
    "a pause of a run until caught up ends it as refused": Life(
        ONCE, Action.REFUSE, ["running", "draining", "not running"], {1: commit, 2: PAUSED}
    ),
    "a resume while draining goes on": Life(
        SERVICE,
        FINISH,
        ["draining", "starting", "not running"],
        {1: RUNNING, 2: STOPPED},
        desired=PAUSED,
    ),
    "a stop ends one that waits for its first epoch": Life(
        SERVICE, FINISH, ["not running"], {0.5: rest, 1: STOPPED}, query_ends=WAITED_FOR
    ),
    "a failed one is started again after a growing delay": Life(
        SERVICE,
        FINISH,
        [*["failed", "starting"] * 3, "running", "not running"],
        {20: commit, 21: STOPPED},
        on_query=[WORLD_ERROR] * 3,
        queries=4,
        failures=3,
        reason="Spanner answered UNAVAILABLE.",
    ),
    "a failure while a drain is desired is not tried again": Life(
        SERVICE,
        FINISH,
        ["draining", "failed", "not running"],
        {1: fail},
        desired=DRAINING,
        queries=1,
        failures=1,
    ),
    "a failure while paused is recorded and the pause holds": Life(
        SERVICE,
        Action.WAIT,
        ["running", "paused", "failed", "paused"],
        {1: commit, 2: PAUSED, 4: fail},
        failures=1,
    ),
    "a lease that is lost while it stops leaves the state to the new owner": Life(
        SERVICE, STAND_BY, [], desired=STOPPED, on_query=[lose_lease_when_stopped]
    ),
    "a lease that is lost while draining leaves the state to the new owner": Life(
        SERVICE, STAND_BY, ["draining"], {1: World.lose_lease}, desired=DRAINING
    ),
    "a lease that is lost while waiting to try again starts nothing": Life(
        SERVICE,
        STAND_BY,
        ["failed"],
        {0.5: World.lose_lease},
        on_query=[WORLD_ERROR],
        queries=1,
        failures=1,
    ),
    "one that fails for the lost lease is no failure": Life(
        RunMode(), Action.RAISE, [], on_query=[LeaseLostError("another process owns it.")]
    ),
    **{
        f"a lost lease ends it when {desired.value} is desired": Life(
            SERVICE,
            STAND_BY,
            [],
            desired=desired,
            on_query=[World.lose_lease],
            query_ends=["stop"],
        )
        for desired in DesiredState
    },
}


@pytest.mark.parametrize("life", LIVES.values(), ids=list(LIVES))
def test_a_query_lives_as_desired(life: Life) -> None:
    life.lived(World.run_query)


def test_a_signal_while_paused_closes_the_source_and_ends_the_query() -> None:
    states = ["running", "paused", "draining", "not running"]
    life = Life(SERVICE, FINISH, states, {1: commit, 2: PAUSED, 4: DRAINING}, query_ends=WAITED_FOR)
    assert life.lived(World.run_query).calls == ["close source"]


def test_a_drain_closes_the_source_again_and_again_until_the_epoch_ends() -> None:
    life = Life(SERVICE, FINISH, ["draining", "not running"], {1: commit}, desired=DRAINING)
    # The epoch is the run's last, and is recorded.
    world = replace(life, epochs=1).lived(World.run_query)
    assert len(world.calls) > 10
    assert set(world.calls) == {"close source"}


def test_an_epoch_that_begins_at_the_last_moment_is_met_by_a_closed_source() -> None:
    """Between the question whether the query is idle and its end, Spark may trigger once more."""
    world = World(SERVICE)
    world.clock.at(1, lambda: commit(world))
    world.clock.at(2, world.desire(DRAINING))

    def trigger(name: str, state: PipelineState, reason: str, since_ns: int) -> None:
        if state is PipelineState.DRAINING and "close source" not in world.calls:
            world.query.is_busy = True
            begun.append("epoch")

    begun: list[str] = []
    world.set_state = trigger  # type: ignore[method-assign]
    assert world.run_query() is FINISH
    assert begun == []
    assert world.query.ends == WAITED_FOR, "a second guard"


def test_what_is_desired_is_read_once_in_a_look() -> None:
    """A signal that comes after the look at an idle, paused query has the source closed first."""
    world = World(SERVICE)
    world.clock.at(2, world.desire(PAUSED))
    asked: list[DesiredState] = []

    class Signalled(FakeQuery):
        @property
        def is_busy(self) -> bool:
            asked.append(world.desired)
            world.desired = DRAINING
            assert asked == [PAUSED] or "close source" in world.calls
            return False

        @is_busy.setter
        def is_busy(self, is_busy: bool) -> None:
            pass

    query = Signalled()
    world.queries.append(query)
    world._start_query = lambda: query  # type: ignore[method-assign]
    world.clock.at(1, query.commit)
    assert world.run_query() is FINISH
    assert asked == [PAUSED, DRAINING]


def test_a_source_that_can_not_be_closed_leaves_no_query_behind() -> None:
    world = World(SERVICE)
    world.desired = DRAINING

    def unreachable() -> None:
        raise StoreUnreachableError("the store does not answer.")

    world.close_source = unreachable  # type: ignore[method-assign]
    with pytest.raises(StoreUnreachableError):
        world.run_query()
    assert world.query.ends == WAITED_FOR


def test_a_stop_does_not_wait_for_the_epoch() -> None:
    life = Life(SERVICE, FINISH, ["not running"], desired=STOPPED, query_ends=WAITED_FOR)
    assert life.lived(World.run_query).clock.now_s == 0


def test_the_delay_begins_again_after_an_epoch() -> None:
    world = World(SERVICE)
    starts: list[float] = []

    def fail_at_once(query: FakeQuery) -> None:
        starts.append(world.clock.now_s)
        query.fail(WORLD_ERROR)

    def commit_and_fail(query: FakeQuery) -> None:
        query.committed = 1
        fail_at_once(query)

    world.on_query += [fail_at_once, fail_at_once, commit_and_fail, fail_at_once]
    world.clock.at(30, world.desire(STOPPED))
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
    error = StartTooOldError("it is too old.", "Do `slackwater run --skip-to earliest`")
    world.on_query.append(lambda query: query.fail(error))
    with pytest.raises(PipelineFailedError, match="too old") as raised:
        world.run_query()
    assert raised.value.user_error
    assert raised.value.hint.count("`slackwater resume -c orders.yaml --skip-to earliest`") == 1
    assert len(world.queries) == 1


def test_a_store_that_records_no_state_does_not_keep_the_query_from_running() -> None:
    def lose_store(world: World) -> None:
        world.is_reachable = False

    def find_store(world: World) -> None:
        world.is_reachable = True

    life = Life(
        SERVICE,
        FINISH,
        ["not running"],
        {1: commit, 3: find_store, 4: STOPPED},
        on_query=[lose_store],
    )
    assert life.lived(World.run_query).lifecycle.state is State.NOT_RUNNING
