"""The positions in a table's change stream, and what a read leaves of them. Pure rules.

At any time the positions of a pipeline make up the table: each key has one. A partition that is
split or merged leaves a position for each of its parts, and each names the new partition that it
becomes part of (CloseStream in Bigtable's API). The new partition is read once the positions of all
its parts are there. Bigtable queues nothing: if another change of partitions came in between, the
other parts may never come. So the parts that are there are read by themselves meanwhile: the answer
is data if such a partition exists again, or else the present partitions.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from slackwater.reader.bigtable.row_range import WHOLE_TABLE, RowRange, are_parts

# A retention period is a day at least.
_OLD_US: Final = 3_600 * 1_000_000


@dataclass(frozen=True, slots=True)
class Position:
    """The place up to which the changes of some keys were read.

    Attributes:
        keys: the keys.
        partition: the partition as part of which they are to be read on.
        token: Bigtable's continuation token for the keys; None before the first.
        at_us: the end of the epoch in which the token came, in microseconds; without a token the
            time from which on the keys are read, inclusive.
        stands_at_us: how far Bigtable has the changes of the keys, in microseconds, if their
            replication stood still at the end of the epoch; None if it did not.
    """

    keys: RowRange
    partition: RowRange
    token: str | None
    at_us: int
    stands_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """The parts into which Bigtable has closed a partition.

    Attributes:
        tokens: a continuation token for each part, by its keys.
        partitions: the new partitions.
    """

    tokens: Sequence[tuple[RowRange, str]]
    partitions: Sequence[RowRange]


@dataclass(frozen=True, slots=True)
class Read:
    """A read of one partition, from the positions of its parts.

    Attributes:
        partition: its keys.
        positions: one, or that of each part.
    """

    partition: RowRange
    positions: tuple[Position, ...]

    @property
    def label(self) -> str:
        """The name of the partition among the others."""
        return self.partition.label

    def after(
        self,
        token: str | None,
        closed: Closed | None,
        at_us: int,
        stands_at_us: int | None = None,
    ) -> tuple[Position, ...]:
        """Return the positions that a read leaves.

        Args:
            token: the last one that came; None if none came.
            closed: the partition's end, if it came.
            at_us: the end of the epoch, in microseconds.
            stands_at_us: see Position.
        """
        if closed is not None and self.is_closed_by(closed):
            return tuple(
                Position(keys, _partition_of(keys, closed.partitions), part, at_us)
                for keys, part in closed.tokens
            )
        if token is not None:
            return (Position(self.partition, self.partition, token, at_us, stands_at_us),)
        return tuple(replace(position, stands_at_us=None) for position in self.positions)

    def needs_token(self, end_us: int) -> bool:
        """Return whether a read up to a time has to bring a token.

        A read of a partition without changes may end before the first heartbeat. Its position would
        grow old, and one day lie before the retention period.
        """
        return end_us - min(position.at_us for position in self.positions) > _OLD_US

    def is_closed_by(self, closed: Closed) -> bool:
        """Return whether the parts make up the partition; otherwise changes would be lost."""
        return are_parts((keys for keys, _ in closed.tokens), self.partition)


def _partition_of(keys: RowRange, partitions: Iterable[RowRange]) -> RowRange:
    """Return the new partition that keys become part of; themselves if none is named."""
    return next((partition for partition in partitions if partition.holds(keys)), keys)


def whole_reads(positions: Iterable[Position]) -> tuple[list[Read], list[Position]]:
    """Return the reads of partitions that have all their parts, and the parts of the others."""
    by_partition: dict[RowRange, list[Position]] = {}
    for position in sorted(positions, key=lambda each: each.keys):
        by_partition.setdefault(position.partition, []).append(position)
    reads, others = [], list[Position]()
    for partition, parts in by_partition.items():
        if are_parts((part.keys for part in parts), partition):
            reads.append(Read(partition, tuple(parts)))
        else:
            others += parts
    return reads, others


def reads_of(positions: Iterable[Position]) -> list[Read]:
    """Return the reads by which all positions move on, in the order of their keys."""
    reads, others = whole_reads(positions)
    return sorted([*reads, *map(alone, others)], key=lambda read: read.partition)


def alone(part: Position) -> Read:
    """Return the read of a part by itself."""
    return Read(part.keys, (part,))


def make_up_table(positions: Iterable[Position]) -> bool:
    """Return whether each key has one position."""
    return are_parts((position.keys for position in positions), WHOLE_TABLE)


def standing(positions: Iterable[Position]) -> list[Position]:
    """Return the positions of the partitions whose replication stands still."""
    return [position for position in positions if position.stands_at_us is not None]


def starting_at(partitions: Iterable[RowRange], start_us: int) -> list[Position]:
    """Return the positions of partitions that are read from a time on, in microseconds."""
    return [Position(keys, keys, None, start_us) for keys in partitions]


def to_text(positions: Iterable[Position]) -> str:
    """Return positions as JSON."""
    return json.dumps(
        [
            [
                *_texts(each.keys),
                None if each.partition == each.keys else _texts(each.partition),
                each.token,
                each.at_us,
                *([] if each.stands_at_us is None else [each.stands_at_us]),
            ]
            for each in positions
        ]
    )


def from_text(text: str) -> list[Position]:
    """Return the positions of to_text()."""
    return [
        Position(_range(start, end), _range(*(partition or (start, end))), token, at_us, *stands_at)
        for start, end, partition, token, at_us, *stands_at in json.loads(text)
    ]


def _texts(keys: RowRange) -> tuple[str, ...]:
    return tuple(b64encode(key).decode() for key in keys)


def _range(start: str, end: str) -> RowRange:
    return RowRange(b64decode(start), b64decode(end))
