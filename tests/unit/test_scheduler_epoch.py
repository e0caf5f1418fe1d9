"""The arithmetic of low watermarks: no record on a boundary, none left out, none twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slackwater.scheduler.epoch import (
    in_cut,
    is_watermark,
    next_watermark,
    watermark_at_or_after,
    watermark_before,
    watermark_for_end,
    watermark_for_start,
)

times = st.integers(0, 2**61)


@given(times)
def test_a_low_watermark_lies_half_a_microsecond_from_every_commit(time_ns: int) -> None:
    for watermark in (
        watermark_before(time_ns),
        watermark_at_or_after(time_ns),
        watermark_for_start(time_ns),
        watermark_for_end(time_ns),
    ):
        assert is_watermark(watermark)
        assert abs(watermark - time_ns) <= 1_000
    assert watermark_before(time_ns) < time_ns <= watermark_at_or_after(time_ns)


@given(times, st.integers(-3, 3))
def test_records_at_the_start_and_the_end_are_in_the_cut(time_ns: int, microseconds: int) -> None:
    start_ns, end_ns = watermark_for_start(time_ns), watermark_for_end(time_ns + 5_000)
    commit_ns = time_ns // 1_000 * 1_000 + microseconds * 1_000
    assert in_cut(commit_ns, start_ns, end_ns) == (time_ns <= commit_ns <= time_ns + 5_000)


@given(times, st.integers(0, 10**10), times, st.integers(1, 10**12), st.none() | times)
def test_the_next_low_watermark_never_goes_back_nor_beyond_its_bounds(
    clock_ns: int, lead_ns: int, base_ns: int, span_ns: int, end_ns: int | None
) -> None:
    base_ns = watermark_for_end(base_ns)
    following = next_watermark(
        clock_ns=clock_ns, lead_ns=lead_ns, base_ns=base_ns, span_max_ns=span_ns, end_ns=end_ns
    )
    assert following >= base_ns
    assert following <= max(base_ns, watermark_for_end(base_ns + span_ns))
    if following > base_ns:
        assert following < clock_ns + lead_ns
        assert end_ns is None or following <= end_ns


@given(times, st.integers(0, 10**10))
def test_an_epoch_whose_start_is_not_known_ends_before_the_clock(
    clock_ns: int, lead_ns: int
) -> None:
    following = next_watermark(
        clock_ns=clock_ns, lead_ns=lead_ns, base_ns=None, span_max_ns=1, end_ns=None
    )
    assert following == watermark_before(clock_ns)
