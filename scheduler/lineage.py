"""The rules of partition lineage, without a database, Spark or a clock.

A low watermark W says that every partition has been read through W. From what is known of the
partitions, these rules say which are to be read in the epoch that starts at W, and when a child
partition may start: only after all its parents have finished ("Child partitions records" in
Spanner's documentation).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from scheduler.errors import UnknownParentError
from state.facts import Partition


class PartitionState(StrEnum):
    """Where a partition stands at a low watermark."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


def is_finished(partition: Partition, watermark_ns: int) -> bool:
    """True if the partition was shown to have ended, by an epoch at or before the watermark.

    The end alone does not count: an epoch that starts at the watermark and showed it is replayed
    from the watermark, and has to come upon the partition's children in the same way again.
    """
    return (
        partition.end_timestamp_ns is not None
        and partition.end_found_ns is not None
        and partition.end_timestamp_ns <= watermark_ns
        and partition.end_found_ns < watermark_ns
    )


def roots(open_partitions: Collection[Partition], watermark_ns: int) -> list[Partition]:
    """The partitions that an epoch starts with, in order of start and token.

    Args:
        open_partitions: every partition that is not finished at the watermark. A parent that is
            not among them has finished: partitions are forgotten only when they have, and a
            child is never recorded with a parent that was not seen (see is_ready).
        watermark_ns: the low watermark at which the epoch starts.
    """
    tokens = {partition.token for partition in open_partitions}
    starting = [
        partition
        for partition in open_partitions
        if tokens.isdisjoint(partition.parents) and partition.start_timestamp_ns <= watermark_ns
    ]
    return sorted(starting, key=lambda p: (p.start_timestamp_ns, p.token))


def start_position_ns(partition: Partition, watermark_ns: int) -> int:
    """The start_timestamp of a root's query: what lies before was read in earlier epochs."""
    return max(partition.start_timestamp_ns, watermark_ns)


def is_ready(
    child: Partition,
    arrived: Collection[str],
    known: Mapping[str, Partition],
    watermark_ns: int,
) -> bool:
    """True if all parents of a child have finished: in this plan, or before its epoch.

    Args:
        child: the child partition.
        arrived: parents that this plan has read to their end.
        known: what is known of the child's parents, by token.
        watermark_ns: the low watermark at which the plan's epoch starts.

    Raises:
        UnknownParentError: a parent was never seen. Starting without it could break the order of
            a key's changes, waiting for it could last for ever.
    """
    for parent in child.parents:
        if parent in arrived:
            continue
        if parent not in known:
            raise UnknownParentError(child.token, parent)
        if not is_finished(known[parent], watermark_ns):
            return False
    return True


def prunable(partitions: Sequence[Partition], watermark_ns: int, *, keep_ns: int) -> list[str]:
    """Tokens of finished partitions that no later epoch needs and that ended keep_ns ago.

    A finished partition is still needed while one of its children waits for another parent: the
    child would seem to have fewer parents than it has.
    """
    unfinished = {p.token for p in partitions if not is_finished(p, watermark_ns)}
    needed = {
        parent
        for child in partitions
        if not unfinished.isdisjoint(child.parents)
        for parent in child.parents
    }
    return sorted(
        p.token
        for p in partitions
        if p.token not in unfinished
        and p.token not in needed
        and p.end_timestamp_ns is not None
        and p.end_timestamp_ns <= watermark_ns - keep_ns
    )


def states(partitions: Collection[Partition], watermark_ns: int) -> dict[str, PartitionState]:
    """The state of every partition at a low watermark, by token."""
    unfinished = {p.token for p in partitions if not is_finished(p, watermark_ns)}
    return {
        p.token: (
            PartitionState.FINISHED
            if p.token not in unfinished
            else PartitionState.RUNNING
            if unfinished.isdisjoint(p.parents)
            else PartitionState.WAITING
        )
        for p in partitions
    }
