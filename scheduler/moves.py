"""The audit of moves of keys between partitions, without a database, Spark or a clock.

A move shows twice, at one time: in a partition event record of the partition that the keys leave,
and in one of the partition that they go to (PartitionEventRecord in change_stream.proto). An epoch
reads all partitions through its end, so it has both. One without the other means that a partition
or its records were not read.

The two partitions may be read by different tasks. So each task adds its moves up by the second, and
stores only the seconds that do not add up.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from slackwater.reader.records import PartitionEventRecord
from slackwater.scheduler.epoch import Cut
from slackwater.state.models import MoveCounts
from slackwater.timestamp import NANOSECONDS_PER_SECOND, format_rfc3339

# The largest that a signed column of 64 bits holds.
_DIGESTS: Final = 2**63


def count_moves(events: Iterable[PartitionEventRecord], cut: Cut) -> tuple[MoveCounts, ...]:
    """Return the moves that events show, by second, without the seconds that add up.

    Args:
        events: of all partitions that a task has read. Those before the cut, of a partition that is
            read late, are left out: an earlier epoch had their other side.
        cut: the epoch's.
    """
    return _unbalanced(
        counts
        for event in events
        if cut.contains(event.commit_timestamp_ns)
        for counts in _of_event(event)
    )


def describe_unmatched(moves: Iterable[MoveCounts]) -> list[str]:
    """Return where moves were read from one side only, a sentence each; empty if nowhere.

    Args:
        moves: of all tasks of a plan, as count_moves() returns them.
    """
    return [
        f"keys moved in the second after {format_rfc3339(counts.second_ns)}, and not every move"
        f" was read from both sides: {counts.moves_out} out and {counts.moves_in} in"
        for counts in _unbalanced(moves)
    ]


def _of_event(event: PartitionEventRecord) -> Iterable[MoveCounts]:
    time_ns, token = event.commit_timestamp_ns, event.partition_token
    second_ns = time_ns - time_ns % NANOSECONDS_PER_SECOND
    for destination in event.move_out_destinations:
        yield MoveCounts(second_ns, 1, 0, _digest(time_ns, token, destination))
    for source in event.move_in_sources:
        yield MoveCounts(second_ns, 0, 1, -_digest(time_ns, source, token))


def _digest(time_ns: int, source: str, destination: str) -> int:
    text = f"{time_ns} {source} {destination}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest())


def _unbalanced(moves: Iterable[MoveCounts]) -> tuple[MoveCounts, ...]:
    """Return the sums of the seconds that do not add up, in order."""
    by_second: dict[int, MoveCounts] = {}
    for counts in moves:
        total = by_second.get(counts.second_ns, MoveCounts(counts.second_ns, 0, 0, 0))
        by_second[counts.second_ns] = MoveCounts(
            counts.second_ns,
            total.moves_out + counts.moves_out,
            total.moves_in + counts.moves_in,
            (total.digest + counts.digest) % _DIGESTS,
        )
    return tuple(
        counts
        for _, counts in sorted(by_second.items())
        if counts.digest or counts.moves_out != counts.moves_in
    )
