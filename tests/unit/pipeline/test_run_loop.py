"""A pipeline is owned, started, paused, failed and left, without Spark and in no time."""

from dataclasses import replace

import pytest
from pyspark.errors import PySparkException

from slackwater.commands.error_texts import exit_code, text_of
from slackwater.errors import PipelineFailedError, PipelinePausedError, SettingsError
from slackwater.pipeline import lifecycle
from slackwater.pipeline.disks import Disk
from slackwater.pipeline.transitions import Action, RunMode, State
from slackwater.reader.errors import NotFoundError, UnavailableError
from slackwater.state.errors import LeaseLostError, StoreUnreachableError
from slackwater.state.models import DesiredState
from tests.support.pipeline_fakes import Life, World

SERVICE = RunMode(stays=True, stands_by=True)
EXITS = RunMode()
ONCE = RunMode(until_caught_up=True)
RUNNING, PAUSED = DesiredState.RUNNING, DesiredState.PAUSED
DRAINING, STOPPED = DesiredState.DRAINING, DesiredState.STOPPED
FINISH, STAND_BY = Action.FINISH, Action.STAND_BY
WORLD_ERROR = UnavailableError("Spanner answered UNAVAILABLE.")
USER_ERROR = NotFoundError("there is no change stream.", "Create it")
NO_STORE = StoreUnreachableError("the store does not answer.")
USERS = "there is no change stream. Create it"
TRIED, GIVEN_UP = ["starting", "failed"], ["starting", "failed permanently"]
LEFT = ["start looking", "stop looking", "release"]


def commit(world: World) -> None:
    world.query.commit()


def free_lease(world: World) -> None:
    world.is_owned_elsewhere = False


def lose_lease_unnoticed(world: World) -> None:
    world.is_lost = lambda: False  # type: ignore[method-assign]
    world.lose_lease()


def resume_without_lease(world: World) -> None:
    lose_lease_unnoticed(world)
    world.desired = RUNNING


def fail_as_former_owner(world: World) -> None:
    lose_lease_unnoticed(world)
    raise USER_ERROR


def fail_while_draining(world: World) -> None:
    world.desired = DRAINING
    raise USER_ERROR


LIVES = {
    "it is owned, run and left": Life(
        EXITS,
        FINISH,
        ["starting", "running", "draining", "not running"],
        {1: commit, 2: DRAINING},
    ),
    "a standby that is to end leaves nothing in the store": Life(
        SERVICE, FINISH, [], {3: DRAINING}, is_owned_elsewhere=True, starts=0
    ),
    "a standby takes over": Life(
        SERVICE,
        FINISH,
        ["starting", "not running"],
        {3: free_lease, 5: STOPPED},
        is_owned_elsewhere=True,
    ),
    "a paused one starts nothing until it is resumed": Life(
        EXITS,
        FINISH,
        ["paused", "starting", "not running"],
        {5: RUNNING, 6: STOPPED},
        desired=PAUSED,
    ),
    "a paused one that is drained starts nothing": Life(
        EXITS, FINISH, ["paused", "not running"], {5: DRAINING}, desired=PAUSED, starts=0
    ),
    "a run until caught up refuses a paused one": Life(
        ONCE, PipelinePausedError, ["not running"], desired=PAUSED, starts=0
    ),
    "a run until caught up stops when it is asked to": Life(
        ONCE, FINISH, [*TRIED, "not running"], {0.5: STOPPED}, on_query=[WORLD_ERROR], failures=1
    ),
    "a run until caught up drains when it is asked to": Life(
        ONCE, FINISH, [*TRIED, "not running"], {0.5: DRAINING}, on_query=[WORLD_ERROR], failures=1
    ),
    "a query given up ends a run until caught up": Life(
        ONCE,
        PipelineFailedError,
        [*TRIED * 2, *GIVEN_UP],
        on_query=[WORLD_ERROR] * 3,
        failures=3,
        reason="the pipeline failed",
    ),
    "a failure to start ends a process that does not stay": Life(
        EXITS,
        UnavailableError,
        TRIED,
        on_start=[WORLD_ERROR],
        failures=1,
        reason=str(WORLD_ERROR),
    ),
    "a permanent failure ends a process that does not stay": Life(
        EXITS, NotFoundError, GIVEN_UP, on_start=[USER_ERROR], failures=1, reason=USERS
    ),
    "a failure to start is tried again after a growing delay where the process stays": Life(
        SERVICE,
        FINISH,
        [*TRIED * 3, "starting", "not running"],
        {20: STOPPED},
        on_start=[WORLD_ERROR] * 3,
        starts=4,
        failures=3,
    ),
    "a resume starts one again that awaits an operator": Life(
        SERVICE,
        FINISH,
        [*GIVEN_UP, "starting", "not running"],
        {60: RUNNING, 62: STOPPED},
        on_start=[USER_ERROR],
        starts=2,
        failures=1,
    ),
    "a query that was given up is counted as one failure": Life(
        SERVICE,
        FINISH,
        [*GIVEN_UP, "not running"],
        {10: STOPPED},
        on_query=[USER_ERROR],
        failures=1,
        reason="the pipeline failed: there is no change stream.",
    ),
    "a stop while failed permanently ends the run": Life(
        SERVICE,
        FINISH,
        [*GIVEN_UP, "not running"],
        {5: STOPPED},
        on_start=[USER_ERROR],
        failures=1,
    ),
    "a pause while failed permanently is obeyed": Life(
        SERVICE,
        FINISH,
        [*GIVEN_UP, "paused", "not running"],
        {5: PAUSED, 9: STOPPED},
        on_start=[USER_ERROR],
        failures=1,
    ),
    "a pause while failed holds until the resume": Life(
        SERVICE,
        FINISH,
        [*TRIED, "paused", "starting", "not running"],
        {0.5: PAUSED, 50: RUNNING, 52: STOPPED},
        on_start=[WORLD_ERROR],
        starts=2,
        failures=1,
    ),
    "a permanent failure while a drain is desired ends the run": Life(
        SERVICE, FINISH, [*GIVEN_UP, "not running"], on_start=[fail_while_draining], failures=1
    ),
    "a store out of reach at the start is a failure that is tried again": Life(
        SERVICE,
        FINISH,
        [*TRIED, "starting", "not running"],
        {5: STOPPED},
        on_start=[NO_STORE],
        starts=2,
        failures=1,
    ),
    "a lost lease ends it where it is not to stand by": Life(
        EXITS, LeaseLostError, ["starting"], {1: World.lose_lease}
    ),
    "a lease that is lost while paused is noticed": Life(
        SERVICE, STAND_BY, ["paused"], {5: World.lose_lease}, desired=PAUSED, starts=0
    ),
    "a lease that is lost while awaiting an operator is noticed": Life(
        SERVICE,
        STAND_BY,
        GIVEN_UP,
        {5: World.lose_lease},
        on_start=[USER_ERROR],
        failures=1,
    ),
    "a lease that is lost while waiting to try again starts nothing": Life(
        SERVICE,
        STAND_BY,
        TRIED,
        {0.5: World.lose_lease},
        on_start=[WORLD_ERROR],
        failures=1,
    ),
    "a lease that is lost unnoticed during a pause is noticed before the start": Life(
        SERVICE, STAND_BY, ["paused"], {5: resume_without_lease}, desired=PAUSED, starts=0
    ),
    "a former owner's permanent failure does not stop the new owner": Life(
        SERVICE, STAND_BY, ["starting"], on_start=[fail_as_former_owner], failures=1
    ),
    "nor that of one which does not stand by": Life(
        RunMode(stays=True),
        LeaseLostError,
        ["starting"],
        on_start=[fail_as_former_owner],
        failures=1,
    ),
    "a defect ends the run and leaves the lease": Life(
        SERVICE, ZeroDivisionError, ["starting"], on_start=[ZeroDivisionError()]
    ),
}


@pytest.mark.parametrize("life", LIVES.values(), ids=list(LIVES))
def test_a_pipeline_lives_as_desired_and_leaves_its_lease(life: Life) -> None:
    world = life.lived()
    others = ("close source", "await operator", "stand by")
    calls = [call for call in world.calls if call not in others]
    assert calls == (LEFT if world.states else ["release"])
    awaits_operator = "failed permanently" in world.states and life.mode.stays
    assert ("await operator" in world.calls) == awaits_operator
    if world.states == [] or life.ends is LeaseLostError:
        assert world.lifecycle.state is State.EXITED


class JavaError(PySparkException):
    """Spark's, whose text is asked of the JVM; as long as that runs."""

    jvm_runs = True

    def __str__(self) -> str:
        first = "An error occurred while calling o7.exists."
        return f"{first}\n: java.io.IOException: no answer\n\tat a.b()" if self.jvm_runs else first


def test_a_spark_error_is_readable_when_the_jvm_has_stopped() -> None:
    world = World(EXITS)
    error = JavaError("")

    def fail() -> None:
        raise error

    world.on_start.append(fail)
    with pytest.raises(PipelineFailedError) as caught:
        world.run()
    error.jvm_runs = False
    assert text_of(caught.value) == "java.io.IOException: no answer"
    assert exit_code(caught.value) == 1
    assert world.recorded[-1] == ("failed", "java.io.IOException: no answer")


def test_a_run_that_refuses_a_paused_pipeline_says_how_to_resume_that_one() -> None:
    world = World(ONCE)
    world.desired = PAUSED
    with pytest.raises(PipelinePausedError) as refused:
        world.run()
    assert refused.value.hint == "Resume it: `slackwater resume -c a b`"


FULL = SettingsError("No space left on device.")
ON_FULL_DISK = Life(
    SERVICE,
    FINISH,
    [*GIVEN_UP, "not running"],
    {10: STOPPED},
    failures=1,
    reason="make room there",
)


@pytest.mark.parametrize(
    "life", [replace(ON_FULL_DISK, on_start=[FULL]), replace(ON_FULL_DISK, on_query=[FULL])]
)
def test_a_full_disk_is_named_once_in_the_reason(
    monkeypatch: pytest.MonkeyPatch, life: Life
) -> None:
    disk = Disk("sink.path", "/data", 0, is_read_only=False)
    monkeypatch.setattr(lifecycle, "disks_of", lambda places: [disk])
    [reason] = [reason for _, reason in life.lived().recorded if reason]
    assert reason.count("make room there") == 1


@pytest.mark.parametrize("desired", [STOPPED, DRAINING])
def test_a_request_to_end_while_failed_does_not_wait_for_the_delay(desired: DesiredState) -> None:
    # The sixth delay is 32 seconds, and begins at second 31.
    states = [*TRIED * 6, "not running"]
    life = Life(SERVICE, FINISH, states, {40: desired}, on_start=[WORLD_ERROR] * 6)
    world = replace(life, starts=6, failures=6).lived()
    assert world.clock.now_s < 41


def test_a_pipeline_that_lost_its_lease_stands_by_again() -> None:
    world = Life(SERVICE, STAND_BY, ["starting"], {1: World.lose_lease}).lived()
    # The lease is free again.
    world.clock.at(3, world.desire(STOPPED))
    assert world.run() is FINISH
    assert world.starts == 2


def test_a_state_that_could_not_be_recorded_changes_nothing_of_the_run() -> None:
    def lose_store_and_fail(world: World) -> None:
        world.is_reachable = False
        raise WORLD_ERROR

    life = Life(SERVICE, FINISH, ["starting"], {5: STOPPED}, on_start=[lose_store_and_fail])
    replace(life, starts=2, failures=1).lived()
