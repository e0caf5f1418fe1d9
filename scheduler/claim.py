"""A partition has finished: record its lineage and claim the children it was the last to hold up.

All of it is one transaction on the metadata store, so that a child is claimed exactly once and
only when the facts that allow it are durable.
"""

from __future__ import annotations

from reader.ending import Finished
from scheduler.lineage import is_ready
from scheduler.plan import Task
from state.facts import Partition
from state.store import Store
from state.transaction import Transaction


def finish_partition(
    store: Store, task: Task, partition: Partition, ending: Finished
) -> list[Partition]:
    """Record that a task read a partition to its end; the children that the task now has to read.

    Running it again for the same partition gives the same children, so a retried task goes on
    with what its first attempt had claimed.

    Raises:
        LeaseLostError: the pipeline has got another owner.
        StateError: the store can't be reached, or holds a contradicting end.
    """
    plan = task.plan
    children = [
        Partition(child.token, ending.end_timestamp_ns, child.parent_partition_tokens)
        for child in ending.children
    ]
    tokens = [child.token for child in children]

    def work(transaction: Transaction) -> list[Partition]:
        transaction.require_generation(plan.pipeline, plan.generation, is_shared=True)
        transaction.lock_children(plan.plan_id, tokens)
        transaction.record_end(
            plan.pipeline, partition.token, ending.end_timestamp_ns, plan.start_ns
        )
        transaction.record_partitions(plan.pipeline, children)
        transaction.record_arrivals(plan.plan_id, partition.token, tokens)
        arrivals = transaction.arrivals(plan.plan_id, tokens)
        parents = {parent for child in children for parent in child.parents}
        known = transaction.partitions(plan.pipeline, sorted(parents))
        return [
            child
            for child in children
            if is_ready(child, arrivals.get(child.token, frozenset()), known, plan.start_ns)
            and transaction.claim(plan.plan_id, child.token, task.index)
        ]

    return store.run(work)
