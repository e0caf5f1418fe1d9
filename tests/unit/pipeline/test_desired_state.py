"""What an operator and a signal desire together, with a store in memory."""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from slackwater.pipeline import desired_state
from slackwater.pipeline.desired_state import DesiredStatePoller
from slackwater.state.errors import StoreUnreachableError
from slackwater.state.models import DesiredState, Pipeline

RUNNING, PAUSED = DesiredState.RUNNING, DesiredState.PAUSED


class MemoryStore:
    """A store of one pipeline."""

    def __init__(self, desired: DesiredState) -> None:
        self.row = Pipeline("orders", "stream", desired_state=desired)
        self.is_reachable = True
        self.generation = 1
        self.on_read: Callable[[], None] = lambda: None

    @property
    def desired(self) -> DesiredState:
        return self.row.desired_state

    def pipeline(self, name: str) -> Pipeline | None:
        if not self.is_reachable:
            raise StoreUnreachableError("the store does not answer.")
        row = self.row
        self.on_read()
        return row

    def set_desired_state(
        self,
        name: str,
        desired: DesiredState,
        *,
        in_place_of: Collection[DesiredState],
        generation: int,
    ) -> None:
        if not self.is_reachable:
            raise StoreUnreachableError("the store does not answer.")
        if generation == self.generation and self.row.desired_state in in_place_of:
            self.row = replace(self.row, desired_state=desired)


class Scene:
    """A poller that has begun to look."""

    def __init__(self) -> None:
        self.signal = threading.Event()

    def started(self, desired: DesiredState) -> tuple[MemoryStore, DesiredStatePoller]:
        self.store = MemoryStore(desired)
        self.poller = DesiredStatePoller(self.store, "orders", self.signal, lambda: 1)
        self.poller.start()
        return self.store, self.poller


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.store.is_reachable = True
    scene.poller.stop()


@pytest.mark.parametrize("former", [d for d in DesiredState if d is not PAUSED])
def test_a_request_to_a_former_owner_no_longer_counts(scene: Scene, former: DesiredState) -> None:
    store, poller = scene.started(former)
    assert poller.current() is RUNNING
    assert store.desired is RUNNING


def test_a_pause_is_meant_for_the_pipeline(scene: Scene) -> None:
    store, poller = scene.started(PAUSED)
    assert poller.current() is PAUSED
    poller.stop()
    assert store.desired is PAUSED


def test_a_signal_is_a_drain(scene: Scene) -> None:
    for desired in (RUNNING, PAUSED):
        _, poller = scene.started(desired)
        scene.signal.set()
        assert poller.current() is DesiredState.DRAINING
        scene.signal.clear()
        poller.stop()


def test_a_drain_by_signal_closes_the_source_and_leaves_a_pause(scene: Scene) -> None:
    store, poller = scene.started(PAUSED)
    scene.signal.set()
    poller.close_source()
    assert store.desired is PAUSED
    store, poller = scene.started(RUNNING)
    poller.close_source()
    assert store.desired is DesiredState.DRAINING
    poller.stop()
    assert store.desired is RUNNING


def test_a_source_is_closed_for_a_signal_only(scene: Scene) -> None:
    """A pipeline that was resumed at this very moment is not drained."""
    store, poller = scene.started(RUNNING)
    poller.close_source()
    assert store.desired is RUNNING


def test_a_failure_awaits_an_operator_where_none_has_asked_for_anything(scene: Scene) -> None:
    store, poller = scene.started(RUNNING)
    poller.await_operator()
    assert store.desired is poller.current() is DesiredState.AWAITING_OPERATOR
    store, poller = scene.started(PAUSED)
    poller.await_operator()
    assert store.desired is poller.current() is PAUSED


def test_a_store_out_of_reach_does_not_keep_the_process_from_ending(scene: Scene) -> None:
    store, poller = scene.started(RUNNING)
    store.is_reachable = False
    poller.stop()
    assert poller.current() is RUNNING


def test_a_failure_awaits_an_operator_also_while_the_store_is_out_of_reach(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desired_state, "_LOOK_S", 0.01)
    store, poller = scene.started(RUNNING)
    store.is_reachable = False
    poller.await_operator()
    time.sleep(0.05)
    assert poller.current() is DesiredState.AWAITING_OPERATOR
    store.is_reachable = True
    until_s = time.monotonic() + 240
    while store.desired is RUNNING and time.monotonic() < until_s:
        time.sleep(0.01)
    assert store.desired is poller.current() is DesiredState.AWAITING_OPERATOR
    # It is written once: a resume counts.
    store.row = replace(store.row, desired_state=RUNNING)
    while poller.current() is not RUNNING and time.monotonic() < until_s:
        time.sleep(0.01)
    assert store.desired is poller.current() is RUNNING


@pytest.mark.parametrize("requested", [DesiredState.DRAINING, DesiredState.STOPPED])
def test_a_former_owner_takes_back_no_request_to_the_new_one(
    scene: Scene, requested: DesiredState
) -> None:
    store, poller = scene.started(RUNNING)
    store.generation = 2
    store.row = replace(store.row, desired_state=requested)
    poller.stop()
    assert store.desired is requested


def test_a_former_owner_asks_nothing_of_the_new_one(scene: Scene) -> None:
    store, poller = scene.started(RUNNING)
    store.generation = 2
    poller.await_operator()
    assert store.desired is RUNNING
    scene.signal.set()
    poller.close_source()
    assert store.desired is RUNNING


def test_a_look_under_way_at_the_stop_no_longer_counts(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desired_state, "_LOOK_S", 0.01)
    store, poller = scene.started(RUNNING)
    was_read = threading.Event()

    def stop() -> None:
        if not was_read.is_set():
            poller.stop()
            was_read.set()

    store.on_read = stop
    store.row = replace(store.row, desired_state=DesiredState.DRAINING)
    assert was_read.wait(240)
    time.sleep(0.05)
    assert poller.current() is RUNNING


def test_a_signal_is_a_drain_for_a_while_and_then_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1_000.0]
    monkeypatch.setattr(desired_state, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    signal = threading.Event()
    poller = DesiredStatePoller(MemoryStore(RUNNING), "orders", signal, lambda: 1, 60)
    now_s[0] += 500
    assert poller.current() is RUNNING
    signal.set()
    assert poller.current() is DesiredState.DRAINING
    now_s[0] += 59.9
    assert poller.current() is DesiredState.DRAINING
    now_s[0] += 0.1
    assert poller.current() is DesiredState.STOPPED
