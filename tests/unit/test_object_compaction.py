"""Epochs in an object store become one object: by the documented rule each row is there once."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.formats import PARQUET, TEXT
from slackwater.spark_sink.output.epoch_groups import COMPACTED
from slackwater.spark_sink.output.epoch_objects import EpochObjects
from slackwater.spark_sink.output.file_writer import WrittenFile
from slackwater.spark_sink.output.object_compaction import ObjectCompaction
from tests.unit.test_epoch_objects import Stepping

START = datetime(2026, 1, 31, 9, tzinfo=UTC)
# The first six are a day's; the last is the next day's, and two hours later.
HOURS = (0, 1, 2, 3, 4, 14.5, 17)


def nothing() -> None:
    """Do nothing before a request."""


class Owner:
    """A process that publishes epochs of one row each, and compacts them."""

    def __init__(self, store: MemoryStore, before: Callable[[], None] = nothing) -> None:
        self.store = Stepping(store, before)
        opened: Any = self.store
        self.objects = EpochObjects(opened, "memory", TEXT, "txt")
        self.objects.take_over(lambda: None)
        self.epochs = 0

    def publish(self, hours: float, text: str, *, chunk: int | None = None) -> None:
        self.epochs += 1
        written = [WrittenFile("", f"{text}\n".encode(), None)]
        at, owner = START + timedelta(hours=hours), self.objects.owner
        self.objects.publish(self.epochs, written, at, owner=owner, chunk=chunk)

    def compact(self, keep_s: float | None = None) -> None:
        opened: Any = self.store
        ObjectCompaction(opened, "memory", self.objects).run(keep_s)


def with_two_days() -> tuple[MemoryStore, Owner]:
    store = MemoryStore()
    owner = Owner(store)
    for number, hours in enumerate(HOURS):
        owner.publish(hours, f"row {number}")
    return store, owner


def names(store: MemoryStore, prefix: str = "epoch=") -> list[str]:
    return sorted(
        item["path"] for page in store.list() for item in page if item["path"].startswith(prefix)
    )


def counted(listed: list[str]) -> list[str]:
    """The objects that count among those listed, by the rule in docs/output.md."""
    large = [name for name in listed if name.split("/")[0].endswith(COMPACTED)]
    newest = max((name.split("/")[0] for name in large), default="")
    return [name for name in listed if name in large or name.split("/")[0] > newest]


def rows(store: MemoryStore, listed: list[str] | None = None) -> Counter[str]:
    listed = names(store) if listed is None else listed
    return Counter(
        line
        for name in counted(listed)
        for line in bytes(store.get(name).bytes()).decode().split("\n")
        if line
    )


ALL = Counter({f"row {number}": 1 for number in range(len(HOURS))})


def test_a_day_becomes_one_object_with_the_same_rows() -> None:
    store, owner = with_two_days()
    small = names(store)
    owner.compact()
    compacted = f"epoch=20260131T233000.000000Z{COMPACTED}/part-00000.txt"
    # A reader that has listed the small ones has time to read them.
    assert names(store) == sorted([*small, compacted])
    assert rows(store) == ALL
    assert bytes(store.get(compacted).bytes()) == b"".join(b"row %d\n" % n for n in range(6))
    owner.compact(keep_s=3_600)
    assert len(names(store)) == len(small) + 1
    owner.compact(keep_s=0)
    assert names(store) == [compacted, small[-1]]
    assert rows(store) == ALL
    assert names(store, "_staging") == []
    owner.publish(18, "row 7")
    Owner(store).publish(19, "row 8")
    assert rows(store) == ALL + Counter({"row 7": 1, "row 8": 1})


def test_a_reader_sees_each_row_once_at_every_step() -> None:
    store, owner = with_two_days()
    seen: list[Counter[str]] = []
    owner.store._before = lambda: seen.append(rows(store))
    owner.compact(keep_s=0)
    assert len(seen) > 10
    assert all(one == ALL for one in seen)


def test_a_reader_that_has_listed_the_small_ones_reads_them_to_the_end() -> None:
    store, owner = with_two_days()
    listed = names(store)
    owner.compact(keep_s=3_600)
    assert rows(store, listed) == ALL


class DeathError(Exception):
    """The process dies here."""


@dataclass
class Before:
    """Does something once, before the request of a number, counted from 0."""

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


def take_over_and_compact(store: MemoryStore, keep_s: float | None) -> None:
    successor = Owner(store)
    successor.publish(18, "row 7")
    # A user removes an epoch, so that the groups are others.
    store.delete(next(name for name in names(store) if COMPACTED not in name))
    successor.compact(keep_s)


@pytest.mark.parametrize("keep_s", [None, 0.0])
def test_a_process_that_dies_at_any_step_leaves_each_row_once(keep_s: float | None) -> None:
    """And its successor, which removes what was staged, compacts them."""
    for step in itertools.count():
        store, owner = with_two_days()
        owner.store._before = dying = Before(step, die)
        with suppress(DeathError):
            owner.compact(keep_s)
        assert rows(store) == ALL, step
        successor = Owner(store)
        successor.publish(18, "row 7")
        successor.compact(keep_s=0)
        assert rows(store) == ALL + Counter({"row 7": 1}), step
        assert len(names(store)) == 3
        assert names(store, "_staging") == []
        if not dying.has_acted:
            break
    assert step > 10


@pytest.mark.parametrize("keep_s", [None, 0.0])
def test_of_two_owners_at_any_two_steps_one_compacts(keep_s: float | None) -> None:
    """A former owner is frozen before a request, and wakes after its successor has compacted."""
    for step in itertools.count():
        store, owner = with_two_days()
        owner.store._before = waking = Before(step, partial(take_over_and_compact, store, keep_s))
        with suppress(PublishError):
            owner.compact(keep_s)
        counts = rows(store)
        assert max(counts.values()) == 1, step
        if not waking.has_acted:
            break
        # All but what the user has removed, if it counted then, and the successor's.
        assert len(counts) >= len(HOURS), step
    assert step > 10


def test_an_epoch_is_published_while_others_are_compacted() -> None:
    store, owner = with_two_days()
    published = 0

    def publishes() -> None:
        nonlocal published
        # Not within a request of its own, nor while the name is given.
        if published < 3 and not owner.objects._lock.locked():
            published += 1
            owner.publish(18 + published, f"row {6 + published}")

    owner.store._before = publishes
    owner.compact(keep_s=0)
    assert published == 3
    assert rows(store) == ALL + Counter({f"row {n}": 1 for n in (7, 8, 9)})


def test_an_object_ends_where_the_columns_change() -> None:
    store = MemoryStore()
    objects = EpochObjects(store, "memory", PARQUET, "parquet")
    objects.take_over(lambda: None)
    for number, hours in enumerate(HOURS):
        table = pa.table({"a": [number]} if number < 3 else {"a": [number], "b": ["x"]})
        out = io.BytesIO()
        pq.write_table(table, out)
        written = [WrittenFile("", out.getvalue(), None)]
        at = START + timedelta(hours=hours)
        objects.publish(number, written, at, owner=objects.owner)
    ObjectCompaction(store, "memory", objects).run(0)
    large = [name for name in names(store) if COMPACTED in name]
    assert [name[: len("epoch=20260131T11")] for name in large] == [
        "epoch=20260131T11",
        "epoch=20260131T23",
    ]
    tables = [pq.read_table(io.BytesIO(bytes(store.get(name).bytes()))) for name in names(store)]
    assert [row["a"] for table in tables for row in table.to_pylist()] == list(range(len(HOURS)))
    assert [table.num_columns for table in tables] == [1, 2, 2]


def test_epochs_with_folders_are_left_as_they_are() -> None:
    store = MemoryStore()
    owner = Owner(store)
    for number, hours in enumerate(HOURS):
        written = [WrittenFile("table_name=A", b"row\n", None)]
        at = START + timedelta(hours=hours)
        owner.objects.publish(number, written, at, owner=owner.objects.owner)
    before = names(store)
    with pytest.raises(PublishError, match="only epochs without folders are compacted"):
        owner.compact(keep_s=0)
    assert names(store) == before


def test_a_scan_and_the_epoch_of_its_time_stay_together() -> None:
    store = MemoryStore()
    owner = Owner(store)
    owner.publish(0, "epoch", chunk=None)
    for chunk in range(3):
        owner.publish(0, f"chunk {chunk}", chunk=chunk)
    owner.publish(17, "later")
    owner.compact(keep_s=0)
    assert len(names(store)) == 2
    assert rows(store) == Counter(["epoch", "chunk 0", "chunk 1", "chunk 2", "later"])
