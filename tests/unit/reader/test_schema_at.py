"""What was created in a span, by what the schema was at some times."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.database.schema_at import (
    Recreated,
    SchemaAt,
    recreated,
    times_to_compare,
)

SECOND = 10**9


def at(number: int, **columns: str) -> SchemaAt:
    return SchemaAt(number, {table: frozenset(text) for table, text in columns.items()})


@pytest.mark.parametrize(
    ("schemas", "created"),
    [
        # A table, and a column, that were absent in between are others from then on.
        (
            [at(1, T="ab", U="a"), at(2, U="a"), at(3, U="a"), at(4, T="ab", U="a")],
            Recreated({"T": 3}, {}),
        ),
        ([at(1, T="ab"), at(2, T="a"), at(3, T="ab")], Recreated({}, {("T", "b"): 2})),
        # It may have been dropped long ago; a mirror of it may still be there.
        ([at(1), at(2, T="a")], Recreated({"T": 1}, {})),
        ([at(1, T="ab", U="a"), at(2, T="a")], Recreated({}, {})),
        ([at(1, T="a")], Recreated({}, {})),
    ],
)
def test_what_was_absent_before_is_created_and_what_is_gone_or_stays_is_not(
    schemas: list[SchemaAt], created: Recreated
) -> None:
    assert recreated(schemas) == created


@given(st.integers(0, 10**18), st.integers(0, 10**6 * SECOND))
def test_the_times_begin_and_end_with_the_span_and_are_few(start_ns: int, span_ns: int) -> None:
    times = times_to_compare(start_ns, start_ns + span_ns)
    assert (times[0], times[-1]) == (start_ns, start_ns + span_ns)
    assert times == sorted(times)
    assert len(times) <= 18
    if span_ns <= 32 * SECOND:
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert max(gaps) <= 2 * SECOND + len(times)
