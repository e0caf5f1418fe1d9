"""A pipeline is owned, started, paused, failed and left, without Spark and in no time."""

from __future__ import annotations

from collections.abc import Callable

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
from tests.support.pipeline_fakes import World

SERVICE = RunMode(stays=True, stands_by=True)
EXITS = RunMode()
ONCE = RunMode(until_caught_up=True)
LEFT = ["start looking", "stop looking", "release"]


def raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def world_error() -> Exception:
    return UnavailableError("Spanner answered UNAVAILABLE.")


def user_error() -> Exception:
    return NotFoundError("there is no change stream.", "Create it")


def test_a_pipeline_is_owned_run_and_left() -> None:
    world = World(EXITS)
    world.clock.at(1, lambda: world.query.commit())
    world.clock.at(2, world.desire(DesiredState.DRAINING))
    assert world.run() is Action.FINISH
    assert world.states == ["starting", "running", "draining", "not running"]
    assert [call for call in world.calls if call != "close source"] == LEFT


def test_a_standby_that_is_to_end_leaves_nothing_in_the_store() -> None:
    world = World(SERVICE)
    world.is_owned_elsewhere = True
    world.clock.at(3, world.desire(DesiredState.DRAINING))
    assert world.run() is Action.FINISH
    assert world.lifecycle.state is State.EXITED
    assert world.states == []
    assert world.starts == 0


def test_a_standby_takes_over() -> None:
    world = World(SERVICE)
    world.is_owned_elsewhere = True
    world.clock.at(3, lambda: setattr(world, "is_owned_elsewhere", False))
    world.clock.at(5, world.desire(DesiredState.STOPPED))
    assert world.run() is Action.FINISH
    assert world.states == ["starting", "not running"]


def test_a_paused_pipeline_starts_nothing_until_it_is_resumed() -> None:
    world = World(EXITS)
    world.desired = DesiredState.PAUSED
    world.clock.at(5, world.desire(DesiredState.RUNNING))
    world.clock.at(6, world.desire(DesiredState.STOPPED))
    assert world.run() is Action.FINISH
    assert world.states == ["paused", "starting", "not running"]
    assert world.starts == 1


def test_a_paused_pipeline_that_is_drained_starts_nothing() -> None:
    world = World(EXITS)
    world.desired = DesiredState.PAUSED
    world.clock.at(5, world.desire(DesiredState.DRAINING))
    assert world.run() is Action.FINISH
    assert world.starts == 0


def test_a_run_until_caught_up_refuses_a_paused_pipeline() -> None:
    world = World(ONCE)
    world.desired = DesiredState.PAUSED
    with pytest.raises(PipelinePausedError, match="is paused"):
        world.run()
    assert world.starts == 0
    assert world.states == ["not running"]
    assert world.calls == LEFT


@pytest.mark.parametrize("desired", [DesiredState.STOPPED, DesiredState.DRAINING])
def test_a_run_until_caught_up_ends_when_it_is_asked_to(desired: DesiredState) -> None:
    world = World(ONCE)
    world.on_query.append(lambda query: query.fail(world_error()))
    world.clock.at(0.5, world.desire(desired))
    assert world.run() is Action.FINISH
    assert world.states == ["starting", "failed", "not running"]


def test_a_failure_to_start_ends_a_process_that_does_not_stay() -> None:
    world = World(EXITS)
    world.on_start.append(raising(world_error()))
    with pytest.raises(UnavailableError):
        world.run()
    assert world.recorded[-1] == ("failed", "Spanner answered UNAVAILABLE.")
    assert world.failures == 1
    assert world.calls == LEFT


def test_a_permanent_failure_ends_a_process_that_does_not_stay() -> None:
    world = World(EXITS)
    world.on_start.append(raising(user_error()))
    with pytest.raises(NotFoundError):
        world.run()
    assert world.recorded[-1] == ("failed permanently", "there is no change stream. Create it")


class JavaError(PySparkException):
    """Spark's, whose text is asked of the JVM; as long as that runs."""

    jvm_runs = True

    def __str__(self) -> str:
        first = "An error occurred while calling o7.exists."
        return f"{first}\n: java.io.IOException: no answer\n\tat a.b()" if self.jvm_runs else first


def test_a_spark_error_is_readable_when_the_jvm_has_stopped() -> None:
    world = World(EXITS)
    error = JavaError("")
    world.on_start.append(raising(error))
    with pytest.raises(PipelineFailedError) as caught:
        world.run()
    error.jvm_runs = False
    assert text_of(caught.value) == "java.io.IOException: no answer"
    assert exit_code(caught.value) == 1
    assert world.recorded[-1] == ("failed", "java.io.IOException: no answer")


def test_a_failure_to_start_is_tried_again_after_a_growing_delay_where_the_process_stays() -> None:
    world = World(SERVICE)
    world.on_start += [raising(world_error())] * 3
    world.clock.at(20, world.desire(DesiredState.STOPPED))
    assert world.run() is Action.FINISH
    assert world.starts == 4
    assert world.failures == 3
    assert world.states == [*["starting", "failed"] * 3, "starting", "not running"]


def test_a_permanent_failure_waits_for_an_operator_and_a_resume_starts_again() -> None:
    world = World(SERVICE)
    world.on_start.append(raising(user_error()))
    world.clock.at(60, world.desire(DesiredState.RUNNING))
    world.clock.at(62, world.desire(DesiredState.STOPPED))
    assert world.run() is Action.FINISH
    assert world.states == ["starting", "failed permanently", "starting", "not running"]
    assert "await operator" in world.calls
    assert world.starts == 2


@pytest.mark.parametrize("stands_by", [True, False])
def test_a_former_owners_permanent_failure_does_not_stop_the_new_owner(*, stands_by: bool) -> None:
    world = World(RunMode(stays=True, stands_by=stands_by))

    def fail() -> None:
        # Not noticed yet.
        world.is_lost = lambda: False  # type: ignore[method-assign]
        world.lose_lease()
        raise user_error()

    world.on_start.append(fail)
    if stands_by:
        assert world.run() is Action.STAND_BY
    else:
        with pytest.raises(LeaseLostError):
            world.run()
    assert world.states == ["starting"]
    assert "await operator" not in world.calls


def test_a_query_that_was_given_up_is_counted_as_one_failure() -> None:
    world = World(SERVICE)
    world.on_query.append(lambda query: query.fail(user_error()))
    world.clock.at(10, world.desire(DesiredState.STOPPED))
    assert world.run() is Action.FINISH
    assert world.failures == 1
    state, reason = world.recorded[1]
    assert state == "failed permanently"
    assert reason.startswith("the pipeline failed: there is no change stream.")


@pytest.mark.parametrize("is_given_up", [True, False])
def test_a_full_disk_is_named_once_in_the_reason(
    monkeypatch: pytest.MonkeyPatch, *, is_given_up: bool
) -> None:
    full = Disk("sink.path", "/data", 0, is_read_only=False)
    monkeypatch.setattr(lifecycle, "disks_of", lambda places: [full])
    world, error = World(SERVICE), SettingsError("No space left on device.")
    if is_given_up:
        world.on_query.append(lambda query: query.fail(error))
    else:
        world.on_start.append(raising(error))
    world.clock.at(10, world.desire(DesiredState.STOPPED))
    assert world.run() is Action.FINISH
    [reason] = [reason for _, reason in world.recorded if reason]
    assert reason.count("make room there") == 1


def test_a_stop_while_failed_permanently_ends_the_run() -> None:
    world = World(SERVICE)
    world.on_start.append(raising(user_error()))
    world.clock.at(5, world.desire(DesiredState.STOPPED))
    assert world.run() is Action.FINISH
    assert world.states == ["starting", "failed permanently", "not running"]


def test_a_pause_while_failed_permanently_is_obeyed() -> None:
    world = World(SERVICE)
    world.on_start.append(raising(user_error()))
    world.clock.at(5, world.desire(DesiredState.PAUSED))
    world.clock.at(9, world.desire(DesiredState.STOPPED))
    assert world.run() is Action.FINISH
    assert world.states == ["starting", "failed permanently", "paused", "not running"]


@pytest.mark.parametrize("desired", [DesiredState.STOPPED, DesiredState.DRAINING])
def test_a_request_to_end_while_failed_does_not_wait_for_the_delay(desired: DesiredState) -> None:
    world = World(SERVICE)
    world.on_start += [raising(world_error())] * 6
    # The sixth delay is 32 seconds, and begins at second 31.
    world.clock.at(40, world.desire(desired))
    assert world.run() is Action.FINISH
    assert world.clock.now_s < 41
    assert world.states[-2:] == ["failed", "not running"]


def test_a_pause_while_failed_holds_until_the_resume() -> None:
    world = World(SERVICE)
    world.on_start.append(raising(world_error()))
    world.clock.at(0.5, world.desire(DesiredState.PAUSED))
    world.clock.at(50, world.desire(DesiredState.RUNNING))
    world.clock.at(52, world.desire(DesiredState.STOPPED))
    assert world.run() is Action.FINISH
    assert world.states == ["starting", "failed", "paused", "starting", "not running"]


def test_a_permanent_failure_while_a_drain_is_desired_ends_the_run() -> None:
    world = World(SERVICE)

    def fail() -> None:
        world.desired = DesiredState.DRAINING
        raise user_error()

    world.on_start.append(fail)
    assert world.run() is Action.FINISH
    assert world.states == ["starting", "failed permanently", "not running"]


def test_a_pipeline_that_lost_its_lease_stands_by_again() -> None:
    world = World(SERVICE)
    world.clock.at(1, world.lose_lease)
    assert world.run() is Action.STAND_BY
    assert world.states == ["starting"]
    assert world.calls == LEFT
    # The lease is free again.
    world.clock.at(3, world.desire(DesiredState.STOPPED))
    assert world.run() is Action.FINISH
    assert world.starts == 2


def test_a_pipeline_that_lost_its_lease_ends_where_it_is_not_to_stand_by() -> None:
    world = World(EXITS)
    world.clock.at(1, world.lose_lease)
    with pytest.raises(LeaseLostError, match="taken over"):
        world.run()
    assert world.states == ["starting"]
    assert world.lifecycle.state is State.EXITED


@pytest.mark.parametrize("waits_for", [DesiredState.PAUSED, DesiredState.AWAITING_OPERATOR])
def test_a_lease_that_is_lost_while_waiting_for_an_operator_is_noticed(
    waits_for: DesiredState,
) -> None:
    world = World(SERVICE)
    if waits_for is DesiredState.PAUSED:
        world.desired = DesiredState.PAUSED
    else:
        world.on_start.append(raising(user_error()))
    world.clock.at(5, world.lose_lease)
    assert world.run() is Action.STAND_BY
    assert world.states[-1] in ("paused", "failed permanently")


def test_a_lease_that_is_lost_while_waiting_to_try_again_starts_nothing() -> None:
    world = World(SERVICE)
    world.on_start.append(raising(world_error()))
    world.clock.at(0.5, world.lose_lease)
    assert world.run() is Action.STAND_BY
    assert world.starts == 1


def test_a_lease_that_is_lost_unnoticed_during_a_pause_is_noticed_before_the_start() -> None:
    world = World(SERVICE)
    world.desired = DesiredState.PAUSED

    def lose_and_resume() -> None:
        world.is_lost = lambda: False  # type: ignore[method-assign]
        world.lose_lease()
        world.desired = DesiredState.RUNNING

    world.clock.at(5, lose_and_resume)
    assert world.run() is Action.STAND_BY
    assert world.starts == 0


def test_a_store_that_is_out_of_reach_at_the_start_is_a_failure_that_is_tried_again() -> None:
    world = World(SERVICE)
    world.on_start.append(raising(StoreUnreachableError("the store does not answer.")))
    world.clock.at(5, world.desire(DesiredState.STOPPED))
    assert world.run() is Action.FINISH
    assert world.states == ["starting", "failed", "starting", "not running"]


def test_a_state_that_could_not_be_recorded_changes_nothing_of_the_run() -> None:
    world = World(SERVICE)
    world.is_reachable = False
    world.on_start.append(raising(world_error()))
    world.clock.at(5, world.desire(DesiredState.STOPPED))
    assert world.run() is Action.FINISH
    assert world.starts == 2
    assert world.states == []


def test_a_query_given_up_ends_a_run_until_caught_up() -> None:
    world = World(ONCE)
    world.on_query += [lambda query: query.fail(world_error())] * 3
    with pytest.raises(PipelineFailedError):
        world.run()
    assert world.states[-1] == "failed permanently"
    assert world.failures == 3


def test_a_defect_ends_the_run_and_leaves_the_lease() -> None:
    world = World(SERVICE)
    world.on_start.append(raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        world.run()
    assert world.calls == LEFT
