"""Epochs become one folder or object: by the documented rule each row is there once."""

import io
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.epoch_names import COMPACTED
from tests.support.file_places import (
    START,
    FilePlace,
    Hold,
    InMemory,
    OnDisk,
    Process,
    at_two_switches,
    owner,
)

# The first six are a day's; the last is the next day's, and two hours later.
HOURS = (0, 1, 2, 3, 4, 14.5, 17)
in_each_place = pytest.mark.parametrize("kind", [InMemory, OnDisk], ids=["store", "disk"])


def publish(
    process: Process, hours: float, *contents: bytes | str, chunk: int | None = None
) -> None:
    """Publish an epoch of a file for each content."""
    written = [
        process.written(
            f"{content}\n".encode() if isinstance(content, str) else content,
            "epochs" if chunk is None else "chunks",
        )
        for content in contents
    ]
    process.publish_files(written, START + timedelta(hours=hours), chunk)


def publish_in_folders(process: Process, hours: float) -> None:
    """Publish an epoch with a row of each of three tables, in folders of their own."""
    written = [
        process.written(f"{hours} {table}\n".encode(), folder=f"table_name={table}")
        for table in "ABC"
    ]
    process.publish_files(written, START + timedelta(hours=hours))


def with_two_days(
    kind: type[FilePlace], hours: Sequence[float] = HOURS
) -> tuple[FilePlace, Process]:
    place = kind()
    process = owner(place)
    for number, hour in enumerate(hours):
        publish(process, hour, f"row {number}")
    return place, process


def names(place: FilePlace, prefix: str = "epoch=") -> list[str]:
    return [name for name in place.names() if name.startswith(prefix)]


def counted(listed: list[str]) -> list[str]:
    """The files that count among those listed, by the rule in docs/output.md."""
    large = [name for name in listed if name.split("/")[0].endswith(COMPACTED)]
    newest = max((name.split("/")[0] for name in large), default="")
    return [name for name in listed if name in large or name.split("/")[0] > newest]


def rows(place: FilePlace, listed: list[str] | None = None) -> Counter[str]:
    listed = names(place) if listed is None else listed
    contents = (place.read(name).decode() for name in counted(listed))
    return Counter(line for content in contents for line in content.split("\n") if line)


ALL = Counter({f"row {number}": 1 for number in range(len(HOURS))})
# For what is tried at each pair of steps.
FEW, FEW_ROWS = (0, 1, 17), Counter(["row 0", "row 1", "row 2"])


@in_each_place
def test_a_day_becomes_one_with_the_same_rows(kind: type[FilePlace]) -> None:
    place, process = with_two_days(kind)
    small = names(place)
    process.compact()
    compacted = f"epoch=20260131T233000.000000Z{COMPACTED}/part-00000.txt"
    # A reader that has listed the small ones has time to read them.
    assert names(place) == sorted([*small, compacted])
    assert rows(place) == ALL
    assert place.read(compacted) == b"".join(b"row %d\n" % n for n in range(6))
    process.compact(keep_s=3_600)
    assert len(names(place)) == len(small) + 1
    process.compact(keep_s=0)
    assert names(place) == [compacted, small[-1]]
    assert rows(place) == ALL
    assert names(place, "_staging") == []
    publish(process, 18, "row 7")
    publish(owner(place), 19, "row 8")
    assert rows(place) == ALL + Counter({"row 7": 1, "row 8": 1})


@in_each_place
def test_a_reader_sees_each_row_once_at_every_step(kind: type[FilePlace]) -> None:
    place, process = with_two_days(kind)
    seen: list[Counter[str]] = []
    process.before(lambda: seen.append(rows(place)))
    process.compact(keep_s=0)
    assert len(seen) > 10
    assert all(one == ALL for one in seen)


@in_each_place
def test_a_reader_that_has_listed_the_small_ones_reads_them_to_the_end(
    kind: type[FilePlace],
) -> None:
    place, process = with_two_days(kind)
    listed = names(place)
    process.compact(keep_s=3_600)
    assert rows(place, listed) == ALL


class DeathError(Exception):
    """The process dies here."""


@dataclass
class Before:
    """Does something once, before the step of a number, counted from 0."""

    number: int
    act: Callable[[], None]
    requests: int = 0

    def __call__(self) -> None:
        self.requests += 1
        if self.requests == self.number + 1:
            self.act()

    @property
    def has_acted(self) -> bool:
        return self.requests > self.number


def die() -> None:
    raise DeathError


def take_over_and_compact(place: FilePlace, keep_s: float | None) -> None:
    successor = owner(place)
    publish(successor, 18, "row 7")
    # A user removes an epoch, so that the groups are others.
    place.delete(next(name for name in names(place) if COMPACTED not in name))
    successor.compact(keep_s)


@in_each_place
@pytest.mark.parametrize("keep_s", [None, 0.0])
def test_a_process_that_dies_at_any_step_leaves_each_row_once(
    keep_s: float | None, kind: type[FilePlace]
) -> None:
    """And its successor, which removes what was staged, compacts them."""
    for step in itertools.count():
        place, process = with_two_days(kind)
        dying = Before(step, die)
        process.before(dying)
        with suppress(DeathError):
            process.compact(keep_s)
        assert rows(place) == ALL, step
        successor = owner(place)
        publish(successor, 18, "row 7")
        successor.compact(keep_s=0)
        assert rows(place) == ALL + Counter({"row 7": 1}), step
        assert len(names(place)) == 3
        assert names(place, "_staging") == []
        if not dying.has_acted:
            break
    assert step > 10


@in_each_place
@pytest.mark.parametrize("keep_s", [None, 0.0])
def test_of_two_owners_at_any_two_steps_one_compacts(
    keep_s: float | None, kind: type[FilePlace]
) -> None:
    """A former owner is frozen before a step, and wakes after its successor has compacted."""
    for step in itertools.count():
        place, process = with_two_days(kind)
        waking = Before(step, partial(take_over_and_compact, place, keep_s))
        process.before(waking)
        with suppress(PublishError):
            process.compact(keep_s)
        counts = rows(place)
        assert max(counts.values()) == 1, step
        if not waking.has_acted:
            break
        # All but what the user has removed, if it counted then, and the successor's.
        assert len(counts) >= len(HOURS), step
    assert step > 10


@in_each_place
def test_a_compaction_and_its_successor_at_any_two_steps_leave_each_row_once(
    kind: type[FilePlace],
) -> None:
    """The one stands before a step while the other takes over as far as a step, and so on."""
    for step in itertools.count(1):
        for other_step in itertools.count(1):
            place, process = with_two_days(kind, FEW)
            successor = Process(place)
            here, there = Hold(step), Hold(other_step)
            at_two_switches(process, process.compact, here, successor, successor.take_over, there)
            assert rows(place) == FEW_ROWS, (step, other_step)
            last = owner(place)
            last.compact(keep_s=0)
            assert rows(place) == FEW_ROWS, (step, other_step)
            assert names(place, "_staging") == []
            if there.count < other_step:
                break
        assert other_step > 5
        if here.count < step:
            break
    assert step > 5


@pytest.mark.parametrize("is_answer_lost", [False, True])
@in_each_place
def test_a_compaction_whose_steps_fail_anywhere_keeps_no_epoch_back(
    kind: type[FilePlace], is_answer_lost: bool
) -> None:
    for step in itertools.count(1):
        place, process = with_two_days(kind, FEW)
        process.before(lambda: None)
        process.steps.fails_at, process.steps.is_answer_lost = step, is_answer_lost
        with suppress(PublishError):
            process.compact()
        count, process.steps.fails_at = process.steps.count, 0
        assert rows(place) == FEW_ROWS, step
        publish(process, 18, "row 3")
        process.compact(keep_s=0)
        assert rows(place) == FEW_ROWS + Counter(["row 3"]), step
        if count < step:
            break
    assert step > 5


@in_each_place
def test_an_epoch_is_published_while_others_are_compacted(kind: type[FilePlace]) -> None:
    place, process = with_two_days(kind)
    published = 0

    def publishes() -> None:
        nonlocal published
        # Not within a request of its own, nor while the name is given.
        if published < 3 and not process.log._lock.locked():
            published += 1
            publish(process, 18 + published, f"row {6 + published}")

    process.before(publishes)
    process.compact(keep_s=0)
    assert published == 3
    assert rows(place) == ALL + Counter({f"row {n}": 1 for n in (7, 8, 9)})


@in_each_place
def test_a_file_ends_where_the_columns_change(kind: type[FilePlace]) -> None:
    place = kind()
    process = owner(place, "parquet")
    for number, hours in enumerate(HOURS):
        table = pa.table({"a": [number]} if number < 3 else {"a": [number], "b": ["x"]})
        out = io.BytesIO()
        pq.write_table(table, out)
        publish(process, hours, out.getvalue())
    process.compact(0)
    large = [name.partition("/")[0] for name in names(place) if COMPACTED in name]
    # On a disk one folder has both.
    before, after = "epoch=20260131T110000.000000Z", "epoch=20260131T233000.000000Z"
    assert large == [
        f"{one}{COMPACTED}" for one in ((before, after), (after, after))[kind is OnDisk]
    ]
    tables = [pq.read_table(io.BytesIO(place.read(name))) for name in names(place)]
    assert [row["a"] for table in tables for row in table.to_pylist()] == list(range(len(HOURS)))
    assert [table.num_columns for table in tables] == [1, 2, 2]


def test_epochs_with_folders_are_left_as_they_are_in_a_store() -> None:
    place = InMemory()
    process = owner(place)
    for hours in HOURS:
        publish_in_folders(process, hours)
    before = names(place)
    with pytest.raises(PublishError, match="only epochs without folders are compacted"):
        process.compact(keep_s=0)
    assert names(place) == before


def test_epochs_with_folders_become_one_on_a_disk_with_all_of_these_or_none() -> None:
    """A successor, or this process itself for a rescan, removes what is staged, at any step."""
    for step in itertools.count():
        place = OnDisk()
        process = owner(place)
        for hours in HOURS:
            publish_in_folders(process, hours)
        before = rows(place)

        def take_over(process: Process = process) -> None:
            # In another thread it would wait until the name is given.
            if not process.log._lock.locked():
                process.take_over()

        again = Before(step, take_over)
        process.before(again)
        with suppress(PublishError):
            process.compact(0)
        assert rows(place) == before, step
        process.compact(0)
        assert rows(place) == before, step
        assert len({name.partition("/")[0] for name in names(place)}) == 2
        if not again.has_acted:
            break
    assert step > 10


@in_each_place
def test_an_epoch_that_is_a_group_alone_keeps_its_rows(kind: type[FilePlace]) -> None:
    place = kind()
    process = owner(place)
    for hours in (0, 24, 48):
        publish(process, hours, f"row {hours}")
    process.compact(0)
    assert len(names(place)) == 3
    assert rows(place) == Counter(["row 0", "row 24", "row 48"])


@in_each_place
def test_a_scan_and_the_epoch_of_its_time_stay_together(kind: type[FilePlace]) -> None:
    place = kind()
    process = owner(place)
    publish(process, 0, "epoch")
    for chunk in range(3):
        publish(process, 0, f"chunk {chunk}", chunk=chunk)
    publish(process, 17, "later")
    process.compact(keep_s=0)
    assert len(names(place)) == 2
    assert rows(place) == Counter(["epoch", "chunk 0", "chunk 1", "chunk 2", "later"])
