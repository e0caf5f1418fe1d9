"""The positions in a consumer group, and the rules of sending each epoch once.

The messages of an epoch are split by a hash of their key into shards, and each shard is sent in one
Kafka transaction. With its messages the transaction commits the epoch's low watermark, as an offset
in a consumer group of the pipeline's. So a shard has sent exactly the messages up to that low
watermark, and a message is to be sent if and only if it was committed after it. When all shards of
an epoch are done, a last transaction commits the low watermark for the pipeline as a whole.

The offsets belong to the partitions of a topic that has no messages: partition 0 is the pipeline
as a whole, and partition n is shard n, counted from 1.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# The partition of the pipeline as a whole.
WHOLE: Final = 0
_AFTER_ALL_CHUNKS: Final = 2**63


@dataclass(frozen=True, slots=True)
class Position:
    """The position up to which messages were sent.

    Attributes:
        watermark_us: a low watermark, in microseconds since the Unix epoch.
        shards: the number of shards that the epoch was split into.
        chunk: the chunk of an initial scan at this low watermark; None for an epoch, and for all
            chunks of a scan.
        epoch_id: Spark's number of the micro-batch, for people; None for a scan.
        source: the change stream's resource name; None in that of a shard.
    """

    watermark_us: int
    shards: int
    chunk: int | None = None
    epoch_id: int | None = None
    source: str | None = None

    @property
    def order(self) -> tuple[int, int]:
        """The order of positions: a scan's chunks come before the scan as a whole."""
        chunk = _AFTER_ALL_CHUNKS if self.chunk is None else self.chunk
        return (self.watermark_us, chunk)

    def metadata(self) -> str:
        """Return the text that is committed with the offset, which is watermark_us."""
        values = {
            "shards": self.shards,
            "chunk": self.chunk,
            "epoch": self.epoch_id,
            "source": self.source,
        }
        return json.dumps({name: value for name, value in values.items() if value is not None})

    @staticmethod
    def parse(offset: int, metadata: str | None) -> "Position | None":
        """Return the position of a committed offset; None if there is none.

        An operator who resets the group's offsets leaves no metadata: then the number of shards is
        0, which stands for any.
        """
        if offset < 0:
            return None
        try:
            values = json.loads(metadata or "{}")
        except ValueError:
            values = {}
        names = ("chunk", "epoch", "source")
        return Position(offset, int(values.get("shards", 0)), *map(values.get, names))


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of a pipeline.

    Attributes:
        whole: that through which every shard is complete; None before the first epoch.
        by_shard: those of the shards that have one, by their number, which begins at 1.
    """

    whole: Position | None
    by_shard: Mapping[int, Position]

    @property
    def ahead(self) -> Position | None:
        """The furthest position of a shard beyond the whole: that of an epoch sent in part."""
        furthest = max(self.by_shard.values(), key=lambda p: p.order, default=None)
        if furthest is None or not is_after(furthest, self.whole):
            return None
        return furthest


def is_after(position: Position, other: Position | None) -> bool:
    """Return whether a position lies after another one, or after none."""
    return other is None or position.order > other.order


def later(one: Position | None, other: Position | None) -> Position | None:
    """Return the later of two positions."""
    if one is None or (other is not None and is_after(other, one)):
        return other
    return one


def shards_to_use(positions: Positions, setting: int) -> int:
    """Return the number of shards for the next epoch.

    An epoch that was sent in part has to be sent to its end with the shards that it was begun with:
    with others its keys would be in other shards, and a shard's position would not say which of
    them were sent.

    Args:
        positions: as the group has them, when no other process can change them.
        setting: the number that the user asks for.
    """
    ahead = positions.ahead
    return ahead.shards if ahead is not None and ahead.shards else setting
