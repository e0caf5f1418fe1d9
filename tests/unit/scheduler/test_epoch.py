"""The arithmetic of low watermarks: no record on a boundary, none left out, none twice."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slackwater.scheduler.epoch import (
    Cut,
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
    cut = Cut(start_ns, end_ns)
    assert cut.contains(commit_ns) == (time_ns <= commit_ns <= time_ns + 5_000)


@given(times, st.integers(0, 10), st.lists(st.integers(-15, 15), max_size=20))
def test_a_column_of_commits_gets_the_answers_that_each_commit_gets(
    time_ns: int, length_us: int, offsets_us: list[int]
) -> None:
    start_ns = watermark_for_start(time_ns)
    cut = Cut(start_ns, start_ns + length_us * 1_000)
    commits_us = [time_ns // 1_000 + offset for offset in offsets_us]
    column = np.array(commits_us, np.int64)
    commits_ns = [us * 1_000 for us in commits_us]
    assert cut.contains_each(column).tolist() == [cut.contains(ns) for ns in commits_ns]
    assert cut.late_each(column).tolist() == [cut.is_late(ns) for ns in commits_ns]


@given(times, st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(-30, 200))
def test_consecutive_cuts_hold_every_commit_exactly_once(
    time_ns: int, lengths_us: list[int], offset_us: int
) -> None:
    edges = [watermark_for_start(time_ns)]
    for length_us in lengths_us:
        edges.append(edges[-1] + length_us * 1_000)
    cuts = [Cut(*edge) for edge in pairwise(edges)]
    commit_ns = time_ns // 1_000 * 1_000 + offset_us * 1_000
    is_between = edges[0] < commit_ns < edges[-1]
    assert sum(cut.contains(commit_ns) for cut in cuts) == is_between
    for cut in cuts:
        answers = (cut.is_late(commit_ns), cut.contains(commit_ns), cut.is_beyond(commit_ns))
        assert sum(answers) == 1, "a commit is late, inside or beyond"


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
