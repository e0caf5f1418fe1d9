"""An epoch that makes no progress is noticed, whatever hangs; one that does is left alone."""

import threading
import time
from collections.abc import Callable, Hashable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.pipeline.progress_deadline import ProgressDeadline, Standstill

SECONDS_MAX = 60.0
SIGNS = st.lists(st.tuples(st.sampled_from([None, 1, 2]), st.floats(0, 5)), max_size=20)


@given(SIGNS)
def test_the_deadline_counts_from_the_last_change(looks: list[tuple[int | None, float]]) -> None:
    now_s, changed_s, last = 0.0, 0.0, None
    standstill = Standstill(None, 0.0)
    for sign, pause_s in looks:
        now_s += pause_s
        if sign is None or sign != last:
            changed_s = now_s
        last = sign
        standstill = standstill.seen(sign, now_s)
        assert standstill.is_over(now_s, 3) == (now_s - changed_s >= 3)


def watched(look: Callable[[], Hashable | None], seconds: float, *, until: float) -> list[float]:
    """Return what is called for a look, until it is called or a time has passed."""
    called, calls = threading.Event(), list[float]()

    def on_standstill(deadline_s: float) -> None:
        calls.append(deadline_s)
        called.set()

    with ProgressDeadline(look, seconds, on_standstill):
        called.wait(until)
    return calls


def hang() -> None:
    time.sleep(SECONDS_MAX)


def fail() -> None:
    raise ConnectionRefusedError


@pytest.mark.parametrize("look", [lambda: "the same", hang, fail])
def test_what_stands_still_is_ended_once(look: Callable[[], Hashable | None]) -> None:
    assert watched(look, 0.2, until=SECONDS_MAX) == [0.2]


@pytest.mark.parametrize("look", [lambda: None, count().__next__])
def test_what_moves_or_rests_is_left_alone(look: Callable[[], Hashable | None]) -> None:
    assert watched(look, 20.0, until=0.5) == []
    looks = ProgressDeadline(look, 1.0, lambda seconds: None, monotonic_s=count().__next__)
    for _ in range(5):
        looks.check()
        assert not looks._standstill.is_over(looks._standstill.since_s + 0.5, 1.0)
