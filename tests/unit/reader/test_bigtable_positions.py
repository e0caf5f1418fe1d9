"""The rules of positions: whatever Bigtable closes, each key has one."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.bigtable.positions import (
    Closed,
    Position,
    Read,
    from_text,
    make_up_table,
    reads_of,
    standing,
    starting_at,
    to_text,
)
from slackwater.reader.bigtable.row_range import WHOLE_TABLE, RowRange, are_parts

KEYS = st.lists(st.binary(min_size=1, max_size=3), max_size=6, unique=True).map(sorted)
HOUR_US = 3_600 * 1_000_000


def ranges(borders: list[bytes]) -> list[RowRange]:
    return [RowRange(*pair) for pair in pairwise([b"", *borders, b""])]


def within(partition: RowRange, borders: list[bytes]) -> list[RowRange]:
    inner = [b for b in borders if partition.start < b and (not partition.end or b < partition.end)]
    return [RowRange(*pair) for pair in pairwise([partition.start, *inner, partition.end])]


@given(KEYS, st.lists(st.tuples(KEYS, KEYS, st.integers(0, 2**32)), max_size=6))
def test_each_key_has_one_position_whatever_is_split_merged_or_left_unread(
    first: list[bytes], epochs: list[tuple[list[bytes], list[bytes], int]]
) -> None:
    positions = starting_at(ranges(first), 1)
    for tablets, wrong, bits in epochs:
        reads = reads_of(positions)
        assert are_parts((read.partition for read in reads), WHOLE_TABLE)
        after: list[Position] = []
        for number, read in enumerate(reads):
            what = (bits >> 2 * number) % 4
            parts = within(read.partition, tablets if what == 1 else wrong)
            closed = Closed([(part, "part") for part in parts[: 1 if what == 3 else None]], [])
            if what in (1, 3):
                closed = Closed(closed.tokens, ranges(tablets))
            ended = closed if what in (1, 3) else None
            after += read.after("token" if what else None, ended, 2, what or None)
        positions = after
        assert make_up_table(positions)
        assert from_text(to_text(positions)) == positions


def test_a_merged_partition_is_read_once_the_positions_of_all_its_parts_are_there() -> None:
    left, right, whole = RowRange(b"", b"m"), RowRange(b"m", b""), WHOLE_TABLE
    early, late = Position(left, whole, "l", 1), Position(right, right, "r", 1)
    assert [read.partition for read in reads_of([early, late])] == [left, right]
    [read] = reads_of([early, Position(right, whole, "r2", 2)])
    assert read == Read(whole, (early, Position(right, whole, "r2", 2)))


def test_tokens_that_do_not_make_up_the_partition_leave_it_where_it_was() -> None:
    read = Read(WHOLE_TABLE, (Position(WHOLE_TABLE, WHOLE_TABLE, "old", 1),))
    half = Closed([(RowRange(b"", b"m"), "half")], [RowRange(b"", b"m")])
    assert read.after("last", half, 2) == (Position(WHOLE_TABLE, WHOLE_TABLE, "last", 2),)
    assert read.after(None, half, 2) == read.positions


def test_a_position_that_is_old_needs_a_new_token() -> None:
    read = Read(WHOLE_TABLE, (Position(WHOLE_TABLE, WHOLE_TABLE, "old", 0),))
    assert not read.needs_token(HOUR_US)
    assert read.needs_token(HOUR_US + 1)
    assert read.after("new", None, HOUR_US)[0].at_us == HOUR_US


def test_a_partition_stands_still_until_it_is_read_to_an_end() -> None:
    [position] = Read(WHOLE_TABLE, (Position(WHOLE_TABLE, WHOLE_TABLE, "old", 0),)).after(
        "new", None, 9, 5
    )
    assert standing([position]) == [position]
    # It may reach the end before a heartbeat brings another token.
    again = Read(WHOLE_TABLE, (position,)).after(None, None, 19)
    assert (standing(again), again[0].token) == ([], "new")


def test_a_range_holds_and_shows_its_keys() -> None:
    assert WHOLE_TABLE.holds(RowRange(b"a", b""))
    assert not RowRange(b"a", b"c").holds(RowRange(b"b", b""))
    assert str(RowRange(b"a\xff", b"")) == "[a\\xff, )"
    long = RowRange(b"a" * 400, b"b" * 400)
    assert len(long.label) < 520
    assert long.label != RowRange(b"a" * 400, b"b" * 399 + b"c").label
