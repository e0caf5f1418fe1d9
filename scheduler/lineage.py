"""The rules of partition lineage, without a database, Spark or a clock.

A low watermark W says that every partition has been read through W. These rules say which
partitions an epoch that starts at W reads, and when a child partition may start: only after all its
parents have finished ("Child partitions records" in Spanner's documentation).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

from slackwater.state.models import Partition


class PartitionState(StrEnum):
    """The state of a partition at a low watermark."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


def is_finished(partition: Partition, watermark_ns: int) -> bool:
    """Return True if an epoch before the watermark has confirmed that the partition ended.

    An end that was only observed does not count. The attempt that observed it may never have been
    committed, and the committed one may not have observed it (apache/beam issue 40232): then no
    task has read the partition's children. And an epoch that starts at the watermark may be
    replayed from there: it must get the children in the same way again.
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
    """Return the partitions that an epoch starts with, in order of start and token.

    Args:
        partitions: every partition that is not finished at the watermark, and their parents. A
            parent that is not among them was never announced, and its child waits. Pruning a
            partition removes it from its children's parents.
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
    """Return pairs of a partition that should have started, and a parent that is not announced.

    The parent's own parent may have ended without announcing it; the next epoch then does. A pair
    that stays is a partition that is not read.
    """
    seen = {p.token for p in partitions}
    return sorted(
        (p.token, parent)
        for p in partitions
        if p.start_timestamp_ns <= watermark_ns and not is_finished(p, watermark_ns)
        for parent in p.parents - seen
    )


def query_start_ns(partition: Partition, watermark_ns: int) -> int:
    """Return the start_timestamp of a root's query: earlier epochs have read everything before it.

    If the partition has already ended, that is its end: a query from there returns its child
    partitions, and Spanner refuses a later start.
    """
    ended_ns = partition.end_timestamp_ns
    if ended_ns is not None and ended_ns < watermark_ns:
        return ended_ns
    return max(partition.start_timestamp_ns, watermark_ns)


def is_ready(
    child: Partition,
    finished_parents: Collection[str],
    partitions: Mapping[str, Partition],
    watermark_ns: int,
) -> bool:
    """Return True if all parents of a child have finished: in this plan, or before its epoch.

    A parent that is not recorded yet will be: a partition that is still being read announces it.

    Args:
        child: the child partition.
        finished_parents: the parents that this plan has read to their end.
        partitions: the child's recorded parents, by token.
        watermark_ns: the low watermark at which the plan's epoch starts.
    """
    return all(
        parent in finished_parents
        or (parent in partitions and is_finished(partitions[parent], watermark_ns))
        for parent in child.parents
    )


def prunable(partitions: Sequence[Partition], watermark_ns: int, *, keep_ns: int) -> list[str]:
    """Return the tokens of finished partitions that no later epoch needs.

    A partition is kept for keep_ns after its end, and while one of its children waits for another
    parent: without it that child would seem to wait for ever.
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
    """Return the state of every partition at a low watermark, by label."""
    finished = {p.label for p in partitions if is_finished(p, watermark_ns)}
    return {
        p.label: (
            PartitionState.FINISHED
            if p.label in finished
            else PartitionState.RUNNING
            if p.parents <= finished and p.start_timestamp_ns <= watermark_ns
            else PartitionState.WAITING
        )
        for p in partitions
    }
