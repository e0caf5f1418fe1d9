"""The record of facts that a task's queries show, and the claims of partitions that may start.

Both happen in one transaction on the metadata store, so that a partition is claimed exactly once,
and only when the facts that allow it are durable.

All attempts at a task share the ends that it has shown and the partitions that it has claimed: the
committed plan decides which partitions are finished, and Spark may commit any of the attempts.
Until the task is sealed, each attempt adopts the ends and claims of the others. After that, a new
end is left for the next epoch to show, and an unclaimed partition for another task to claim, or for
the next epoch to read from its start.

A plan that was read to its end may have been written even if Spark then plans its cut again. The
new plan has to show the same ends and to read the same partitions from their starts, or a replay
would not give the same records.
"""

from collections.abc import Collection, Iterable, Mapping

from slackwater.scheduler.lineage import is_new, is_read_from_start, is_ready
from slackwater.scheduler.plan import Task
from slackwater.scheduler.tasks.partition_reader import PartitionFacts
from slackwater.scheduler.tasks.threads import PYTHON_THREADS, Threads
from slackwater.state.errors import LineageMissingError
from slackwater.state.models import Partition, PartitionKey, TaskCounts
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
        # Read through the epoch, or to their ends; alive are those whose end was not shown.
        self._read: set[PartitionKey] = set()
        self._alive: set[PartitionKey] = set()
        # The plan's claims include the roots that no epoch has read from their starts.
        self._started = {
            root.key for root in task.roots if not is_read_from_start(root, task.plan.start_ns)
        }
        self._recorded: set[PartitionKey] = set()

    def finish(self, shown: Mapping[Partition, PartitionFacts]) -> list[Partition]:
        """Record the facts that this attempt has read; return the partitions to read next.

        A partition is returned once in an attempt, after all its parents: a parent in another task
        counts once that task has recorded its end, a parent in this task once this attempt has
        read it.

        Raises:
            LeaseLostError: the pipeline has another owner now.
            StateError: the store can't be reached, or holds a contradicting start or end.
        """
        ends = {
            partition.key: of_partition.end_timestamp_ns
            for partition, of_partition in shown.items()
            if of_partition.end_timestamp_ns is not None
        }
        announced = {p.key: p for of_partition in shown.values() for p in of_partition.announced}
        plan = self._task.plan

        def work(transaction: Transaction) -> tuple[Collection[PartitionKey], list[Partition]]:
            is_sealed = self._begin(transaction)
            new = ends
            if is_sealed or plan.must_match_plan is not None:
                observed = transaction.observed_ends(plan.plan_id, ends)
                if plan.must_match_plan is not None:
                    observed |= transaction.observed_ends(plan.must_match_plan, ends)
                new = {key: end_ns for key, end_ns in ends.items() if key in observed}
            return new, self._record(transaction, new, announced, is_sealed=is_sealed)

        with self._lock:
            self._read.update(p.key for p in shown)
            self._alive.update(p.key for p in shown if p.key not in ends)
        recorded, claimed = self._store.run(work)
        with self._lock:
            self._recorded.update(recorded)
        return self._not_yet_started(claimed)

    def note_alive(self, partition: Partition) -> None:
        """Note that this attempt has read a partition through the epoch, and nothing was shown."""
        with self._lock:
            self._read.add(partition.key)
            self._alive.add(partition.key)

    def seal(self, counts: TaskCounts) -> list[Partition]:
        """Seal the task: from then on no attempt adds to its ends and claims.

        If another attempt saw the end of a partition that this one has read through the epoch, the
        partition counts as finished.

        Args:
            counts: the counts of this attempt.

        Returns:
            The partitions to read first, because other attempts have shown more ends or claimed
            more partitions; after that, seal() is called again. Empty once the task is sealed.

        Raises:
            LeaseLostError: the pipeline has another owner now.
            LineageMissingError: the store has lost facts that this attempt recorded.
            StateError: the store can't be reached.
        """
        plan, index = self._task.plan, self._task.index

        def work(transaction: Transaction) -> tuple[set[PartitionKey], list[Partition]]:
            is_sealed = self._begin(transaction)
            observed = transaction.observed_ends(plan.plan_id)
            claims = transaction.claims_of_task(plan.plan_id, index)
            self._require_recorded(observed, claims)
            if plan.must_match_plan is not None:
                observed |= transaction.observed_ends(plan.must_match_plan)
            adopted = observed.keys() & self._alive
            claims |= self._adopt(transaction, adopted, is_sealed=is_sealed)
            unread = claims - self._started
            if not unread:
                transaction.seal_task(plan.plan_id, index, counts)
            partitions = transaction.partitions(plan.pipeline, unread).values()
            # The others come when their parents have been read.
            return adopted, [p for p in partitions if not p.parent_keys & unread]

        adopted, claimed = self._store.run(work)
        with self._lock:
            self._alive -= adopted
        return self._not_yet_started(claimed)

    def _not_yet_started(self, claimed: Iterable[Partition]) -> list[Partition]:
        with self._lock:
            new = {p.key: p for p in claimed if p.key not in self._started}
            self._started.update(new)
        return list(new.values())

    def _begin(self, transaction: Transaction) -> bool:
        """Take the locks, always in this order; return True if the task is sealed."""
        plan = self._task.plan
        transaction.require_generation(plan.pipeline, plan.generation, is_shared=True)
        return transaction.lock_task(plan, self._task.index)

    def _require_recorded(
        self, observed: Collection[PartitionKey], claims: Collection[PartitionKey]
    ) -> None:
        """Check that the store still has the facts that this attempt recorded.

        A store that went back to an earlier state may have the plan and not the ends and claims.
        The partitions that were read here would be read again in the next epoch.
        """
        with self._lock:
            lost = (self._recorded - set(observed)) | (self._started - set(claims))
        if lost:
            raise LineageMissingError(
                f"the metadata store has lost what task {self._task.index} of pipeline"
                f" {self._task.plan.pipeline!r} recorded of {len(lost)} partition(s), such as"
                f" {min(lost).token}.",
                "It has gone back to an earlier state; the epoch is planned again",
            )

    def _adopt(
        self, transaction: Transaction, adopted: Collection[PartitionKey], *, is_sealed: bool
    ) -> set[PartitionKey]:
        """Record ends that other attempts have shown; return the claims that follow."""
        if not adopted:
            return set()
        pipeline = self._task.plan.pipeline
        ends = {
            key: partition.end_timestamp_ns
            for key, partition in transaction.partitions(pipeline, adopted).items()
            if partition.end_timestamp_ns is not None
        }
        children = transaction.children(pipeline, adopted)
        return {p.key for p in self._record(transaction, ends, children, is_sealed=is_sealed)}

    def _record(
        self,
        transaction: Transaction,
        ends: Mapping[PartitionKey, int],
        announced: Mapping[PartitionKey, Partition],
        *,
        is_sealed: bool,
    ) -> list[Partition]:
        """Record ends and announced partitions; return those that this task has to read now."""
        if not (ends or announced):
            return []
        plan, index = self._task.plan, self._task.index
        with self._lock:
            read_here = frozenset(self._read)
        parents = {key for partition in announced.values() for key in partition.parent_keys}
        transaction.lock_announced(plan.plan_id, announced)
        transaction.record_ends(plan.pipeline, ends)
        observed = transaction.observed_ends(plan.plan_id, {*ends, *parents})
        transaction.add_ends(plan.plan_id, ends.keys() - observed.keys(), index)
        finished = dict.fromkeys(ends, index) | observed
        # Read in this order: a partition that is removed in between is then not recorded again.
        recorded = transaction.partitions(plan.pipeline, {*announced, *parents})
        new = self._new(transaction, announced.values())
        transaction.record_partitions(plan.pipeline, new, recorded)
        read = _read_for_attempt(finished, index, read_here)
        ready = {p.key for p in new if is_ready(p, read, recorded, plan.start_ns)}
        if not is_sealed:
            self._claim(transaction, ready)
        claims = transaction.claims(plan.plan_id, ready)
        # As recorded: an attempt that was not committed may have shown their ends already.
        return [recorded.get(key, announced[key]) for key, by in claims.items() if by == index]

    def _new(self, transaction: Transaction, announced: Collection[Partition]) -> list[Partition]:
        """Return the announced partitions without those whose announcement says nothing new."""
        if all(partition.parents for partition in announced):
            return list(announced)
        pipeline = self._task.plan.pipeline
        since_ns = transaction.starts_since_ns(pipeline)
        if since_ns is None:
            raise LineageMissingError(
                f"the metadata store has lost the partitions of pipeline {pipeline!r}.",
                "It has gone back to an earlier state; the epoch is planned again",
            )
        return [partition for partition in announced if is_new(partition, since_ns)]

    def _claim(self, transaction: Transaction, ready: Collection[PartitionKey]) -> None:
        """Claim partitions for this task, unless the plan has to match one that did not."""
        plan = self._task.plan
        if plan.must_match_plan is not None:
            ready = transaction.claims(plan.must_match_plan, ready).keys()
        transaction.claim(plan.plan_id, ready, self._task.index)


def _read_for_attempt(
    finished: Mapping[PartitionKey, int], task: int, read_here: Collection[PartitionKey]
) -> set[PartitionKey]:
    """Return the partitions that count as read; those of this task only if this attempt read them.

    Args:
        finished: the partitions whose ends the plan has observed, each with the task that did.
        task: this task's number.
        read_here: the partitions that this attempt has read.
    """
    return {key for key, by in finished.items() if by != task or key in read_here}
