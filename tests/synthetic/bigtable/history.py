"""The content of a synthetic table's change stream: its changes, its tablets and its stalls.

Times are whole microseconds of the Unix epoch. The position of a change in the stream is the time
of its arrival; the commit timestamp of one that was replicated is earlier.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, pairwise
from typing import Final, NamedTuple


class KeyRange(NamedTuple):
    """The row keys in [start_key, end_key); empty bytes stand for the ends of the key space."""

    start_key: bytes
    end_key: bytes

    def overlap(self, other: KeyRange) -> KeyRange | None:
        """Return the keys that are in both, None if there are none."""
        start = max(self.start_key, other.start_key)
        end = min((end for end in (self.end_key, other.end_key) if end), default=b"")
        return None if end and start >= end else KeyRange(start, end)


@dataclass(frozen=True, slots=True)
class SetCell:
    """A cell's new value."""

    family: str
    qualifier: bytes
    timestamp_us: int
    value: bytes


@dataclass(frozen=True, slots=True)
class DeleteCells:
    """A column's cells with timestamps in [start_us, end_us) go; 0 is no bound."""

    family: str
    qualifier: bytes
    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True)
class DeleteFamily:
    """A family's cells go."""

    family: str


@dataclass(frozen=True, slots=True)
class AddToCell:
    """An input goes into an aggregate cell."""

    family: str
    qualifier: bytes
    timestamp_us: int
    input_value: int


@dataclass(frozen=True, slots=True)
class MergeToCell:
    """An accumulated state is merged into an aggregate cell."""

    family: str
    qualifier: bytes
    timestamp_us: int
    state: bytes


Entry = SetCell | DeleteCells | DeleteFamily | AddToCell | MergeToCell


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one row.

    Attributes:
        arrival_us: when the stream shows it.
        commit_us: when it was applied; earlier than its arrival if another cluster applied it.
        cluster: where it was applied; empty for garbage collection.
    """

    arrival_us: int
    commit_us: int
    row_key: bytes
    tie_breaker: int
    cluster: str
    is_garbage_collection: bool
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Tablet:
    """A range of keys that one server serves, and so a partition, during [from_us, until_us).

    Attributes:
        until_us: None if it lasts.
    """

    start_key: bytes
    end_key: bytes
    from_us: int
    until_us: int | None = None

    @property
    def keys(self) -> KeyRange:
        """Return the range of its keys."""
        return KeyRange(self.start_key, self.end_key)


@dataclass(frozen=True, slots=True)
class Stall:
    """Replication stands still during [from_us, until_us).

    The stream of a partition that has some of the keys stays where it was.
    """

    start_key: bytes
    end_key: bytes
    from_us: int
    until_us: int


@dataclass(frozen=True)
class History:
    """A whole change stream.

    A position in it is a number of changes: those that arrived before.

    Attributes:
        changes: by arrival.
        tablets: at each time from the stream's creation on, some of them tile the key space.
        lag_us: the estimated low watermark is the position's time less this.
    """

    changes: Sequence[Change]
    tablets: tuple[Tablet, ...]
    stalls: tuple[Stall, ...] = ()
    lag_us: int = 0
    # Positions of the changes in each range that was read.
    _positions: dict[KeyRange, list[int]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @cached_property
    def created_us(self) -> int:
        """The time of the change stream's creation."""
        return min(tablet.from_us for tablet in self.tablets)

    @cached_property
    def _arrivals(self) -> list[int]:
        return [change.arrival_us for change in self.changes]

    @cached_property
    def _by_key(self) -> tuple[list[bytes], list[int]]:
        """Row keys in order, and the position of the change that each is of."""
        order = sorted(range(len(self.changes)), key=lambda i: self.changes[i].row_key)
        return [self.changes[i].row_key for i in order], order

    def tablets_at(self, time_us: int) -> list[Tablet]:
        """Return the tablets that tile the key space at a time, by their keys."""
        return sorted(
            (
                tablet
                for tablet in self.tablets
                if tablet.from_us <= time_us
                and (tablet.until_us is None or time_us < tablet.until_us)
            ),
            key=lambda tablet: tablet.start_key,
        )

    def position_at(self, time_us: int) -> int:
        """Return the number of changes that arrive before a time."""
        return bisect_left(self._arrivals, time_us)

    def positions(self, keys: KeyRange, first: int = 0) -> list[int]:
        """Return the positions of the changes of a range of keys, from one position on."""
        if keys not in self._positions:
            row_keys, order = self._by_key
            end = bisect_left(row_keys, keys.end_key) if keys.end_key else len(order)
            self._positions[keys] = sorted(order[bisect_left(row_keys, keys.start_key) : end])
        positions = self._positions[keys]
        return positions[bisect_left(positions, first) :]

    def stall_at(self, keys: KeyRange, time_us: int) -> Stall | None:
        """Return what holds up a range of keys at a time; of several, what began first."""
        stalls = (
            stall
            for stall in self.stalls
            if stall.from_us <= time_us < stall.until_us
            and keys.overlap(KeyRange(stall.start_key, stall.end_key))
        )
        return min(stalls, key=lambda stall: stall.from_us, default=None)


@dataclass(frozen=True, slots=True)
class Shape:
    """The size and the kind of a generated history.

    Attributes:
        tablets: how many there are at first.
        churn_per_s: splits and merges a second.
        clusters: one, or two, of which the second's changes are replicated.
        late: share of the replicated changes that arrive after the low watermark has passed them.
        rows: how many rows change.
        large: share of the changes that do not fit into one message.
        stalls: how often replication stands still, for up to a quarter of the time.
    """

    start_us: int = 1_700_000_000_000_000
    seconds: float = 10
    tablets: int = 4
    changes_per_s: float = 50
    churn_per_s: float = 1
    clusters: int = 1
    late: float = 0.05
    rows: int = 100
    large: float = 0.02
    stalls: int = 0

    @property
    def end_us(self) -> int:
        """The time after the last change."""
        return self.start_us + int(self.seconds * 1_000_000)


CLUSTERS: Final = ("local", "remote")
FAMILIES: Final = ("info", "stats", "sums")
# The longest value that the service need not cut, and more entries than it puts in one message.
LARGE_BYTES: Final = 4_096
_LAG_US: Final = 1_000_000


def generate(seed: int, shape: Shape | None = None) -> History:
    """Return the random history of a seed."""
    shape = shape or Shape()
    choose = random.Random(seed)
    tablets = _tablets(choose, shape)
    borders = sorted({tablet.start_key for tablet in tablets} - {b""})
    keys = sorted(
        {
            _key(choose) if choose.random() < 0.8 else _near(choose, borders)
            for _ in range(shape.rows)
        }
    )
    stalls = []
    for _ in range(shape.stalls):
        start, end = sorted((_key(choose), _key(choose)))
        from_us = choose.randrange(shape.start_us, shape.end_us)
        length_us = choose.randint(1, int(shape.seconds * 250_000))
        stalls.append(Stall(start, end + b"\0", from_us, from_us + length_us))
    lag_us = _LAG_US if shape.clusters > 1 else 0
    return History(_changes(choose, shape, keys), tuple(tablets), tuple(stalls), lag_us)


def _key(choose: random.Random) -> bytes:
    prefix = choose.choice((b"", b"", b"", b"user#", b"user#1", b"\xff\xff"))
    return prefix + choose.randbytes(choose.randint(1, 8))


def _near(choose: random.Random, borders: Sequence[bytes]) -> bytes:
    """Return a border of tablets, or a key next to one."""
    if not borders:
        return b"\0"
    border = choose.choice(borders)
    return choose.choice((border, border, border + b"\0", border[:-1] or b"\0"))


def _tablets(choose: random.Random, shape: Shape) -> list[Tablet]:
    """Return tablets that split, merge, exchange keys, and merge to split back soon after."""
    borders: set[bytes] = set()
    while len(borders) < shape.tablets - 1:
        borders.add(_key(choose))
    alive = [
        Tablet(start, end, shape.start_us) for start, end in pairwise([b"", *sorted(borders), b""])
    ]
    ended: list[Tablet] = []
    order = count()
    # Each has a time, a number that tells those of one time apart, and what to restore, if so.
    events: list[tuple[int, int, tuple[bytes, ...]]] = [
        (choose.randrange(shape.start_us + 1, shape.end_us), next(order), ())
        for _ in range(int(shape.churn_per_s * shape.seconds))
    ]
    heapq.heapify(events)
    while events:
        at_us, _, restored = heapq.heappop(events)
        first, past, new = _event(choose, alive, restored)
        if not new or any(tablet.from_us == at_us for tablet in alive[first:past]):
            continue
        old = alive[first:past]
        ended += [Tablet(t.start_key, t.end_key, t.from_us, at_us) for t in old]
        alive[first:past] = [Tablet(start, end, at_us) for start, end in pairwise(new)]
        if len(new) == 2 and not restored and choose.random() < 0.5:
            back = (*(tablet.start_key for tablet in old), old[-1].end_key)
            again_us = at_us + choose.choice((1, 1_000, 100_000, 1_000_000))
            heapq.heappush(events, (again_us, next(order), back))
    return ended + alive


def _event(
    choose: random.Random, alive: Sequence[Tablet], restored: tuple[bytes, ...]
) -> tuple[int, int, Sequence[bytes]]:
    """Return which neighbours end, [first, past), and the borders of those that follow them.

    Nothing follows if nothing can be done.
    """
    if restored:
        whole = KeyRange(restored[0], restored[-1])
        places = [i for i, tablet in enumerate(alive) if tablet.keys == whole]
        return (places[0], places[0] + 1, restored) if places else (0, 0, ())
    first = choose.randrange(len(alive))
    kind = choose.choice(("split", "merge", "exchange"))
    past = min(len(alive), first + (1 if kind == "split" else choose.choice((2, 2, 3))))
    start, end = alive[first].start_key, alive[past - 1].end_key
    inner = set()
    if kind != "merge" or past - first == 1:
        # A key between the ends, near the start so that there is one in a range of close keys.
        drawn = {_key(choose), start + choose.randbytes(choose.randint(1, 2))}
        old = {tablet.start_key for tablet in alive[first:past]}
        inner = {key for key in drawn if key > start and (not end or key < end)} - old
        if not inner:
            return 0, 0, ()
    return first, past, [start, *sorted(inner), end]


def _changes(choose: random.Random, shape: Shape, keys: Sequence[bytes]) -> tuple[Change, ...]:
    """Return changes by arrival; those of a row and a cluster are in commit order, too."""
    times = sorted(
        choose.randrange(shape.start_us, shape.end_us)
        for _ in range(int(shape.changes_per_s * shape.seconds))
    )
    last: dict[tuple[bytes, str], Change] = {}
    changes: list[Change] = []
    at_us = 0
    for time_us in times:
        # Some come at the time of the one before.
        at_us = at_us if at_us and choose.random() < 0.1 else time_us
        key = choose.choice(keys)
        is_collected = choose.random() < 0.05
        cluster = "" if is_collected else CLUSTERS[choose.randrange(shape.clusters)]
        before = last.get((key, cluster))
        if before is not None and before.arrival_us >= at_us:
            continue
        commit_us = at_us
        if cluster == CLUSTERS[1]:
            is_late = choose.random() < shape.late
            commit_us -= choose.randint(*((_LAG_US, 3 * _LAG_US) if is_late else (1, _LAG_US)))
        if before is not None:
            commit_us = max(commit_us, before.commit_us + 1)
        change = Change(
            at_us,
            commit_us,
            key,
            choose.getrandbits(31),
            cluster,
            is_collected,
            _entries(choose, commit_us, is_collected, choose.random() < shape.large),
        )
        last[key, cluster] = change
        changes.append(change)
    return tuple(changes)


def _entries(
    choose: random.Random, commit_us: int, is_collected: bool, is_large: bool
) -> tuple[Entry, ...]:
    if is_collected:
        return (DeleteCells(FAMILIES[0], b"old", 0, commit_us - 1_000_000),)
    if not is_large:
        return tuple([_entry(choose, commit_us, 40) for _ in range(choose.choice((1, 1, 1, 2, 4)))])
    if choose.random() < 0.5:
        return tuple([_entry(choose, commit_us, 100) for _ in range(choose.randint(100, 300))])
    # A whole number of chunks, or one byte more, or anything.
    size = choose.choice((LARGE_BYTES, 2 * LARGE_BYTES, LARGE_BYTES + 1, choose.randint(1, 40_000)))
    long = SetCell(FAMILIES[0], b"long", commit_us // 1_000 * 1_000, choose.randbytes(size))
    return (_entry(choose, commit_us, 40), long, _entry(choose, commit_us, 40))


def _entry(choose: random.Random, commit_us: int, bytes_max: int) -> Entry:
    family, qualifier = FAMILIES[choose.randrange(2)], b"q%d" % choose.randrange(4)
    cell_us, kind = commit_us // 1_000 * 1_000, choose.random()
    if kind < 0.8:
        return SetCell(family, qualifier, cell_us, choose.randbytes(choose.randint(0, bytes_max)))
    if kind < 0.86:
        return DeleteCells(family, qualifier, choose.choice((0, cell_us - 9_000)), cell_us)
    if kind < 0.92:
        return DeleteFamily(family)
    if kind < 0.96:
        return AddToCell(FAMILIES[2], qualifier, cell_us, choose.randint(-9, 9))
    return MergeToCell(FAMILIES[2], qualifier, cell_us, choose.randbytes(8))
