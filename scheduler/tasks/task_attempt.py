"""A partition has finished: record its lineage and claim the children it was the last to hold up.

All of it is one transaction on the metadata store, so that a child is claimed exactly once and
only when the facts that allow it are durable.

Which ends a task has shown, and which children it has claimed, is one thing for all attempts at
it: the committed plan decides which partitions are finished, and any of its attempts may be the one
that Spark commits. Until the task is sealed, what one attempt has shown or claimed is adopted by
the others; afterwards an end that was not shown before is left for the next epoch to show, and a
child that was not claimed before for another task to claim.

A plan that was read to its end may have been written, though Spark then plans its cut anew. The new
plan shows the same ends, or a replay would not give the same records.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from slackwater.reader.query_outcome import Finished
from slackwater.scheduler.lineage import is_ready
from slackwater.scheduler.plan import Task
from slackwater.state.models import Partition, TaskCounts
from slackwater.state.store import Store
from slackwater.state.transaction import Transaction


class TaskAttempt:
    """One attempt at a task of a plan; for its threads.

    Spark may try a task again, and the store then holds what the first attempt had recorded. So
    what this attempt has read itself is known here, and nowhere else.

    Args:
        task: the task.
        store: the metadata store, which holds its plan.
    """

    def __init__(self, task: Task, store: Store) -> None:
        self._task = task
        self._store = store
        self._lock = threading.Lock()
        self._read: set[str] = set()
        self._started: set[str] = set()
        self._alive: dict[str, Partition] = {}

    def finish(self, ended: Mapping[Partition, Finished]) -> list[Partition]:
        """Record that this attempt has read partitions to their ends; what it has to read next.

        Each child comes once in an attempt, after all its parents: those of other tasks as
        recorded, those of this task as read by this attempt.

        Raises:
            LeaseLostError: the pipeline has got another owner.
            StateError: the store can't be reached, or holds a contradicting end.
        """
        with self._lock:
            self._read.update(partition.token for partition in ended)
        claimed = self._store.run(lambda t: self._finish(t, ended))
        return self._not_yet_started(claimed)

    def note_alive(self, partition: Partition) -> None:
        """Note that this attempt has read a partition through the epoch's end, and saw no other."""
        with self._lock:
            self._alive[partition.token] = partition

    def seal(self, counts: TaskCounts) -> list[Partition]:
        """Fix which ends the task has shown; or what has to be read first, and then sealed again.

        Args:
            counts: what this attempt has counted.

        Raises:
            LeaseLostError: the pipeline has got another owner.
            StateError: the store can't be reached.
        """

        def work(transaction: Transaction) -> tuple[set[str], list[Partition]]:
            is_sealed = self._begin(transaction)
            adopted = self._observed_ends(transaction) & self._alive.keys()
            ends = {token: _known_end(transaction, plan.pipeline, token) for token in adopted}
            self._record(transaction, ends, is_sealed=is_sealed)
            mine = transaction.claimed_children(plan.plan_id, self._task.index) - self._started
            if not (adopted or mine):
                transaction.seal_task(plan.plan_id, self._task.index, counts)
            recorded = transaction.partitions(plan.pipeline, sorted(mine))
            return adopted, list(recorded.values())

        plan = self._task.plan
        while True:
            with self._lock:
                # Read through, with an end that another attempt saw: as good as finished.
                self._read.update(self._alive)
            adopted, claimed = self._store.run(work)
            for token in adopted:
                del self._alive[token]
            new = self._not_yet_started(claimed)
            if new or not adopted:
                return new

    def _not_yet_started(self, claimed: list[Partition]) -> list[Partition]:
        with self._lock:
            new = {c.token: c for c in claimed if c.token not in self._started}
            self._started.update(new)
        return list(new.values())

    def _begin(self, transaction: Transaction) -> bool:
        """Lock what has to be locked, always in this order; True if the task is sealed."""
        plan = self._task.plan
        transaction.require_generation(plan.pipeline, plan.generation, is_shared=True)
        return transaction.lock_task(plan.plan_id, self._task.index)

    def _observed_ends(self, transaction: Transaction) -> set[str]:
        """The partitions whose ends the epoch has shown so far."""
        plan = self._task.plan
        observed = transaction.observed_ends(plan.plan_id)
        if plan.must_match_plan is not None:
            observed |= transaction.observed_ends(plan.must_match_plan)
        return observed

    def _finish(
        self, transaction: Transaction, ended: Mapping[Partition, Finished]
    ) -> list[Partition]:
        plan = self._task.plan
        is_sealed = self._begin(transaction)
        ends = {
            partition.token: _End(
                ending.end_timestamp_ns,
                tuple(
                    Partition(child.token, ending.end_timestamp_ns, child.parent_partition_tokens)
                    for child in ending.children
                ),
            )
            for partition, ending in ended.items()
        }
        if is_sealed or plan.must_match_plan is not None:
            observed = self._observed_ends(transaction)
            ends = {token: end for token, end in ends.items() if token in observed}
        return self._record(transaction, ends, is_sealed=is_sealed)

    def _record(
        self, transaction: Transaction, ends: Mapping[str, _End], *, is_sealed: bool
    ) -> list[Partition]:
        """Record ends by their partitions' tokens; the children that this task shall read."""
        if not ends:
            return []
        plan, index = self._task.plan, self._task.index
        with self._lock:
            read_here = frozenset(self._read)
        children = {child.token: child for end in ends.values() for child in end.children}
        transaction.lock_children(plan.plan_id, children)
        transaction.record_ends(plan.pipeline, {t: end.end_ns for t, end in ends.items()})
        transaction.record_partitions(plan.pipeline, list(children.values()))
        by_parent = {token: [c.token for c in end.children] for token, end in ends.items()}
        transaction.record_finished_parents(plan.plan_id, by_parent, index)
        finished_parents = transaction.finished_parents(plan.plan_id, children)
        parents = {parent for child in children.values() for parent in child.parents}
        recorded = transaction.partitions(plan.pipeline, sorted({*parents, *children}))
        ready = [
            token
            for token, child in children.items()
            if is_ready(
                child,
                _finished_for_attempt(finished_parents.get(token, {}), index, read_here),
                recorded,
                plan.start_ns,
            )
        ]
        claimed = transaction.claim(plan.plan_id, ready, index, allow_new=not is_sealed)
        # As they are known: an attempt that was not committed may have shown their ends.
        return [recorded[token] for token in ready if token in claimed]


@dataclass(frozen=True, slots=True)
class _End:
    """When a partition ended, and who took over."""

    end_ns: int
    children: tuple[Partition, ...]


def _known_end(transaction: Transaction, pipeline: str, token: str) -> _End:
    """The end of a partition that was shown."""
    end_ns = transaction.partitions(pipeline, [token])[token].end_timestamp_ns
    assert end_ns is not None  # noqa: S101 - recorded with the arrival
    return _End(end_ns, tuple(transaction.children(pipeline, token)))


def _finished_for_attempt(
    finished_parents: Mapping[str, int], task: int, read_here: Collection[str]
) -> set[str]:
    """The parents that count as read: of this task's own, those that this attempt has read."""
    return {parent for parent, by in finished_parents.items() if by != task or parent in read_here}
