"""How long one query may be, with mutable key ranges."""

from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.query_window import QUERY_SPAN_MAX_NS, query_end_ns
from slackwater.timestamp import seconds_to_ns

MINUTE_NS = seconds_to_ns(60)
TIMES = st.integers(0, 300 * MINUTE_NS)


def test_a_query_ends_at_most_thirty_minutes_after_its_start() -> None:
    assert QUERY_SPAN_MAX_NS < 30 * MINUTE_NS
    assert query_end_ns(5, 5 + 29 * MINUTE_NS) == 5 + QUERY_SPAN_MAX_NS
    assert query_end_ns(5, 6) == 6


@given(TIMES, TIMES)
def test_queries_one_after_the_other_cover_the_time_once(start_ns: int, length_ns: int) -> None:
    end_ns = start_ns + length_ns
    covered = []
    at_ns = start_ns
    while at_ns <= end_ns:
        through_ns = query_end_ns(at_ns, end_ns)
        assert at_ns <= through_ns
        covered.append((at_ns, through_ns))
        at_ns = through_ns + 1
    assert covered[0][0] == start_ns
    assert covered[-1][1] == end_ns
