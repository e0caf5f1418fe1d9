"""The operations of one read-write transaction on the metadata store."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from slackwater.state import spanner_dialect as spanner
from slackwater.state.errors import (
    ContradictionError,
    LeaseLostError,
    LineageMissingError,
    PlanMissingError,
)
from slackwater.state.lineage_rows import (
    FACTS,
    LINKS,
    add_partitions,
    assemble,
    key_conditions,
)
from slackwater.state.models import (
    Partition,
    PartitionKey,
    Plan,
    TaskCounts,
    partition_label,
)
from slackwater.state.tables import (
    partition_parents,
    partitions,
    pipelines,
    plan_claims,
    plan_ends,
    plan_moves,
    plan_partial_transactions,
    plan_partition_load,
    plan_tasks,
    plans,
)


class Transaction:
    """The reads and writes of lineage facts, ends and claims; writing one twice is harmless."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def require_generation(
        self, pipeline: str, generation: int | None, *, is_shared: bool = False
    ) -> None:
        """Refuse the writes of a former owner of a pipeline.

        The pipeline's row is locked, so that the owner can't change before the transaction ends.

        Args:
            pipeline: the pipeline's name.
            generation: the generation of the caller's lease; None if the caller has no lease, which
                skips the check.
            is_shared: True in the transactions of tasks, so that they do not wait for each other; a
                transaction that later changes the pipeline's row must not share the lock.

        Raises:
            LeaseLostError: the pipeline's generation is not this one.
        """
        if generation is None:
            return
        columns = (pipelines.c.generation, pipelines.c.owner)
        statement = sa.select(*columns).where(pipelines.c.name == pipeline)
        row = self._connection.execute(
            locking(self._connection, statement, is_shared=is_shared)
        ).one_or_none()
        if row is None or row.generation != generation:
            raise LeaseLostError(
                f"pipeline {pipeline!r} is no longer owned by this process"
                f" (generation {generation}): {'nobody' if row is None else row.owner} took over.",
                "Nothing is lost; the new owner continues",
            )

    def lock_announced(self, plan_id: str, keys: Collection[PartitionKey]) -> None:
        """Lock the rows of announced partitions in this plan until the transaction ends.

        If two parents finish at the same moment, the second has to see that the first has finished.
        Without the lock each would see one finished parent of two, and no task would claim the
        child. Rows are locked in one order, so that two transactions can't deadlock. This needs
        READ COMMITTED, which state.engine sets: reads after the lock have to see the store as it is
        then, not as it was when the transaction began.
        """
        c = plan_claims.c
        present = {PartitionKey(*row) for row in self._of_plan(plan_claims, plan_id, keys)}
        self._insert(plan_claims, _plan_rows(plan_id, set(keys) - present))
        for condition in key_conditions(keys, c.function, c.token):
            rows = sa.select(c.token).where(c.plan_id == plan_id, condition)
            self._connection.execute(locking(self._connection, rows.order_by(c.function, c.token)))

    def record_ends(self, pipeline: str, ends: Mapping[PartitionKey, int]) -> None:
        """Record that partitions ended; an end counts once an epoch that showed it is committed.

        Args:
            pipeline: the pipeline's name.
            ends: each partition's end, in nanoseconds, by its key.

        Raises:
            ContradictionError: the store has another end of a partition.
            LineageMissingError: the store does not have a partition.
        """
        c = partitions.c
        ends_before: dict[PartitionKey, int | None] = {}
        for condition in key_conditions(ends, c.function, c.token):
            # Without the lock, two transactions with different ends would both see none, and pass.
            statement = sa.select(c.function, c.token, c.end_timestamp_ns).where(
                c.pipeline == pipeline, condition
            )
            rows = self._connection.execute(
                locking(self._connection, statement.order_by(c.function, c.token))
            )
            ends_before |= {PartitionKey(function, token): end for function, token, end in rows}
        new = []
        for key, end_ns in ends.items():
            _require_no_other_end(pipeline, key, end_ns, ends_before)
            if ends_before[key] is None:
                new.append({"of_function": key.function, "ended": key.token, "end_ns": end_ns})
        if new:
            self._connection.execute(
                sa.update(partitions)
                .where(
                    c.pipeline == pipeline,
                    c.function == sa.bindparam("of_function"),
                    c.token == sa.bindparam("ended"),
                )
                .values(end_timestamp_ns=sa.bindparam("end_ns")),
                new,
            )

    def lock_task(self, plan: Plan, task: int) -> bool:
        """Lock a task's row until the transaction ends; return True if the task is sealed.

        Raises:
            PlanMissingError: the plan, or the one that it must match, was removed or was never in
                this store.
        """
        statement = sa.select(plan_tasks.c.records).where(
            plan_tasks.c.plan_id == plan.plan_id, plan_tasks.c.task == task
        )
        row = self._connection.execute(locking(self._connection, statement)).one_or_none()
        if row is None:
            raise _missing(f"task {task} of plan {plan.plan_id}")
        if plan.must_match_plan is not None:
            # Without it, the ends that it has shown would be left out of this plan, and then of
            # each later one that has to match this one.
            statement = sa.select(plans.c.plan_id).where(plans.c.plan_id == plan.must_match_plan)
            if self._connection.execute(statement).first() is None:
                raise _missing(f"plan {plan.must_match_plan}")
        return row.records is not None

    def seal_task(self, plan_id: str, task: int, counts: TaskCounts) -> None:
        """Seal a task with its counts, which replace those of an earlier attempt."""
        key = {"plan_id": plan_id, "task": task}
        self._connection.execute(
            sa.update(plan_tasks)
            .where(plan_tasks.c.plan_id == plan_id, plan_tasks.c.task == task)
            .values(
                records=counts.records,
                late_records=counts.late_records,
                violations="\n".join(counts.violations),
            )
        )
        for table in (plan_partial_transactions, plan_partition_load, plan_moves):
            self._connection.execute(
                sa.delete(table).where(table.c.plan_id == plan_id, table.c.task == task)
            )
        self._insert(
            plan_partition_load,
            (
                {**key, "label": label, "records": records}
                for label, records in counts.partition_load
            ),
        )
        self._insert(
            plan_partial_transactions,
            (
                {
                    **key,
                    "transaction_id": partial.transaction,
                    "records": partial.records,
                    "partitions": partial.partitions,
                    "records_stated": partial.records_stated,
                    "partitions_stated": partial.partitions_stated,
                }
                for partial in counts.partial_transactions
            ),
        )
        self._insert(plan_moves, ({**key, **asdict(moves)} for moves in counts.moves))

    def partitions(
        self, pipeline: str, keys: Collection[PartitionKey]
    ) -> dict[PartitionKey, Partition]:
        """Return those of these partitions that the store has, by key."""
        p, link = partitions.c, partition_parents.c
        facts = [
            row
            for condition in key_conditions(keys, p.function, p.token)
            for row in self._connection.execute(
                sa.select(*FACTS).where(p.pipeline == pipeline, condition)
            )
        ]
        links = [
            row
            for condition in key_conditions(keys, link.function, link.token)
            for row in self._connection.execute(
                sa.select(*LINKS).where(link.pipeline == pipeline, condition)
            )
        ]
        return {partition.key: partition for partition in assemble(facts, links)}

    def children(
        self, pipeline: str, parents: Collection[PartitionKey]
    ) -> dict[PartitionKey, Partition]:
        """Return the partitions that have one of these as a parent, by key."""
        c = partition_parents.c
        keys = {
            PartitionKey(*row)
            for condition in key_conditions(parents, c.function, c.parent_token)
            for row in self._connection.execute(
                sa.select(c.function, c.token).where(c.pipeline == pipeline, condition)
            )
        }
        return self.partitions(pipeline, keys)

    def starts_since_ns(self, pipeline: str) -> int | None:
        """Return the starts_since_ns of a pipeline."""
        row = sa.select(pipelines.c.starts_since_ns).where(pipelines.c.name == pipeline)
        return self._connection.execute(row).scalar()

    def record_partitions(
        self,
        pipeline: str,
        announced: Iterable[Partition],
        recorded: Mapping[PartitionKey, Partition],
    ) -> None:
        """Add the partitions that the store does not have yet, with their parents.

        Args:
            pipeline: the pipeline's name.
            announced: the partitions.
            recorded: those of them that the store has, by key.

        Raises:
            ContradictionError: the store has one without parents with another start. Nothing says
                that the parents of one partition end at the same time.
        """
        new = []
        for partition in announced:
            same = recorded.get(partition.key)
            if same is None:
                new.append(partition)
            elif not partition.parents and same.start_timestamp_ns != partition.start_timestamp_ns:
                raise ContradictionError(
                    f"partition {partition.label} starts at {same.start_timestamp_ns} and at"
                    f" {partition.start_timestamp_ns}.",
                    "Report it: a change stream partition starts only once",
                )
        add_partitions(self._connection, pipeline, new)

    def observed_ends(
        self, plan_id: str, keys: Collection[PartitionKey] | None = None
    ) -> dict[PartitionKey, int]:
        """Return the partitions whose ends a plan has observed, each with the task that did.

        Args:
            plan_id: the plan's id.
            keys: only these partitions; None for all.
        """
        rows = self._of_plan(plan_ends, plan_id, keys, plan_ends.c.task)
        return {PartitionKey(function, token): task for function, token, task in rows}

    def add_ends(self, plan_id: str, keys: Iterable[PartitionKey], task: int) -> None:
        """Record that a task has observed the ends of partitions; the plan has none of them yet."""
        self._insert(plan_ends, _plan_rows(plan_id, keys, task=task))

    def claim(self, plan_id: str, keys: Collection[PartitionKey], task: int) -> None:
        """Claim partitions for a task, those that no task has claimed; their rows are locked."""
        c = plan_claims.c
        for condition in key_conditions(keys, c.function, c.token):
            self._connection.execute(
                sa.update(plan_claims)
                .where(c.plan_id == plan_id, condition, c.task.is_(None))
                .values(task=task)
            )

    def claims(
        self, plan_id: str, keys: Collection[PartitionKey] | None = None
    ) -> dict[PartitionKey, int]:
        """Return the partitions that a plan reads from their starts, each with the task that does.

        Args:
            plan_id: the plan's id.
            keys: only these partitions; None for all.
        """
        rows = self._of_plan(plan_claims, plan_id, keys, plan_claims.c.task)
        return {PartitionKey(f, token): task for f, token, task in rows if task is not None}

    def claims_of_task(self, plan_id: str, task: int) -> set[PartitionKey]:
        """Return the partitions that a task has to read from their starts, in any attempt."""
        c = plan_claims.c
        of_task = sa.select(c.function, c.token).where(c.plan_id == plan_id, c.task == task)
        return {PartitionKey(*row) for row in self._connection.execute(of_task)}

    def _of_plan(
        self,
        table: sa.Table,
        plan_id: str,
        keys: Collection[PartitionKey] | None,
        *columns: sa.Column[Any],
    ) -> Iterator[Any]:
        """Yield function, token and further columns of a plan's rows, of these or of all."""
        c = table.c
        conditions = [sa.true()] if keys is None else key_conditions(keys, c.function, c.token)
        for condition in conditions:
            yield from self._connection.execute(
                sa.select(c.function, c.token, *columns).where(c.plan_id == plan_id, condition)
            )

    def _insert(self, table: sa.Table, rows: Iterable[Mapping[str, Any]]) -> None:
        listed = list(rows)
        if listed:
            self._connection.execute(sa.insert(table), listed)


def _plan_rows(
    plan_id: str, keys: Iterable[PartitionKey], **values: int
) -> Iterator[dict[str, Any]]:
    """Return rows of a table of a plan's partitions, in one order, so that none deadlocks."""
    return ({"plan_id": plan_id, **key._asdict(), **values} for key in sorted(keys))


def _missing(what: str) -> PlanMissingError:
    return PlanMissingError(
        f"{what} is not in the metadata store.",
        "Another plan has replaced it, or this is not the store of the pipeline",
    )


def _require_no_other_end(
    pipeline: str,
    key: PartitionKey,
    end_ns: int,
    ends_before: Mapping[PartitionKey, int | None],
) -> None:
    if key not in ends_before:
        raise LineageMissingError(
            f"partition {partition_label(key)} of pipeline {pipeline!r} ended, but it is not in the"
            " metadata store.",
            "Another process has replaced the lineage: run the pipeline in one process only",
        )
    if ends_before[key] not in (None, end_ns):
        raise ContradictionError(
            f"partition {partition_label(key)} ended at {ends_before[key]} and at {end_ns}.",
            "Report it: a change stream partition ends only once",
        )


def locking(
    connection: sa.Connection, statement: sa.Select[Any], *, is_shared: bool = False
) -> sa.Select[Any]:
    """Return the statement with a lock on its rows until the transaction ends."""
    if connection.engine.url.get_backend_name() == spanner.NAME:
        # Spanner's transactions are serializable: rows that one has read can't change before it
        # commits.
        return statement
    return statement.with_for_update(read=is_shared)
