"""Random histories of partitions with mutable key ranges: starts, ends, and keys that move."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from slackwater.reader.records import PartitionEventRecord, PartitionStartRecord

STEP_NS = 1_000
_KEYS = 4


@dataclass
class MutableLife:
    """One partition as it truly was, over [start_ns, end_ns], both inclusive.

    Attributes:
        changes: its data change records in order: a key and the time.
        starts: its start records, in order.
        events: its event records, in order.
    """

    token: str
    start_ns: int
    end_ns: int | None = None
    changes: list[tuple[int, int]] = field(default_factory=list)
    starts: list[PartitionStartRecord] = field(default_factory=list)
    events: list[PartitionEventRecord] = field(default_factory=list)

    def lives_at(self, time_ns: int) -> bool:
        """What a query with a NULL partition token says of it."""
        return self.start_ns <= time_ns and (self.end_ns is None or self.end_ns > time_ns)

    def changes_in(self, start_ns: int, end_ns: int) -> Iterator[tuple[int, int]]:
        """Its data change records in [start_ns, end_ns]."""
        return ((key, at_ns) for key, at_ns in self.changes if start_ns <= at_ns <= end_ns)


@dataclass
class MutableHistory:
    """A stream's partitions from time 0 to end_ns. Each key has a record at every microsecond."""

    lives: dict[str, MutableLife]
    end_ns: int

    def alive_at(self, time_ns: int) -> list[MutableLife]:
        return [life for life in self.lives.values() if life.lives_at(time_ns)]


class _Maker:
    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.lives: dict[str, MutableLife] = {}
        alive = [self.begin(0) for _ in range(choose.randint(1, 3))]
        self.owner = {key: choose.choice(alive) for key in range(_KEYS)}
        self.sequence = 0

    def begin(self, start_ns: int) -> MutableLife:
        life = MutableLife(f"p{len(self.lives)}", start_ns)
        self.lives[life.token] = life
        return life

    def next_sequence(self) -> str:
        self.sequence += 1
        return f"{self.sequence:016x}-00000000"

    def step(self, time_ns: int) -> None:
        """Let one microsecond pass, perhaps with moves; a moved key's record is on either side."""
        before = dict(self.owner)
        if self.choose.random() < 0.4:
            self.change(time_ns)
        for key in range(_KEYS):
            side = before if self.choose.random() < 0.5 else self.owner
            side[key].changes.append((key, time_ns))

    def change(self, time_ns: int) -> None:
        """Start some partitions, move some keys, and end some partitions that hold none then."""
        old = [
            life
            for life in self.lives.values()
            if life.lives_at(time_ns) and life.start_ns < time_ns
        ]
        new = [self.begin(time_ns) for _ in range(self.choose.choice((0, 0, 1, 2)))]
        for life in new:
            for announcer in self.choose.sample(old, self.choose.randint(1, min(2, len(old)))):
                announcer.starts.append(
                    PartitionStartRecord(time_ns, self.next_sequence(), (life.token,))
                )
        ending = self.choose.sample(old, self.choose.randint(0, len(old)))
        staying = [life for life in (*old, *new) if life not in ending]
        if not staying:
            staying = [ending.pop()]
        self.move(time_ns, ending, staying)
        for life in ending:
            life.end_ns = time_ns

    def move(self, time_ns: int, ending: list[MutableLife], staying: list[MutableLife]) -> None:
        moved: set[tuple[str, str]] = set()
        for key, source in list(self.owner.items()):
            if source in ending or self.choose.random() < 0.3:
                destination = self.choose.choice(staying)
                if destination is not source:
                    self.owner[key] = destination
                    moved.add((source.token, destination.token))
        for token in sorted({token for move in moved for token in move}):
            self.lives[token].events.append(
                PartitionEventRecord(
                    time_ns,
                    self.next_sequence(),
                    token,
                    tuple(sorted(source for source, to in moved if to == token)),
                    tuple(sorted(to for source, to in moved if source == token)),
                )
            )


def random_mutable_history(choose: random.Random, *, steps: int | None = None) -> MutableHistory:
    """Return a history chosen by a seed, of so many steps."""
    maker = _Maker(choose)
    steps = steps or choose.randint(2, 20)
    for number in range(1, steps + 1):
        maker.step(number * STEP_NS)
    return MutableHistory(maker.lives, (steps + 1) * STEP_NS)
