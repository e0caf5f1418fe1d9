"""The operations of one read-write transaction on the metadata store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from slackwater.state import spanner_dialect as spanner
from slackwater.state.errors import (
    ContradictionError,
    LeaseLostError,
    LineageMissingError,
    PlanMissingError,
)
from slackwater.state.lineage_rows import add_partitions, assemble, chunks
from slackwater.state.models import Partition, Plan, TaskCounts
from slackwater.state.tables import (
    partition_parents,
    partitions,
    pipelines,
    plan_children,
    plan_finished_parents,
    plan_partial_transactions,
    plan_partition_load,
    plan_tasks,
    plans,
)

T = TypeVar("T")

# No partition has an empty token.
_NO_CHILD: Final = ""


class Transaction:
    """Reads and writes lineage facts, finished parents and claims; writing one twice is harmless.

    A partition that a plan has read to its end has rows in plan_finished_parents, one for each of
    its children. If it has none, one row with an empty token in the child's place shows the end.
    """

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

    def lock_children(self, plan_id: str, tokens: Collection[str]) -> None:
        """Lock the children's rows of this plan until the transaction ends.

        If two parents finish at the same moment, the second has to see that the first has finished.
        Without the lock each would see one finished parent of two, and no task would claim the
        child. Rows are locked in one order, so that two transactions can't deadlock. This needs
        READ COMMITTED, which state.engine sets: reads after the lock have to see the store as it is
        then, not as it was when the transaction began.
        """
        table, ordered = plan_children, sorted(tokens)
        where = (table.c.plan_id == plan_id, table.c.token)
        present = set(self._column(table.c.token, where, ordered))
        missing = [token for token in ordered if token not in present]
        self._insert(table, ({"plan_id": plan_id, "token": token} for token in missing))
        for chunk in chunks(ordered):
            rows = sa.select(table.c.token).where(
                table.c.plan_id == plan_id, table.c.token.in_(chunk)
            )
            self._connection.execute(locking(self._connection, rows.order_by(table.c.token)))

    def record_ends(self, pipeline: str, ends: Mapping[str, int]) -> None:
        """Record that partitions ended; an end counts once an epoch that showed it is committed.

        Args:
            pipeline: the pipeline's name.
            ends: each partition's end, in nanoseconds, by its token.

        Raises:
            ContradictionError: the store has another end of a partition.
            LineageMissingError: the store does not have a partition.
        """
        key = (partitions.c.token, partitions.c.end_timestamp_ns)
        ends_before: dict[str, int | None] = {}
        for chunk in chunks(sorted(ends)):
            # Without the lock, two transactions with different ends would both see none, and pass.
            statement = sa.select(*key).where(
                partitions.c.pipeline == pipeline, partitions.c.token.in_(chunk)
            )
            rows = self._connection.execute(
                locking(self._connection, statement.order_by(partitions.c.token))
            )
            ends_before |= {row.token: row.end_timestamp_ns for row in rows}
        new = []
        for token, end_ns in ends.items():
            _require_no_other_end(pipeline, token, end_ns, ends_before)
            if ends_before[token] is None:
                new.append({"ended": token, "end_ns": end_ns})
        if new:
            self._connection.execute(
                sa.update(partitions)
                .where(
                    partitions.c.pipeline == pipeline, partitions.c.token == sa.bindparam("ended")
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
        for table in (plan_partial_transactions, plan_partition_load):
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

    def observed_ends(self, plan_id: str) -> set[str]:
        """Return the partitions whose ends a plan has shown so far."""
        table = plan_finished_parents
        statement = sa.select(table.c.parent_token).where(table.c.plan_id == plan_id).distinct()
        return set(self._connection.execute(statement).scalars())

    def children(self, pipeline: str, parent_token: str) -> list[Partition]:
        """Return the partitions that have this one as a parent."""
        table = partition_parents
        where = (table.c.pipeline == pipeline, table.c.parent_token == parent_token)
        tokens = self._connection.execute(sa.select(table.c.token).where(*where)).scalars()
        by_token = self.partitions(pipeline, sorted(tokens))
        return [by_token[token] for token in sorted(by_token)]

    def record_partitions(self, pipeline: str, announced: Sequence[Partition]) -> None:
        """Add the partitions that the store does not have yet, with their parents."""
        where = (partitions.c.pipeline == pipeline, partitions.c.token)
        recorded = set(self._column(partitions.c.token, where, [p.token for p in announced]))
        new = [p for p in announced if p.token not in recorded]
        add_partitions(self._connection, pipeline, new)

    def partitions(self, pipeline: str, tokens: Collection[str]) -> dict[str, Partition]:
        """Return those of these partitions that the store has, by token."""
        rows = [
            row
            for chunk in chunks(tokens)
            for row in self._connection.execute(
                sa.select(partitions).where(
                    partitions.c.pipeline == pipeline, partitions.c.token.in_(chunk)
                )
            )
        ]
        links = [
            link
            for chunk in chunks(tokens)
            for link in self._connection.execute(
                sa.select(partition_parents).where(
                    partition_parents.c.pipeline == pipeline, partition_parents.c.token.in_(chunk)
                )
            )
        ]
        return {p.token: p for p in assemble(rows, links)}

    def record_finished_parents(
        self, plan_id: str, children: Mapping[str, Collection[str]], task: int
    ) -> None:
        """Record that a task of a plan has read partitions to their ends.

        Args:
            plan_id, task: the plan's id and the task's number in it.
            children: the tokens of each partition's children, by its own token; an end without
                children counts like any other.
        """
        rows = {parent: sorted(tokens) or [_NO_CHILD] for parent, tokens in children.items()}
        recorded = self.finished_parents(
            plan_id, sorted({token for tokens in rows.values() for token in tokens})
        )
        self._insert(
            plan_finished_parents,
            (
                {"plan_id": plan_id, "token": token, "parent_token": parent, "task": task}
                for parent, tokens in sorted(rows.items())
                for token in tokens
                if parent not in recorded.get(token, {})
            ),
        )

    def finished_parents(
        self, plan_id: str, child_tokens: Collection[str]
    ) -> dict[str, dict[str, int]]:
        """Return, for each child, the parents that the plan has read to their ends, with tasks.

        The keys are the tokens of the children, and in each value those of the parents; the numbers
        are the tasks that read the parents.
        """
        table = plan_finished_parents
        by_child: dict[str, dict[str, int]] = {}
        for chunk in chunks(child_tokens):
            for row in self._connection.execute(
                sa.select(table).where(table.c.plan_id == plan_id, table.c.token.in_(chunk))
            ):
                by_child.setdefault(row.token, {})[row.parent_token] = row.task
        return by_child

    def claim(
        self, plan_id: str, tokens: Collection[str], task: int, *, allow_new: bool = True
    ) -> set[str]:
        """Claim children for a task; return those that it holds, also by an earlier attempt.

        Args:
            plan_id, task: the plan's id and the task's number in it.
            tokens: the children's tokens.
            allow_new: False to make no new claims, so that only those of an earlier attempt count.
        """
        table = plan_children
        claimed: set[str] = set()
        for chunk in chunks(sorted(tokens)):
            row = sa.and_(table.c.plan_id == plan_id, table.c.token.in_(chunk))
            if allow_new:
                self._connection.execute(
                    sa.update(table)
                    .where(row, table.c.claimed_by.is_(None))
                    .values(claimed_by=task)
                )
            mine = sa.select(table.c.token).where(row, table.c.claimed_by == task)
            claimed.update(self._connection.execute(mine).scalars())
        return claimed

    def claimed_children(self, plan_id: str, task: int) -> set[str]:
        """Return the children that a task has claimed, in any attempt."""
        table = plan_children
        where = (table.c.plan_id == plan_id, table.c.claimed_by == task)
        return set(self._connection.execute(sa.select(table.c.token).where(*where)).scalars())

    def _column(
        self, column: sa.Column[T], where: tuple[Any, sa.Column[str]], values: Collection[str]
    ) -> Iterator[T]:
        condition, key = where
        for chunk in chunks(values):
            yield from self._connection.execute(
                sa.select(column).where(condition, key.in_(chunk))
            ).scalars()

    def _insert(self, table: sa.Table, rows: Iterable[Mapping[str, Any]]) -> None:
        listed = list(rows)
        if listed:
            self._connection.execute(sa.insert(table), listed)


def _missing(what: str) -> PlanMissingError:
    return PlanMissingError(
        f"{what} is not in the metadata store.",
        "Another plan has replaced it, or this is not the store of the pipeline",
    )


def _require_no_other_end(
    pipeline: str, token: str, end_ns: int, ends_before: Mapping[str, int | None]
) -> None:
    if token not in ends_before:
        raise LineageMissingError(
            f"partition {token} of pipeline {pipeline!r} ended, but it is not in the metadata"
            " store.",
            "Another process has replaced the lineage: run the pipeline in one process only",
        )
    if ends_before[token] not in (None, end_ns):
        raise ContradictionError(
            f"partition {token} ended at {ends_before[token]} and at {end_ns}.",
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
