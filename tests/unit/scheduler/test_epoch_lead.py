"""An epoch ends ahead of the clock by what its tasks take to begin, and no task reads too early."""

import time

from hypothesis import given
from hypothesis import strategies as st

from slackwater.scheduler.epoch_lead import LEAD_MAX_NS, next_lead_ns, wait_until_past

MILLISECOND_NS = 10**6


@given(st.lists(st.integers(-(10**18), 10**18), max_size=6))
def test_a_lead_is_bounded_whatever_clocks_say(delays_ns: list[int]) -> None:
    assert 0 <= next_lead_ns(delays_ns) <= LEAD_MAX_NS


def test_without_a_delay_that_is_known_there_is_no_lead() -> None:
    assert next_lead_ns([]) == 0


def test_one_slow_start_changes_nothing() -> None:
    usual = [120 * MILLISECOND_NS] * 4
    assert next_lead_ns([*usual, 10**10]) == next_lead_ns([*usual, 0]) == usual[0]


def test_a_low_watermark_ahead_of_the_clock_is_waited_for() -> None:
    watermark_ns = time.time_ns() + 30 * MILLISECOND_NS
    wait_until_past(watermark_ns)
    assert time.time_ns() > watermark_ns


def test_a_clock_that_is_far_behind_costs_a_bounded_time() -> None:
    began_ns = time.monotonic_ns()
    wait_until_past(time.time_ns() + 10**12)
    assert LEAD_MAX_NS <= time.monotonic_ns() - began_ns < 10**12


def test_what_has_passed_is_not_waited_for() -> None:
    began = time.monotonic()
    for _ in range(100):
        wait_until_past(time.time_ns() - 1)
    assert time.monotonic() - began < 100 * LEAD_MAX_NS / 10**9
