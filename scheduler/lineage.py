"""The rules of partition lineage, without a database, Spark or a clock.

A low watermark W says that every partition has been read through W. From what is known of the
partitions, these rules say which are to be read in the epoch that starts at W, and when a child
partition may start: only after all its parents have finished ("Child partitions records" in
Spanner's documentation).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

from slackwater.state.models import Partition


class PartitionState(StrEnum):
    """Where a partition stands at a low watermark."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


def is_finished(partition: Partition, watermark_ns: int) -> bool:
    """True if a committed epoch, at or before the watermark, has shown that the partition ended.

    The end alone does not count. An attempt that showed it may never have been committed, and the
    one that was may not have shown it (apache/beam issue 40232): then nobody has read the
    partition's children. And an epoch that starts at the watermark and showed it is replayed from
    the watermark, and has to come upon the children in the same way again.
    """
    return (
        partition.end_timestamp_ns is not None
        and partition.end_confirmed_in_epoch_ns is not None
        and partition.end_timestamp_ns <= watermark_ns
        and partition.end_confirmed_in_epoch_ns < watermark_ns
    )


def unfinished(partitions: Iterable[Partition], watermark_ns: int) -> list[Partition]:
    """Return the partitions that are not finished at a low watermark."""
    return [p for p in partitions if not is_finished(p, watermark_ns)]


def lineage_at(partitions: Collection[Partition], watermark_ns: int) -> list[Partition]:
    """Return the partitions that are not finished at a low watermark, and their parents.

    Chosen here and not in SQL: of the statements that would find the parents, SQLite ran some and
    PostgreSQL, without statistics yet, the others in more than 10 s for 10,000 merges. This takes
    some 0.15 s, and partitions that finished long ago have been pruned.
    """
    needed = {t for p in unfinished(partitions, watermark_ns) for t in (p.token, *p.parents)}
    return [p for p in partitions if p.token in needed]


def roots(partitions: Collection[Partition], watermark_ns: int) -> list[Partition]:
    """The partitions that an epoch starts with, in order of start and token.

    Args:
        partitions: every partition that is not finished at the watermark, and their parents. A
            parent that is not among them was never seen, and its child waits: forgetting a
            partition takes it out of its children's parents.
        watermark_ns: the low watermark at which the epoch starts.
    """
    finished = {p.token for p in partitions if is_finished(p, watermark_ns)}
    starting = [
        p
        for p in partitions
        if p.token not in finished
        and p.start_timestamp_ns <= watermark_ns
        and p.parents <= finished
    ]
    return sorted(starting, key=lambda p: (p.start_timestamp_ns, p.token))


def orphans(partitions: Collection[Partition], watermark_ns: int) -> list[tuple[str, str]]:
    """Pairs of a partition that should have started by the watermark and a parent never seen.

    The parent's own parent may have ended without showing it; it then comes with the next epoch.
    A pair that stays is a partition that is not read.
    """
    seen = {p.token for p in partitions}
    return sorted(
        (p.token, parent)
        for p in partitions
        if p.start_timestamp_ns <= watermark_ns and not is_finished(p, watermark_ns)
        for parent in p.parents - seen
    )


def query_start_ns(partition: Partition, watermark_ns: int) -> int:
    """The start_timestamp of a root's query: what lies before was read in earlier epochs.

    Where the partition is known to have ended before, that is its end: from there Spanner shows its
    child partitions, and later it refuses.
    """
    ended_ns = partition.end_timestamp_ns
    if ended_ns is not None and ended_ns < watermark_ns:
        return ended_ns
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

    A parent that is not known will be: another partition that is still being read leads to it.
    """
    return all(
        parent in arrived or (parent in known and is_finished(known[parent], watermark_ns))
        for parent in child.parents
    )


def prunable(partitions: Sequence[Partition], watermark_ns: int, *, keep_ns: int) -> list[str]:
    """Tokens of finished partitions that no later epoch needs and that ended keep_ns ago.

    A finished partition is still needed while one of its children waits for another parent: the
    child would seem never to get it.
    """
    finished = {p.token for p in partitions if is_finished(p, watermark_ns)}
    needed = {
        parent for child in partitions if not child.parents <= finished for parent in child.parents
    }
    return sorted(
        p.token
        for p in partitions
        if p.token in finished
        and p.token not in needed
        and p.end_timestamp_ns is not None
        and p.end_timestamp_ns <= watermark_ns - keep_ns
    )


def states(partitions: Collection[Partition], watermark_ns: int) -> dict[str, PartitionState]:
    """The state of every partition at a low watermark, by token."""
    finished = {p.token for p in partitions if is_finished(p, watermark_ns)}
    return {
        p.token: (
            PartitionState.FINISHED
            if p.token in finished
            else PartitionState.RUNNING
            if p.parents <= finished and p.start_timestamp_ns <= watermark_ns
            else PartitionState.WAITING
        )
        for p in partitions
    }
