"""Partitions with mutable key ranges in the metadata store: facts about them, and a plan's claims.

They are in tables of their own. A pipeline has partitions of one kind: its row in mutable_lineages
says that they are of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import sqlalchemy as sa

from slackwater.state.errors import ContradictionError, LineageMissingError
from slackwater.state.lineage_rows import (
    add_mutable_partitions,
    assemble_mutable,
    key_conditions,
    read_mutable_partitions,
)
from slackwater.state.models import MutablePartition, Partition, PartitionKey, TaskCounts
from slackwater.state.store import Store
from slackwater.state.tables import (
    mutable_lineages,
    mutable_partitions,
    plan_claims,
    plan_ends,
    plan_moves,
)
from slackwater.state.transaction import Transaction, locking

T = TypeVar("T")


class MutableTransaction(Transaction):
    """A transaction on partitions with mutable key ranges; writing a fact twice is harmless."""

    def since_ns(self, pipeline: str) -> int | None:
        """Return the time up to which a start record says nothing new to a pipeline.

        None if the pipeline has no partitions with mutable key ranges.
        """
        return _since_ns(self._connection, pipeline)

    def mutable_partitions(
        self, pipeline: str, keys: Collection[PartitionKey], *, is_locked: bool = False
    ) -> dict[PartitionKey, MutablePartition]:
        """Return those of these partitions that the store has, by key.

        Args:
            pipeline: the pipeline's name.
            keys: the partitions' keys.
            is_locked: True to lock their rows until the transaction ends, always in one order.
        """
        table = mutable_partitions
        recorded: dict[PartitionKey, MutablePartition] = {}
        for condition in key_conditions(table, keys):
            statement = sa.select(table).where(table.c.pipeline == pipeline, condition)
            if is_locked:
                ordered = statement.order_by(table.c.function, table.c.token)
                statement = locking(self._connection, ordered)
            for partition in assemble_mutable(self._connection.execute(statement)):
                recorded[partition.key] = partition
        return recorded

    def record_starts(
        self,
        pipeline: str,
        announced: Collection[MutablePartition],
        recorded: Mapping[PartitionKey, MutablePartition],
    ) -> None:
        """Add the partitions that the store does not have yet.

        Args:
            pipeline: the pipeline's name.
            announced: the partitions.
            recorded: those of them that the store has, by key.

        Raises:
            ContradictionError: the store has one of them with another start.
        """
        for partition in announced:
            same = recorded.get(partition.key, partition)
            if same.start_timestamp_ns != partition.start_timestamp_ns:
                raise ContradictionError(
                    f"partition {partition.label} starts at {same.start_timestamp_ns} and at"
                    f" {partition.start_timestamp_ns}.",
                    "Report it: a change stream partition starts only once",
                )
        new = [p for p in announced if p.key not in recorded]
        add_mutable_partitions(self._connection, pipeline, new)

    def record_mutable_ends(self, pipeline: str, ends: Mapping[PartitionKey, int]) -> None:
        """Record that partitions ended; an end counts once an epoch that showed it is committed.

        Args:
            pipeline: the pipeline's name.
            ends: each partition's end, in nanoseconds, by its key.

        Raises:
            ContradictionError: the store has another end of a partition.
            LineageMissingError: the store does not have a partition.
        """
        # Without the lock, two transactions with different ends would both see none, and pass.
        recorded = self.mutable_partitions(pipeline, ends.keys(), is_locked=True)
        table = mutable_partitions
        for key, end_ns in sorted(ends.items()):
            if key not in recorded:
                raise LineageMissingError(
                    f"partition {key.token} of pipeline {pipeline!r} ended, but it is not in the"
                    " metadata store.",
                    "Another process has replaced the lineage: run the pipeline in one process"
                    " only",
                )
            before_ns = recorded[key].end_timestamp_ns
            if before_ns not in (None, end_ns):
                raise ContradictionError(
                    f"partition {recorded[key].label} ended at {before_ns} and at {end_ns}.",
                    "Report it: a change stream partition ends only once",
                )
            if before_ns is None:
                self._connection.execute(
                    sa.update(table)
                    .where(table.c.pipeline == pipeline, *_is_key(table, key))
                    .values(end_timestamp_ns=end_ns)
                )

    def claims(
        self, plan_id: str, keys: Collection[PartitionKey] | None = None
    ) -> dict[PartitionKey, int]:
        """Return the tasks that read partitions from their starts in a plan, by partition.

        Args:
            plan_id: the plan's id.
            keys: only these partitions; None for all.
        """
        rows = self._of_plan(plan_claims, plan_id, keys)
        return {PartitionKey(row.function, row.token): row.task for row in rows}

    def claims_of_task(self, plan_id: str, task: int) -> set[PartitionKey]:
        """Return the partitions that a task has to read from their starts, by any attempt."""
        c = plan_claims.c
        of_task = sa.select(c.function, c.token).where(c.plan_id == plan_id, c.task == task)
        return {PartitionKey(*row) for row in self._connection.execute(of_task)}

    def add_claims(self, plan_id: str, keys: Iterable[PartitionKey], task: int) -> None:
        """Claim partitions for a task; no task of the plan has claimed one of them.

        If another transaction claims one at the same time, this one fails and is run again.
        """
        self._insert(plan_claims, _plan_rows(plan_id, keys, task=task))

    def observed_mutable_ends(
        self, plan_id: str, keys: Collection[PartitionKey] | None = None
    ) -> set[PartitionKey]:
        """Return the partitions whose ends a plan has observed, of these or of all."""
        return {
            PartitionKey(row.function, row.token) for row in self._of_plan(plan_ends, plan_id, keys)
        }

    def observe_ends(self, plan_id: str, keys: Collection[PartitionKey]) -> None:
        """Record that a plan has observed the ends of partitions."""
        observed = self.observed_mutable_ends(plan_id, keys)
        self._insert(plan_ends, _plan_rows(plan_id, set(keys) - observed))

    def seal_task(self, plan_id: str, task: int, counts: TaskCounts) -> None:
        """Seal a task with its counts, which replace those of an earlier attempt."""
        super().seal_task(plan_id, task, counts)
        table = plan_moves
        of_task = (table.c.plan_id == plan_id, table.c.task == task)
        self._connection.execute(sa.delete(table).where(*of_task))
        self._insert(
            table, ({"plan_id": plan_id, "task": task, **asdict(moves)} for moves in counts.moves)
        )

    def _of_plan(
        self, table: sa.Table, plan_id: str, keys: Collection[PartitionKey] | None
    ) -> Iterator[Any]:
        conditions = [sa.true()] if keys is None else key_conditions(table, keys)
        for condition in conditions:
            of_plan = sa.select(table).where(table.c.plan_id == plan_id, condition)
            yield from self._connection.execute(of_plan)


def run_mutable(store: Store, work: Callable[[MutableTransaction], T]) -> T:
    """Run work in one read-write transaction, as Store.run() does.

    Raises:
        StateError: as Store.run().
    """
    return store.write(lambda c: work(MutableTransaction(c)))


def partitions_with_mutable_ranges(store: Store, pipeline: str) -> list[MutablePartition]:
    """Return all partitions of a pipeline that the store has, ordered by start."""
    return store.read(lambda c: read_mutable_partitions(c, pipeline))


def claims_of_plan(store: Store, plan_id: str) -> set[PartitionKey]:
    """Return the partitions that a plan's tasks read from their starts."""
    return store.read(lambda c: set(MutableTransaction(c).claims(plan_id)))


def lineage_since_ns(store: Store, pipeline: str) -> int | None:
    """Return the time up to which a start record says nothing new to a pipeline.

    None if the pipeline has no partitions with mutable key ranges.
    """
    return store.read(lambda c: _since_ns(c, pipeline))


def add_alive_partitions(
    store: Store, pipeline: str, alive: Sequence[Partition], *, generation: int | None = None
) -> None:
    """Add partitions that a pipeline has to read besides those that it has.

    Args:
        store: the metadata store.
        pipeline: the pipeline's name.
        alive: partitions with mutable key ranges, of read functions of which it has none.
        generation: the generation of the caller's lease; None if it has no lease.

    Raises:
        LeaseLostError: the pipeline's generation is not this one.
        ContradictionError: the store has one of them with another start.
    """
    partitions = [p for p in alive if isinstance(p, MutablePartition)]

    def work(transaction: MutableTransaction) -> None:
        transaction.require_generation(pipeline, generation)
        recorded = transaction.mutable_partitions(pipeline, [p.key for p in partitions])
        transaction.record_starts(pipeline, partitions, recorded)

    run_mutable(store, work)


def remove_mutable_partitions(
    store: Store,
    pipeline: str,
    keys: Collection[PartitionKey],
    since_ns: int,
    *,
    generation: int | None = None,
) -> None:
    """Remove partitions.

    Args:
        store: the metadata store.
        pipeline: the pipeline's name.
        keys: the partitions' keys.
        since_ns: the time up to which start records say nothing new from now on.
        generation: the generation of the caller's lease; None if it has no lease.

    Raises:
        LeaseLostError: the pipeline's generation is not this one: what was finished for a former
            owner may have to be read by the new one.
    """
    table = mutable_partitions

    def work(connection: sa.Connection) -> None:
        Transaction(connection).require_generation(pipeline, generation)
        for condition in key_conditions(table, keys):
            connection.execute(sa.delete(table).where(table.c.pipeline == pipeline, condition))
        since = mutable_lineages.c.since_ns
        connection.execute(
            sa.update(mutable_lineages)
            .where(mutable_lineages.c.pipeline == pipeline, since < since_ns)
            .values(since_ns=since_ns)
        )

    if keys:
        store.write(work)


def _is_key(table: sa.Table, key: PartitionKey) -> tuple[sa.ColumnElement[bool], ...]:
    return table.c.function == key.function, table.c.token == key.token


def _plan_rows(
    plan_id: str, keys: Iterable[PartitionKey], **values: int
) -> Iterator[dict[str, Any]]:
    """Return rows of a table of a plan's partitions, in one order, so that none deadlocks."""
    return ({"plan_id": plan_id, **key._asdict(), **values} for key in sorted(keys))


def _since_ns(connection: sa.Connection, pipeline: str) -> int | None:
    column = mutable_lineages.c.since_ns
    row = connection.execute(sa.select(column).where(mutable_lineages.c.pipeline == pipeline))
    return row.scalar()
