"""Random histories of partitions with mutable key ranges: starts, ends, and keys that move."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from slackwater.reader.records import PartitionEventRecord, PartitionStartRecord
from slackwater.state.models import PartitionKey

STEP_NS = 1_000
# The read functions of a stream with one for each of three placements.
PLACEMENTS = ("asia", "default", "europe")
KEY_RANGES = 4


@dataclass
class MutableLife:
    """One partition as it truly was, over [start_ns, end_ns], both inclusive.

    Attributes:
        changes: its data change records in order: a key and the time.
        starts: its start records, in order.
        events: its event records, in order.
        function: the read function whose partition it is.
    """

    token: str
    start_ns: int
    end_ns: int | None = None
    changes: list[tuple[int, int]] = field(default_factory=list)
    starts: list[PartitionStartRecord] = field(default_factory=list)
    events: list[PartitionEventRecord] = field(default_factory=list)
    function: str = ""

    @property
    def key(self) -> PartitionKey:
        return PartitionKey(self.function, self.token)

    def lives_at(self, time_ns: int) -> bool:
        """What a query with a NULL partition token says of it."""
        return self.start_ns <= time_ns and (self.end_ns is None or self.end_ns > time_ns)

    def changes_in(self, start_ns: int, end_ns: int) -> Iterator[tuple[int, int]]:
        """Its data change records in [start_ns, end_ns]."""
        return ((key, at_ns) for key, at_ns in self.changes if start_ns <= at_ns <= end_ns)


@dataclass
class MutableHistory:
    """A stream's partitions from time 0 to end_ns. Each key has a record at every microsecond.

    Attributes:
        begins: when each read function began.
    """

    lives: dict[PartitionKey, MutableLife]
    end_ns: int
    begins: dict[str, int]

    def alive_at(self, time_ns: int) -> list[MutableLife]:
        return [life for life in self.lives.values() if life.lives_at(time_ns)]


class _Maker:
    def __init__(
        self, choose: random.Random, functions: Sequence[str], added: tuple[str, int] | None
    ) -> None:
        self.choose = choose
        self.added = added
        self.lives: dict[PartitionKey, MutableLife] = {}
        self.tokens = Counter[str]()
        alive = [self.begin(0, f) for f in functions for _ in range(choose.randint(1, 3))]
        self.owner = {key: choose.choice(alive) for key in range(KEY_RANGES)}
        self.sequence = 0
        self.begun_ns = 0

    def begin(self, start_ns: int, function: str) -> MutableLife:
        """Begin a partition; functions have partitions with the same tokens."""
        life = MutableLife(f"p{self.tokens[function]}", start_ns, function=function)
        self.tokens[function] += 1
        self.lives[life.key] = life
        return life

    def one_of(self, functions: Sequence[str]) -> str:
        """Choose one; without a choice nothing is drawn, so that seeds keep their histories."""
        return functions[0] if len(functions) == 1 else self.choose.choice(functions)

    def next_sequence(self) -> str:
        self.sequence += 1
        return f"{self.sequence:016x}-00000000"

    def step(self, time_ns: int) -> None:
        """Let one microsecond pass, perhaps with moves; a moved key's record is on either side."""
        before = dict(self.owner)
        if self.choose.random() < 0.4:
            self.change(time_ns)
        for key in range(KEY_RANGES):
            side = before if self.choose.random() < 0.5 else self.owner
            side[key].changes.append((key, time_ns))

    def change(self, time_ns: int) -> None:
        """Start some partitions, move some keys, and end some partitions that hold none then."""
        old = [
            life
            for life in self.lives.values()
            if life.lives_at(time_ns) and life.start_ns < time_ns
        ]
        functions = sorted({life.function for life in old})
        new = [
            self.begin(time_ns, self.one_of(functions))
            for _ in range(self.choose.choice((0, 0, 1, 2)))
        ]
        for life in new:
            same = [other for other in old if other.function == life.function]
            for announcer in self.choose.sample(same, self.choose.randint(1, min(2, len(same)))):
                announcer.starts.append(
                    PartitionStartRecord(time_ns, self.next_sequence(), (life.token,))
                )
        ending = self.choose.sample(old, self.choose.randint(0, len(old)))
        staying = [life for life in (*old, *new) if life not in ending]
        for function in functions:
            # A read function always has a partition.
            if not any(life.function == function for life in staying):
                last = [life for life in ending if life.function == function][-1]
                ending.remove(last)
                staying.append(last)
        if self.added is not None and time_ns >= self.added[1]:
            # Nobody announces the first partition of a function that is added.
            staying.append(self.begin(time_ns, self.added[0]))
            self.begun_ns, self.added = time_ns, None
        self.move(time_ns, ending, staying)
        for life in ending:
            life.end_ns = time_ns

    def move(self, time_ns: int, ending: list[MutableLife], staying: list[MutableLife]) -> None:
        moved: set[tuple[PartitionKey, PartitionKey]] = set()
        for key, source in list(self.owner.items()):
            if source in ending or self.choose.random() < 0.3:
                destination = self.choose.choice(staying)
                if destination is not source:
                    self.owner[key] = destination
                    moved.add((source.key, destination.key))
        for moving in sorted({key for move in moved for key in move}):
            self.lives[moving].events.append(
                PartitionEventRecord(
                    time_ns,
                    self.next_sequence(),
                    moving.token,
                    tuple(sorted(source.token for source, to in moved if to == moving)),
                    tuple(sorted(to.token for source, to in moved if source == moving)),
                )
            )


def random_mutable_history(
    choose: random.Random,
    *,
    steps: int | None = None,
    functions: Sequence[str] = ("",),
    adds: bool = False,
) -> MutableHistory:
    """Return a history chosen by a seed.

    Args:
        choose: chooses.
        steps: how long it is.
        functions: the read functions; keys move between the partitions of all of them.
        adds: True if the last function begins somewhere within the history, if it is long enough.
    """
    first, added = list(functions), None
    if adds:
        added = (first.pop(), choose.randint(1, 8) * STEP_NS)
    maker = _Maker(choose, first, added)
    steps = steps or choose.randint(2, 20)
    for number in range(1, steps + 1):
        maker.step(number * STEP_NS)
    begins = dict.fromkeys(first, 0)
    if added is not None and maker.added is None:
        begins[added[0]] = maker.begun_ns
    return MutableHistory(maker.lives, (steps + 1) * STEP_NS, begins)
