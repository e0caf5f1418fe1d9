"""Which epochs become one: whenever a reader lists the folders, it has each record once."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.spark_sink.output.epoch_groups import (
    GROUP_SIZE,
    Group,
    next_group,
    sort_names,
)
from slackwater.spark_sink.output.epoch_names import COMPACTED, epoch_name, parse_epoch_name

START = datetime(2026, 1, 31, 9, tzinfo=UTC)
SMALL = GROUP_SIZE // 4


def name(hours: float, chunk: int | None = None) -> str:
    return epoch_name(START + timedelta(hours=hours), chunk)


def test_a_group_is_complete_when_it_is_large_or_its_day_is_over() -> None:
    four = [name(hour) for hour in range(4)]
    assert next_group([], []) is None
    assert next_group([*four, name(6)], [SMALL] * 3 + [SMALL - 1, SMALL]) is None
    # The fourth is not two hours old.
    assert next_group([*four, name(4.5)], [SMALL, SMALL, 2 * SMALL, SMALL, SMALL]) == Group(
        f"{four[2]}{COMPACTED}", tuple(four[:3])
    )
    assert next_group(four, [GROUP_SIZE] * 4) == Group(f"{four[0]}{COMPACTED}", (four[0],))
    next_day = [*four, name(18)]
    assert next_group(next_day, [1] * 5) == Group(f"{four[3]}{COMPACTED}", tuple(four))
    assert next_group(next_day[4:], [1]) is None


def test_a_day_is_not_closed_while_something_may_come_into_it() -> None:
    late = [name(hour) for hour in (0, 14.5, 15.5)]
    assert next_group(late, [1] * 3) is None
    group = next_group([*late, name(17)], [1] * 4)
    assert group == Group(f"{name(14.5)}{COMPACTED}", tuple(late[:2]))


@given(st.floats(0, 1), st.lists(st.floats(0, 30), min_size=1, max_size=20))
def test_a_chunk_of_a_rescan_comes_into_no_group(age: float, hours: list[float]) -> None:
    """It has the low watermark of an epoch up to an hour before the last one."""
    epochs = [name(hour) for hour in sorted(set(hours))]
    group = next_group(epochs, [GROUP_SIZE] * len(epochs))
    chunk = name(max(hours) - age, 5)
    assert group is None or chunk > group.name


def test_chunks_of_a_scan_stay_together() -> None:
    chunks = [name(0, chunk) for chunk in range(3)]
    assert next_group(chunks, [GROUP_SIZE] * 3) is None
    group = next_group([*chunks, name(3)], [GROUP_SIZE] * 4)
    assert group == Group(f"{name(0)}{COMPACTED}", tuple(chunks))
    names = sort_names([*chunks, name(3), group.name])
    assert names.epochs == (name(3),)
    assert names.replaced == tuple((chunk, group.name) for chunk in chunks)


def test_other_names_are_left_alone() -> None:
    others = ["_watermarks", "_staging", "epoch=", "epoch=20260131T090000Z", "part-0.parquet"]
    assert sort_names(others) == sort_names([])
    compacted = f"{name(0)}{COMPACTED}"
    # The latest epoch is known from a compacted folder, too.
    assert parse_epoch_name(compacted) == parse_epoch_name(name(0)) == START


def by_query(listed: list[str]) -> list[str]:
    """Return the folders that the query in docs/output.md reads."""
    newest = max((n for n in listed if n.endswith(COMPACTED)), default="")
    return [n for n in listed if n.endswith(COMPACTED) != (n > newest)]


@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, GROUP_SIZE * 2)), min_size=1, max_size=30
    ),
    st.data(),
)
def test_a_reader_has_each_epoch_once_at_any_moment(
    steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Epochs appear, groups are compacted, and what is replaced is removed some time later."""
    hours, folders = 0, dict[str, frozenset[str]]()
    sizes: dict[str, int] = {}
    published: set[str] = set()
    for gap, size in steps:
        hours += gap
        folders[name(hours)] = frozenset({name(hours)})
        sizes[name(hours)] = size
        published.add(name(hours))
        while data.draw(st.booleans()):
            names = sort_names(folders)
            group = next_group(names.epochs, [sizes[n] for n in names.epochs])
            if group is None:
                break
            assert name(hours) not in group.folders
            folders[group.name] = frozenset(group.folders)
        for replaced, by in sort_names(folders).replaced:
            assert folders[replaced] <= folders[by]
            if data.draw(st.booleans()):
                del folders[replaced]
        read = [epoch for folder in by_query(list(folders)) for epoch in folders[folder]]
        assert sorted(read) == sorted(published)
        large = sorted(folder for folder in folders if folder.endswith(COMPACTED))
        counted = [*large, *sort_names(folders).epochs]
        assert all(earlier < later for earlier, later in pairwise(counted))


@pytest.mark.parametrize("seen", range(1, 12))
def test_two_processes_make_the_same_groups(seen: int) -> None:
    """One of them has listed the folders earlier."""
    epochs = [name(hour / 2) for hour in range(12)]
    sizes = [SMALL] * 12
    early, late = next_group(epochs[:seen], sizes[:seen]), next_group(epochs, sizes)
    assert early in (None, late)
