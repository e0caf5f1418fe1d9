"""Spanner's clock as it is shown: it goes on while Spanner is away, and says for how long it is."""

import pytest

from slackwater.pipeline.spanner_clock import SpannerClock
from slackwater.reader.errors import UnavailableError

SECOND_NS = 10**9


class Spanner:
    """A Spanner whose clock is five seconds ahead, on a simulated clock; it may be slow or away."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.answer_s = 0.01
        self.is_away = False
        self.clock = SpannerClock(
            self._read_ns, time_ns=self._time_ns, monotonic_s=lambda: self.now_s
        )

    def _time_ns(self) -> int:
        return round(self.now_s * SECOND_NS)

    def _read_ns(self) -> int:
        self.now_s += self.answer_s / 2
        clock_ns = self._time_ns() + 5 * SECOND_NS
        self.now_s += self.answer_s / 2
        if self.is_away:
            raise UnavailableError("Spanner answered DEADLINE_EXCEEDED.")
        return clock_ns

    def ahead_s(self) -> float:
        return (self.clock.now_ns() - self._time_ns()) / SECOND_NS


def test_the_difference_between_the_clocks_is_kept_while_spanner_is_away() -> None:
    spanner = Spanner()
    assert spanner.ahead_s() == 0
    spanner.clock.read()
    assert spanner.ahead_s() == pytest.approx(5, abs=0.001)
    spanner.is_away = True
    for _ in range(5):
        spanner.answer_s = 36
        with pytest.raises(UnavailableError):
            spanner.clock.read()
        assert spanner.ahead_s() == pytest.approx(5, abs=0.001)


def test_a_slow_answer_changes_the_clock_only_if_there_is_no_better_one() -> None:
    spanner = Spanner()
    spanner.answer_s = 20
    spanner.clock.read()
    assert spanner.ahead_s() == pytest.approx(5, abs=10)
    spanner.answer_s = 0.2
    spanner.clock.read()
    spanner.answer_s = 30
    spanner.clock.read()
    assert spanner.ahead_s() == pytest.approx(5, abs=0.001)
    assert spanner.clock.silent_s is None


def test_spanner_is_silent_when_more_than_one_answer_is_missing() -> None:
    spanner = Spanner()
    spanner.clock.read()
    spanner.now_s += 20
    assert spanner.clock.silent_s is None
    spanner.now_s += 20
    assert spanner.clock.silent_s == pytest.approx(40)
    spanner.clock.note_answer()
    assert spanner.clock.silent_s is None
