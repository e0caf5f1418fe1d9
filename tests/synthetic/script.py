"""The content of a synthetic change stream: partitions, their lineage and their records.

Times are whole microseconds since the Unix epoch, as commit timestamps are.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from slackwater.reader.change_stream import Dialect, PartitionMode
from tests.synthetic.table import SyntheticTable


class Rows(Protocol):
    """The records of a partition, in commit order.

    They are its data change records, and with mutable key ranges also its partition start, event
    and end records.
    """

    def __len__(self) -> int:
        """Return the number of records."""

    def first_at(self, time_us: int) -> int:
        """The index of the first record committed at or after a time."""

    def time_us(self, index: int) -> int:
        """Return the commit time of a record in microseconds."""

    def encoded(self, first: int, end: int) -> Sequence[bytes]:
        """Records [first, end), each as a value of a serialized PartialResultSet."""


class NoRows:
    """An idle partition."""

    def __len__(self) -> int:
        return 0

    def first_at(self, time_us: int) -> int:
        return 0

    def time_us(self, index: int) -> int:
        raise IndexError(index)

    def encoded(self, first: int, end: int) -> Sequence[bytes]:
        return ()


@dataclass(frozen=True, slots=True)
class ScriptedPartition:
    """A partition that covers [start_us, end_us); with mutable key ranges, its end too.

    Attributes:
        end_us: None where it does not end.
        parents: tokens of those that it takes over from; empty for the first ones.
        function: the read function that returns it: a placement, or the stream's own.
    """

    token: str
    start_us: int
    end_us: int | None = None
    parents: tuple[str, ...] = ()
    rows: Rows = field(default_factory=NoRows)
    function: str = ""


@dataclass(frozen=True)
class Script:
    """A whole change stream.

    Attributes:
        rows_per_message: the service sends one; the emulator packs some 40.
        retention_start_us: starts before it are refused.
        mode: how the partitions follow the keys.
        begins_us: when each read function began; starts before it are refused. With more than the
            stream's own function, its option per_placement_tvf is true.
        value_capture_type: the stream's option.
        linger_us: how long a record waits for others of its partition.
        table: what can be scanned; None for nothing.
    """

    dialect: Dialect
    partitions: tuple[ScriptedPartition, ...]
    rows_per_message: int = 1
    retention_start_us: int = 0
    mode: PartitionMode = PartitionMode.IMMUTABLE_KEY_RANGE
    begins_us: Mapping[str, int] = field(default_factory=lambda: {"": 0})
    value_capture_type: str = "OLD_AND_NEW_VALUES"
    linger_us: int = 0
    table: SyntheticTable | None = None

    @property
    def is_per_placement(self) -> bool:
        """True if the stream has a read function for each placement."""
        return set(self.begins_us) != {""}

    def functions(self, now_us: int) -> list[str]:
        """Return the read functions that have begun."""
        return [function for function, us in self.begins_us.items() if us <= now_us]

    @property
    def is_mutable(self) -> bool:
        """True if the partitions have mutable key ranges."""
        return self.mode is PartitionMode.MUTABLE_KEY_RANGE

    @cached_property
    def by_key(self) -> dict[tuple[str, str], ScriptedPartition]:
        """Each partition by its read function and its token."""
        return {(partition.function, partition.token): partition for partition in self.partitions}

    @cached_property
    def children(self) -> dict[str, tuple[ScriptedPartition, ...]]:
        """Those that take over from each partition."""
        by_parent: dict[str, list[ScriptedPartition]] = {}
        for partition in self.partitions:
            for parent in partition.parents:
                by_parent.setdefault(parent, []).append(partition)
        return {token: tuple(children) for token, children in by_parent.items()}

    def alive(self, time_us: int, function: str = "") -> list[ScriptedPartition]:
        """The partitions of a read function that cover a time."""
        return [
            p
            for p in self.partitions
            if p.function == function
            and p.start_us <= time_us
            and (p.end_us is None or time_us < p.end_us)
        ]


def lineage(
    partitions: int, start_us: int, changes_us: Sequence[int], *, seed: int
) -> list[ScriptedPartition]:
    """Partitions that all split, merge or move at the given times, about as many after as before.

    Args:
        partitions: how many at first.
        start_us: when they begin.
        changes_us: rising; at each of them every partition hands over.
        seed: of the choice between split, merge and move.
    """
    choose = random.Random(seed)
    alive = [ScriptedPartition(f"p{i:06}", start_us) for i in range(partitions)]
    made: list[ScriptedPartition] = []
    for generation, change_us in enumerate(changes_us, 1):
        waiting = [_ended(partition, change_us) for partition in alive]
        made += waiting
        alive = []
        while waiting:
            kind = choose.choice(("split", "merge", "move"))
            taken = [waiting.pop() for _ in range(min(len(waiting), 2 if kind == "merge" else 1))]
            parents = tuple(sorted(p.token for p in taken))
            for _ in range(2 if kind == "split" else 1):
                token = f"g{generation:02}p{len(alive):06}"
                alive.append(ScriptedPartition(token, change_us, None, parents))
    return made + alive


def _ended(partition: ScriptedPartition, end_us: int) -> ScriptedPartition:
    return ScriptedPartition(
        partition.token, partition.start_us, end_us, partition.parents, partition.rows
    )
