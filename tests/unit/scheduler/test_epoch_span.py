"""Epochs grow where little happens, stay within their limits where much does, and never fall behind
because they are too short for what each of them costs.
"""

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.scheduler.epoch_span import FIRST_NS, SpanTarget, epoch_cost, next_span_ns
from slackwater.state.models import Epoch

SECOND_NS = 10**9
DAY_NS = 86_400 * SECOND_NS
DAY_S = 86_400.0
TARGET = SpanTarget(records=1_000_000, seconds=30)


def epoch(start_ns: int, span_ns: int, records: int, seconds: float = 1.0) -> Epoch:
    return Epoch("p", start_ns, start_ns + span_ns, records, 1, 1, 0, seconds)


@dataclass(frozen=True)
class Work:
    """What epochs cost, and how many records come.

    Attributes:
        fixed_s, per_record_s, per_second_s: the time of an epoch, its records and its span.
        records_per_second: of the source.
        noise: of the logarithm of an epoch's time.
        trigger_s: the least time from one epoch's start to the next one's.
        outage: when it begins, and how long it lasts: the running epoch waits for its end.
    """

    fixed_s: float = 0.0
    per_record_s: float = 0.0
    per_second_s: float = 0.0
    records_per_second: float = 100.0
    noise: float = 0.1
    trigger_s: float = 0.0
    outage: tuple[float, float] | None = None


@dataclass(frozen=True)
class Simulated:
    """An epoch of a simulated pipeline, in seconds; lag_s is that at its end."""

    begun_s: float
    span_s: float
    records: int
    seconds: float
    lag_s: float


def simulate(
    work: Work, *, hours: float, behind_s: float = 0.0, span_max_ns: int = DAY_NS
) -> list[Simulated]:
    """Run a pipeline on a simulated clock; each epoch covers what next_span_ns allows it."""
    noise = random.Random(1)
    now_s, watermark_s = behind_s, 0.0
    epochs: list[Epoch] = []
    simulated = []
    while now_s < behind_s + hours * 3_600:
        span_s = min(next_span_ns(epochs, TARGET, span_max_ns) / SECOND_NS, now_s - watermark_s)
        records = int(span_s * work.records_per_second)
        seconds = work.fixed_s + work.per_record_s * records + work.per_second_s * span_s
        seconds = seconds * noise.lognormvariate(0, work.noise) + 0.001
        if work.outage and now_s <= work.outage[0] < now_s + seconds:
            seconds += work.outage[1]
        begun_s, now_s = now_s, now_s + seconds
        start_ns, end_ns = int(watermark_s * SECOND_NS), int((watermark_s + span_s) * SECOND_NS)
        committed_ns = int(now_s * SECOND_NS)
        epochs = [
            *epochs[-20:],
            Epoch("p", start_ns, end_ns, records, 1, 1, committed_ns, seconds),
        ]
        watermark_s += span_s
        simulated.append(Simulated(begun_s, span_s, records, seconds, now_s - watermark_s))
        now_s = max(now_s + 0.05, begun_s + work.trigger_s)
    return simulated


def test_days_of_little_are_a_few_large_epochs() -> None:
    work = Work(fixed_s=0.4, per_record_s=1e-5, records_per_second=1, noise=0)
    epochs = simulate(work, hours=0.02, behind_s=7 * DAY_S)
    assert next(i for i, e in enumerate(epochs) if e.lag_s < 60) < 15


def test_days_of_much_are_epochs_of_the_target() -> None:
    work = Work(fixed_s=0.4, per_record_s=1e-5, records_per_second=20_000)
    epochs = simulate(work, hours=3, behind_s=DAY_S)
    assert all(e.records <= 1.3 * TARGET.records for e in epochs)
    catching_up = [e for e in epochs[2:] if e.lag_s > 100]
    assert all(e.records >= 0.99 * TARGET.records for e in catching_up)


def test_where_reading_is_slow_epochs_stay_within_the_time() -> None:
    work = Work(fixed_s=0.4, per_record_s=1 / 3_000, records_per_second=2_000)
    epochs = simulate(work, hours=6, behind_s=DAY_S)
    times = sorted(e.seconds for e in epochs[2:])
    assert times[-1] < 3 * TARGET.seconds
    assert times[len(times) * 9 // 10] < 1.5 * TARGET.seconds
    exact = simulate(
        Work(0.4, 1 / 3_000, records_per_second=2_000, noise=0), hours=6, behind_s=DAY_S
    )
    assert all(e.seconds < 1.05 * TARGET.seconds for e in exact[1:])


@pytest.mark.parametrize(
    ("work", "lag_max_s"),
    [
        # Forty mirror tables: as a proportional cost, spans fell to 3.9 s while the lag grew.
        (Work(fixed_s=36, per_record_s=1e-4), 4 * 36),
        (Work(fixed_s=36, per_record_s=1e-4, records_per_second=1, noise=0.3), 8 * 36),
        (Work(fixed_s=36, per_second_s=0.5), 6 * 36),
        (Work(fixed_s=36, per_second_s=0.8), 12 * 36),
        (Work(fixed_s=400, per_record_s=1e-4), 7 * 400),
        # An epoch every five minutes that may take longer than its target.
        (Work(fixed_s=1, per_second_s=0.2, trigger_s=300), 2 * 300),
    ],
)
def test_the_lag_stays_bounded_whatever_an_epoch_costs(work: Work, lag_max_s: float) -> None:
    live = simulate(work, hours=5)
    assert max(e.lag_s for e in live) < lag_max_s
    # At 0.8 s for each second of span the lag of an hour can be closed by 10 minutes an hour.
    behind = simulate(work, hours=5, behind_s=3_600)
    assert behind[-1].lag_s < max(lag_max_s, 3_600 - 5 * 300)


def test_after_an_outage_epochs_are_as_long_as_before_it() -> None:
    work = Work(fixed_s=0.4, per_record_s=1e-5, outage=(300, 158))
    epochs = simulate(work, hours=0.25)
    first = next(i for i, e in enumerate(epochs) if e.lag_s > 100)
    assert epochs[first + 1].span_s > 30
    assert epochs[first + 4].lag_s < 2
    behind = simulate(Work(0.4, 1 / 3_000, outage=(DAY_S + 600, 158)), hours=1, behind_s=DAY_S)
    hit = next(i for i, e in enumerate(behind) if e.seconds > 158)
    assert all(e.span_s > 0.5 * behind[hit].span_s for e in behind[hit:] if e.lag_s > 1_000)


def test_an_outage_in_a_pipelines_first_epoch_does_not_hold_it_back_for_long() -> None:
    work = Work(fixed_s=0.4, per_record_s=1e-5, outage=(DAY_S, 158))
    epochs = simulate(work, hours=0.1, behind_s=DAY_S)
    assert epochs[0].seconds > 158
    assert next(i for i, e in enumerate(epochs) if e.lag_s < 60) < 20


def test_what_was_dense_lately_counts_although_the_last_epoch_was_not() -> None:
    dense = epoch(0, 10 * SECOND_NS, 2_000_000)
    sparse = epoch(10 * SECOND_NS, 10 * SECOND_NS, 10)
    assert next_span_ns([dense, sparse], TARGET, DAY_NS) == 5 * SECOND_NS


def test_after_live_epochs_catching_up_begins_with_a_minute() -> None:
    live = [epoch(i * SECOND_NS, SECOND_NS, 3, 0.4) for i in range(5)]
    assert next_span_ns(live, TARGET, DAY_NS) == FIRST_NS
    assert next_span_ns([], TARGET, DAY_NS) == FIRST_NS
    assert next_span_ns([epoch(5, 0, 0)], TARGET, DAY_NS) == FIRST_NS


def test_the_fixed_part_of_the_cost_is_told_from_the_proportional_one() -> None:
    spans_s = [10, 20, 40, 80]
    by_span = [epoch(0, s * SECOND_NS, 5, 12 + 0.25 * s) for s in spans_s]
    cost = epoch_cost(by_span)
    assert [cost.fixed_s, cost.per_second] == pytest.approx([12, 0.25])
    records = [9_000, 100, 4_000, 20_000]
    by_records = [
        epoch(0, s * SECOND_NS, n, 12 + 0.001 * n) for s, n in zip(spans_s, records, strict=True)
    ]
    cost = epoch_cost(by_records)
    # The densest of them has 900 records a second.
    assert [cost.fixed_s, cost.per_second] == pytest.approx([12, 0.9])


def test_epochs_that_are_alike_count_as_proportional() -> None:
    cost = epoch_cost([epoch(0, 60 * SECOND_NS, 5, 36)] * 4)
    assert [cost.fixed_s, cost.per_second] == pytest.approx([0, 0.6])


@given(
    st.lists(
        st.builds(
            epoch,
            st.just(0),
            st.integers(0, 10 * DAY_NS),
            st.integers(0, 10**9),
            st.floats(0, 10**5),
        ),
        max_size=20,
    ),
    st.integers(SECOND_NS, DAY_NS),
)
def test_a_span_goes_on_and_never_exceeds_its_bounds(epochs: list[Epoch], most_ns: int) -> None:
    span_ns = next_span_ns(epochs, TARGET, most_ns)
    assert SECOND_NS <= span_ns <= most_ns
    for last in [e for e in epochs if e.end_ns > e.start_ns][-5:]:
        expected = span_ns * last.records / (last.end_ns - last.start_ns)
        assert span_ns == SECOND_NS or expected <= TARGET.records * 1.000001


SPANS_S = st.lists(st.floats(2, 10_000), min_size=2, max_size=8).filter(
    lambda spans: max(spans) > 1.5 * min(spans)
)


@given(SPANS_S, st.floats(0.1, 1_000), st.data())
def test_a_span_never_shrinks_where_that_does_not_help(
    spans_s: list[float], fixed_s: float, data: st.DataObject
) -> None:
    epochs = [epoch(0, int(s * SECOND_NS), 0, fixed_s) for s in spans_s]
    # An outage makes some epochs longer: fewer than a third of them.
    outages_max = (len(epochs) - 2) // 3
    for index in data.draw(st.sets(st.integers(0, len(epochs) - 1), max_size=outages_max)):
        seconds = fixed_s + data.draw(st.floats(100, 1_000))
        epochs[index] = epoch(0, int(spans_s[index] * SECOND_NS), 0, seconds)
    # Where outages hit the longest epoch, or most of the long ones, the cost seems to grow with
    # the span.
    clean = [s for s, e in zip(spans_s, epochs, strict=True) if e.seconds == fixed_s]
    long_s = 1.5 * min(clean)
    clean_long = sum(s > long_s for s in clean)
    hit_long = sum(s > long_s for s in spans_s) - clean_long
    if max(clean) == max(spans_s) and clean_long > hit_long:
        assert next_span_ns(epochs, TARGET, 10 * DAY_NS) >= epochs[-1].end_ns


@given(SPANS_S, st.floats(0.05, 0.9))
def test_a_cost_that_is_all_proportional_keeps_to_the_targets_time(
    spans_s: list[float], per_second: float
) -> None:
    epochs = [epoch(0, int(s * SECOND_NS), 0, s * per_second) for s in spans_s]
    span_s = next_span_ns(epochs, TARGET, 10 * DAY_NS) / SECOND_NS
    assert span_s * per_second <= TARGET.seconds * 1.1
