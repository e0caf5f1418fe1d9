"""The status of a pipeline in an outage of Spanner's: right at once, and with the true reason."""

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slackwater.monitoring.epoch_history import EpochHistory
from slackwater.monitoring.status import StatusPoller
from slackwater.pipeline.spanner_clock import SpannerClock
from slackwater.state.commit import restart_at
from slackwater.state.errors import StoreUnreachableError
from slackwater.state.models import PipelineState
from slackwater.state.store import Store

SECOND_NS = 10**9
OUTAGE_S = 180


class Scene:
    """A poller of one pipeline, whose epochs a test commits, on a simulated clock of Spanner's."""

    def __init__(self, store: Store) -> None:
        self.now_s = 1_000.0
        self.store = store
        self.clock = SpannerClock(
            lambda: round(self.now_s * SECOND_NS),
            time_ns=lambda: round(self.now_s * SECOND_NS),
            monotonic_s=lambda: self.now_s,
        )
        self.supervisor = SimpleNamespace(
            name="orders",
            store=store,
            clock=self.clock,
            lease=SimpleNamespace(is_held=True, unrenewed_s=None),
            settings=SimpleNamespace(source=SimpleNamespace(service="Spanner")),
            source=SimpleNamespace(retention_ns=86_400 * SECOND_NS),
            stands_by=False,
            unrecorded=None,
        )
        self.poller = StatusPoller(cast(Any, self.supervisor), EpochHistory(), lambda *_: None)

    def commit(self) -> None:
        restart_at(self.store, "orders", round(self.now_s * SECOND_NS), [])

    def after(self, seconds: float) -> str | None:
        """Let time pass, poll as the poller does, and return why the pipeline is not ready."""
        self.now_s += seconds
        self.poller.poll()
        return self.poller.status().unready_reason()

    def lag_s(self) -> float:
        lag_ns = self.poller.status().lag_ns
        assert lag_ns is not None
        return lag_ns / SECOND_NS


@pytest.fixture
def scene(orders_store: Store) -> Scene:
    return Scene(orders_store)


def test_the_first_epoch_after_three_minutes_makes_it_ready_though_the_clock_is_still_asked(
    scene: Scene,
) -> None:
    scene.clock.read()
    scene.commit()
    assert scene.after(1) is None
    reasons = [scene.after(3) for _ in range(0, OUTAGE_S, 3)]
    assert reasons[3] is None
    # The clock's own question is not answered before the first epoch is: it may take half a minute.
    assert reasons[20] == "Spanner has not answered for 64 s"
    assert reasons[-1] == "Spanner has not answered for 181 s"
    assert scene.lag_s() == pytest.approx(181)
    scene.commit()
    assert scene.after(1) is None
    assert scene.lag_s() == pytest.approx(1)
    # Only an epoch shows that Spanner answers.
    assert [scene.after(3) for _ in range(13)][-1] == "Spanner has not answered for 39 s"


def test_a_store_that_does_not_answer_is_named_and_not_spanner(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.clock.read()
    scene.commit()
    assert scene.after(0) is None

    def away(name: str) -> None:
        raise StoreUnreachableError("the store does not answer.")

    monkeypatch.setattr(scene.store, "pipeline", away)
    with pytest.raises(StoreUnreachableError):
        scene.poller.poll()
    polled_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: polled_s + 17)
    reason = scene.poller.status().unready_reason()
    assert reason == "the metadata store has not answered for 17 s"


def test_a_poll_asks_only_the_store(scene: Scene) -> None:
    answer = threading.Event()
    asking = threading.Thread(target=answer.wait)
    scene.clock._read_ns = lambda: asking.join() or 0  # type: ignore[func-returns-value]
    asking.start()
    looking = threading.Thread(target=scene.clock.read)
    looking.start()
    scene.commit()
    assert scene.after(1) is None
    assert looking.is_alive()
    answer.set()
    looking.join()


def test_a_failure_that_the_store_can_not_be_told_makes_it_unready(scene: Scene) -> None:
    """The disk of the store is full: it is read as before, and its last state was running."""
    scene.clock.read()
    scene.commit()
    assert scene.after(1) is None
    scene.supervisor.unrecorded = (PipelineState.FAILED, "database or disk is full")
    assert scene.after(1) == "failed: database or disk is full"
    scene.supervisor.unrecorded = None
    assert scene.after(1) is None
    # Nothing has failed yet: what writes tries again.
    scene.supervisor.lease.unrenewed_s = 20.0
    assert scene.after(1) == "the metadata store has not answered for 20 s"
