"""Records the ends of partitions, and claims the children that may start once all parents ended.

Both happen in one transaction on the metadata store, so that a child is claimed exactly once, and
only when the facts that allow it are durable.

All attempts at a task share the ends that it has shown and the children that it has claimed: the
committed plan decides which partitions are finished, and Spark may commit any of the attempts.
Until the task is sealed, each attempt adopts the ends and claims of the others. After that, a new
end is left for the next epoch to show, and an unclaimed child for another task to claim.

A plan that was read to its end may have been written even if Spark then plans its cut again. The
new plan has to show the same ends, or a replay would not give the same records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from slackwater.reader.query_outcome import Finished
from slackwater.scheduler.lineage import is_ready
from slackwater.scheduler.plan import Task
from slackwater.scheduler.tasks.threads import PYTHON_THREADS, Threads
from slackwater.state.errors import LineageMissingError
from slackwater.state.models import Partition, TaskCounts
from slackwater.state.store import Store
from slackwater.state.transaction import Transaction


class TaskAttempt:
    """One attempt at a task of a plan; thread-safe.

    Spark may retry a task, and the store then holds what earlier attempts recorded. So the
    partitions that this attempt has read itself are listed only here.

    Args:
        task: the task.
        store: the metadata store that holds its plan.
        threads: makes its lock.
    """

    def __init__(self, task: Task, store: Store, threads: Threads = PYTHON_THREADS) -> None:
        self._task = task
        self._store = store
        self._lock = threads.lock()
        self._read: set[str] = set()
        self._started: set[str] = set()
        self._alive: dict[str, Partition] = {}
        self._recorded: set[str] = set()

    def finish(self, ended: Mapping[Partition, Finished]) -> list[Partition]:
        """Record that this attempt has read partitions to their ends; return what to read next.

        A child is returned once in an attempt, after all its parents: a parent in another task
        counts once that task has recorded its end, a parent in this task once this attempt has
        read it.

        Raises:
            LeaseLostError: the pipeline has another owner now.
            StateError: the store can't be reached, or holds a contradicting end.
        """
        with self._lock:
            self._read.update(partition.token for partition in ended)
        recorded, claimed = self._store.run(lambda t: self._finish(t, ended))
        with self._lock:
            self._recorded.update(recorded)
        return self._not_yet_started(claimed)

    def note_alive(self, partition: Partition) -> None:
        """Note that this attempt has read a partition through the epoch, without seeing its end."""
        with self._lock:
            self._alive[partition.token] = partition

    def seal(self, counts: TaskCounts) -> list[Partition]:
        """Seal the task: from then on no attempt adds to the ends that it has shown.

        Args:
            counts: the counts of this attempt.

        Returns:
            The partitions to read first, because other attempts have shown more ends or claimed
            more children; after that, seal() is called again. Empty once the task is sealed.

        Raises:
            LeaseLostError: the pipeline has another owner now.
            LineageMissingError: the store has lost what this attempt recorded.
            StateError: the store can't be reached.
        """

        def work(transaction: Transaction) -> tuple[set[str], list[Partition]]:
            is_sealed = self._begin(transaction)
            self._require_recorded(transaction)
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
                # If another attempt saw the end of a partition that this one has read through the
                # epoch, the partition counts as finished.
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
        """Take the locks, always in this order; return True if the task is sealed."""
        plan = self._task.plan
        transaction.require_generation(plan.pipeline, plan.generation, is_shared=True)
        return transaction.lock_task(plan, self._task.index)

    def _require_recorded(self, transaction: Transaction) -> None:
        """Check that the store still has what this attempt recorded.

        A store that went back to an earlier state may have the plan and not the ends and claims.
        The children that were read here would be read again in the next epoch.
        """
        plan = self._task.plan
        with self._lock:
            recorded, started = set(self._recorded), set(self._started)
        lost = recorded - transaction.observed_ends(plan.plan_id)
        lost |= started - transaction.claimed_children(plan.plan_id, self._task.index)
        if lost:
            raise LineageMissingError(
                f"the metadata store has lost what task {self._task.index} of pipeline"
                f" {plan.pipeline!r} recorded of {len(lost)} partition(s), such as {min(lost)}.",
                "It has gone back to an earlier state; the epoch is planned again",
            )

    def _observed_ends(self, transaction: Transaction) -> set[str]:
        """Return the partitions whose ends the epoch has shown so far."""
        plan = self._task.plan
        observed = transaction.observed_ends(plan.plan_id)
        if plan.must_match_plan is not None:
            observed |= transaction.observed_ends(plan.must_match_plan)
        return observed

    def _finish(
        self, transaction: Transaction, ended: Mapping[Partition, Finished]
    ) -> tuple[Collection[str], list[Partition]]:
        """Return the partitions whose ends are recorded, and the children to read."""
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
        return ends.keys(), self._record(transaction, ends, is_sealed=is_sealed)

    def _record(
        self, transaction: Transaction, ends: Mapping[str, _End], *, is_sealed: bool
    ) -> list[Partition]:
        """Record ends, by partition token; return the children that this task has to read."""
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
        # As recorded: an attempt that was not committed may have shown their ends already.
        return [recorded[token] for token in ready if token in claimed]


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a partition, in nanoseconds, and the children that follow it."""

    end_ns: int
    children: tuple[Partition, ...]


def _known_end(transaction: Transaction, pipeline: str, token: str) -> _End:
    """Return the recorded end of a partition."""
    end_ns = transaction.partitions(pipeline, [token])[token].end_timestamp_ns
    assert end_ns is not None  # noqa: S101 - recorded with the finished parent
    return _End(end_ns, tuple(transaction.children(pipeline, token)))


def _finished_for_attempt(
    finished_parents: Mapping[str, int], task: int, read_here: Collection[str]
) -> set[str]:
    """Return the parents that count as read; those of this task only if this attempt read them."""
    return {parent for parent, by in finished_parents.items() if by != task or parent in read_here}
