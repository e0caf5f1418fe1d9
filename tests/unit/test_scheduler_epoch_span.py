"""Epochs grow where little happens, and stay within what they shall hold where much does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slackwater.scheduler.epoch_span import FIRST_NS, SpanTarget, next_span_ns
from slackwater.state.models import Epoch

SECOND_NS = 10**9
DAY_NS = 86_400 * SECOND_NS
TARGET = SpanTarget(records=1_000_000, seconds=30)


def epoch(start_ns: int, span_ns: int, records: int, seconds: float = 1.0) -> Epoch:
    return Epoch("p", start_ns, start_ns + span_ns, records, 1, 1, 0, seconds)


def catch_up(behind_ns: int, records_per_second: float, speed: float) -> list[Epoch]:
    """The epochs of a pipeline that starts so far behind, and reads so many records a second."""
    epochs: list[Epoch] = []
    at_ns = 0
    while at_ns < behind_ns:
        span_ns = min(next_span_ns(epochs, TARGET, DAY_NS), behind_ns - at_ns)
        records = int(span_ns / SECOND_NS * records_per_second)
        epochs.append(epoch(at_ns, span_ns, records, 0.4 + records / speed))
        at_ns += span_ns
    return epochs


def test_days_of_little_are_a_few_large_epochs() -> None:
    assert len(catch_up(7 * DAY_NS, records_per_second=1, speed=100_000)) < 15


def test_days_of_much_are_epochs_of_the_target() -> None:
    epochs = catch_up(DAY_NS, records_per_second=20_000, speed=100_000)
    assert all(e.records <= 1.3 * TARGET.records for e in epochs)
    assert len(epochs) < 1.2 * DAY_NS / SECOND_NS * 20_000 / TARGET.records


def test_where_reading_is_slow_epochs_stay_within_the_time() -> None:
    epochs = catch_up(DAY_NS // 24, records_per_second=2_000, speed=3_000)
    assert all(e.seconds < 1.5 * TARGET.seconds for e in epochs[2:])


def test_what_was_dense_lately_counts_although_the_last_epoch_was_not() -> None:
    dense = epoch(0, 10 * SECOND_NS, 2_000_000)
    sparse = epoch(10 * SECOND_NS, 10 * SECOND_NS, 10)
    assert next_span_ns([dense, sparse], TARGET, DAY_NS) == 5 * SECOND_NS


def test_after_live_epochs_catching_up_begins_with_a_minute() -> None:
    live = [epoch(i * SECOND_NS, SECOND_NS, 3) for i in range(5)]
    assert next_span_ns(live, TARGET, DAY_NS) == FIRST_NS
    assert next_span_ns([], TARGET, DAY_NS) == FIRST_NS
    assert next_span_ns([epoch(5, 0, 0)], TARGET, DAY_NS) == FIRST_NS


@given(
    st.lists(
        st.builds(
            epoch,
            st.just(0),
            st.integers(0, 10 * DAY_NS),
            st.integers(0, 10**9),
            st.floats(0, 10**5),
        )
    ),
    st.integers(SECOND_NS, DAY_NS),
)
def test_a_span_is_never_too_short_to_go_on_and_never_above_the_most(
    epochs: list[Epoch], most_ns: int
) -> None:
    assert SECOND_NS <= next_span_ns(epochs, TARGET, most_ns) <= most_ns
