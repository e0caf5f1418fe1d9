"""Records what a task's queries show of partitions with mutable key ranges, and claims new ones.

It is to these partitions what task_attempt is to those of the other mode, and keeps the same two
promises. All attempts at a task share the ends that it has shown and the partitions that it has
claimed: Spark may commit any of them. And a plan of a cut that was read to its end before shows the
same ends and reads the same partitions from their starts, or a replay would not give the same
records.

So a start that comes too late for that, to a task that is sealed or to such a plan, is recorded and
not claimed. The next epoch then reads the partition from its start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slackwater.scheduler.mutable_lineage import announced, claimable, is_read_from_start
from slackwater.scheduler.plan import Task
from slackwater.scheduler.tasks.mutable_reader import PartitionFacts
from slackwater.scheduler.tasks.threads import PYTHON_THREADS, Threads
from slackwater.state.errors import LineageMissingError
from slackwater.state.models import MutablePartition, Partition, PartitionKey, TaskCounts
from slackwater.state.mutable_lineage import MutableTransaction, run_mutable
from slackwater.state.store import Store


class MutableTaskAttempt:
    """One attempt at a task of a plan; thread-safe. The arguments are those of TaskAttempt."""

    def __init__(self, task: Task, store: Store, threads: Threads = PYTHON_THREADS) -> None:
        self._task = task
        self._store = store
        self._lock = threads.lock()
        # The plan's claims include the roots that no epoch has read from their starts.
        self._started = {
            root.key
            for root in task.roots
            if isinstance(root, MutablePartition)
            and not is_read_from_start(root, task.plan.start_ns)
        }
        self._alive: set[PartitionKey] = set()
        self._recorded: set[PartitionKey] = set()

    def finish(self, shown: Mapping[MutablePartition, PartitionFacts]) -> list[Partition]:
        """Record what this attempt has read of partitions; return what to read next.

        Raises:
            LeaseLostError: the pipeline has another owner now.
            StateError: the store can't be reached, or holds a contradicting start or end.
        """
        plan, index = self._task.plan, self._task.index
        ends = {
            partition.key: facts.end_timestamp_ns
            for partition, facts in shown.items()
            if facts.end_timestamp_ns is not None
        }

        def work(transaction: MutableTransaction) -> tuple[set[PartitionKey], list[Partition]]:
            is_sealed = self._begin(transaction)
            new = dict(ends)
            if is_sealed or plan.must_match_plan is not None:
                observed = self._observed_ends(transaction, ends)
                new = {key: end_ns for key, end_ns in ends.items() if key in observed}
            transaction.record_mutable_ends(plan.pipeline, new)
            transaction.observe_ends(plan.plan_id, new.keys())
            return set(new), self._claim(transaction, shown, index, is_sealed=is_sealed)

        with self._lock:
            self._alive.update(p.key for p in shown if p.key not in ends)
        recorded, claimed = run_mutable(self._store, work)
        with self._lock:
            self._recorded.update(recorded)
        return self._not_yet_started(claimed)

    def note_alive(self, partition: Partition) -> None:
        """Note that this attempt has read a partition through the epoch, and nothing was shown."""
        assert isinstance(partition, MutablePartition)  # noqa: S101 - the plan's are of one kind
        with self._lock:
            self._alive.add(partition.key)

    def seal(self, counts: TaskCounts) -> list[Partition]:
        """Seal the task: from then on no attempt adds to its ends and claims.

        Args:
            counts: the counts of this attempt.

        Returns:
            The partitions to read first, because other attempts have claimed them; after that,
            seal() is called again. Empty once the task is sealed.

        Raises:
            LeaseLostError: the pipeline has another owner now.
            LineageMissingError: the store has lost what this attempt recorded.
            StateError: the store can't be reached.
        """
        plan, index = self._task.plan, self._task.index

        def work(transaction: MutableTransaction) -> list[Partition]:
            self._begin(transaction)
            self._require_recorded(transaction)
            # If another attempt saw the end of a partition that this one has read through the
            # epoch, the partition counts as finished.
            adopted = self._observed_ends(transaction, None) & self._alive
            transaction.observe_ends(plan.plan_id, adopted)
            unread = transaction.claims_of_task(plan.plan_id, index) - self._started
            if not unread:
                transaction.seal_task(plan.plan_id, index, counts)
            return list(transaction.mutable_partitions(plan.pipeline, unread).values())

        return self._not_yet_started(run_mutable(self._store, work))

    def _not_yet_started(self, claimed: Collection[Partition]) -> list[Partition]:
        with self._lock:
            new = {
                p.key: p
                for p in claimed
                if isinstance(p, MutablePartition) and p.key not in self._started
            }
            self._started.update(new)
        return list(new.values())

    def _begin(self, transaction: MutableTransaction) -> bool:
        """Take the locks, always in this order; return True if the task is sealed."""
        plan = self._task.plan
        transaction.require_generation(plan.pipeline, plan.generation, is_shared=True)
        return transaction.lock_task(plan, self._task.index)

    def _require_recorded(self, transaction: MutableTransaction) -> None:
        """Check that the store still has what this attempt recorded: see TaskAttempt."""
        plan, index = self._task.plan, self._task.index
        with self._lock:
            recorded, started = set(self._recorded), set(self._started)
        lost = recorded - transaction.observed_mutable_ends(plan.plan_id)
        lost |= started - transaction.claims_of_task(plan.plan_id, index)
        if lost:
            raise LineageMissingError(
                f"the metadata store has lost what task {index} of pipeline {plan.pipeline!r}"
                f" recorded of {len(lost)} partition(s), such as {min(lost).token}.",
                "It has gone back to an earlier state; the epoch is planned again",
            )

    def _observed_ends(
        self, transaction: MutableTransaction, keys: Collection[PartitionKey] | None
    ) -> set[PartitionKey]:
        """Return the partitions, of these or of all, whose ends the epoch has shown so far."""
        plan = self._task.plan
        observed = transaction.observed_mutable_ends(plan.plan_id, keys)
        if plan.must_match_plan is not None:
            observed |= transaction.observed_mutable_ends(plan.must_match_plan, keys)
        return observed

    def _claim(
        self,
        transaction: MutableTransaction,
        shown: Mapping[MutablePartition, PartitionFacts],
        index: int,
        *,
        is_sealed: bool,
    ) -> list[Partition]:
        """Record the partitions that start records announce; return those that are this task's."""
        plan = self._task.plan
        starts = [(p.function, start) for p, facts in shown.items() for start in facts.starts]
        if not starts:
            return []
        keys = {PartitionKey(f, token) for f, start in starts for token in start.partition_tokens}
        # Read in this order: a partition that is removed in between is then not recorded again.
        recorded = transaction.mutable_partitions(plan.pipeline, keys)
        since_ns = transaction.since_ns(plan.pipeline)
        if since_ns is None:
            raise LineageMissingError(
                f"the metadata store has lost the partitions of pipeline {plan.pipeline!r}.",
                "It has gone back to an earlier state; the epoch is planned again",
            )
        new = {
            partition.key: partition
            for function, start in starts
            for partition in announced(start, function, since_ns=since_ns)
        }
        transaction.record_starts(plan.pipeline, list(new.values()), recorded)
        claims = transaction.claims(plan.plan_id, new.keys())
        if not is_sealed:
            unread = claimable(new.values(), recorded, claims.keys(), plan.start_ns)
            if plan.must_match_plan is not None:
                matched = transaction.claims(plan.must_match_plan, new.keys())
                unread = [p for p in unread if p.key in matched]
            transaction.add_claims(plan.plan_id, [p.key for p in unread], index)
            claims |= {p.key: index for p in unread}
        return [recorded.get(key, new[key]) for key, by in claims.items() if by == index]
