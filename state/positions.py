"""Where the partitions of a change stream of Bigtable's are read on.

Two reads of the same changes may end at different places. So what a task has read is sealed by one
attempt only, and the positions of the plan whose epoch was written become those of the pipeline.
"""

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import sqlalchemy as sa

from slackwater.state.errors import AlreadySealedError, StoreBehindError
from slackwater.state.models import Plan, TaskCounts
from slackwater.state.plans import is_sealed
from slackwater.state.store import Store
from slackwater.state.tables import plan_positions, plans, positions
from slackwater.state.transaction import Transaction
from slackwater.timestamp import format_rfc3339


@dataclass(frozen=True, slots=True)
class TaskPositions:
    """Some of the positions that a task has left.

    Attributes:
        partitions: how many there are.
        text: in the words of reader.bigtable.positions.
    """

    partitions: int
    text: str


def seal_attempt(
    store: Store,
    plan: Plan,
    task: int,
    attempt: str,
    counts: TaskCounts,
    positions_after: Sequence[TaskPositions],
) -> None:
    """Seal a task with the counts and positions of one attempt; a second call changes nothing.

    Raises:
        AlreadySealedError: another attempt has sealed it.
        PlanMissingError: the plan was removed, or is in another store.
        LeaseLostError: the pipeline has another owner now.
        StateError: the store can't be reached.
    """
    c = plan_positions.c

    def work(connection: sa.Connection) -> None:
        transaction = Transaction(connection)
        transaction.require_generation(plan.pipeline, plan.generation, is_shared=True)
        if transaction.lock_task(plan, task):
            of_task = (c.plan_id == plan.plan_id, c.task == task)
            sealed = sa.select(c.attempt).where(*of_task).limit(1)
            if connection.execute(sealed).scalar() != attempt:
                raise AlreadySealedError(
                    f"task {task} of pipeline {plan.pipeline!r} was sealed by another attempt.",
                    "Its rows were lost: the epoch is planned and read again. In a notebook,"
                    " persist() a batch that is read twice",
                )
            return
        transaction.seal_task(plan.plan_id, task, counts)
        row = {"plan_id": plan.plan_id, "task": task, "attempt": attempt}
        rows = [
            {**row, "number": number, "partitions": some.partitions, "positions": some.text}
            for number, some in enumerate(positions_after)
        ]
        connection.execute(sa.insert(plan_positions), rows)

    store.write(work)


def confirm_positions(
    connection: sa.Connection, pipeline: str, plan_id: str, low_watermark_ns: int
) -> None:
    """Make the positions of a committed plan, if it has any, those of the pipeline."""
    if rows := _of_plan(connection, plan_id):
        _set(connection, pipeline, rows, low_watermark_ns)


def positions_text(store: Store, plan: Plan) -> str:
    """Return the positions that the tasks of a plan have left, in one text for positions_of().

    Raises:
        StoreBehindError: not all of its tasks are sealed: the store went back since the audit.
    """

    def work(connection: sa.Connection) -> list[TaskPositions]:
        sealed = sa.select(plans.c.plan_id).where(plans.c.plan_id == plan.plan_id, is_sealed())
        if connection.execute(sealed).first() is None:
            raise StoreBehindError(
                f"the metadata store no longer has all that tasks of pipeline {plan.pipeline!r}"
                f" have read up to {format_rfc3339(plan.end_ns)}.",
                "The epoch is planned again",
            )
        return _of_plan(connection, plan.plan_id)

    return json.dumps([astuple(row) for row in store.read(work)])


def positions_of(text: str) -> list[TaskPositions]:
    """Return the positions of positions_text()."""
    return [TaskPositions(*row) for row in json.loads(text)]


def _of_plan(connection: sa.Connection, plan_id: str) -> list[TaskPositions]:
    c = plan_positions.c
    read = sa.select(c.partitions, c.positions).where(c.plan_id == plan_id)
    return [TaskPositions(*row) for row in connection.execute(read)]


def set_positions(
    store: Store,
    pipeline: str,
    first: Sequence[TaskPositions],
    low_watermark_ns: int,
    *,
    generation: int | None,
) -> None:
    """Make these the positions of a pipeline, from which its next epoch is read.

    Raises:
        LeaseLostError: the pipeline has another owner now.
    """

    def work(connection: sa.Connection) -> None:
        Transaction(connection).require_generation(pipeline, generation)
        _set(connection, pipeline, first, low_watermark_ns)

    store.write(work)


def move_positions(
    store: Store, pipeline: str, low_watermark_ns: int, *, generation: int | None
) -> None:
    """Have a pipeline's positions hold for a later low watermark: nothing was read between.

    Raises:
        LeaseLostError: the pipeline has another owner now.
    """

    def work(connection: sa.Connection) -> None:
        Transaction(connection).require_generation(pipeline, generation)
        moved = sa.update(positions).where(positions.c.pipeline == pipeline)
        connection.execute(moved.values(low_watermark_ns=low_watermark_ns))

    store.write(work)


def positions_at_ns(store: Store, pipeline: str) -> int | None:
    """Return the low watermark of a pipeline's positions; None if it has none."""
    latest = sa.select(sa.func.max(positions.c.low_watermark_ns)).where(
        positions.c.pipeline == pipeline
    )
    at_ns = store.read(lambda connection: connection.execute(latest).scalar())
    return None if at_ns is None else int(at_ns)


def _set(
    connection: sa.Connection,
    pipeline: str,
    rows: Sequence[TaskPositions],
    low_watermark_ns: int,
) -> None:
    forget_positions(connection, pipeline)
    values = [
        {
            "pipeline": pipeline,
            "number": number,
            "low_watermark_ns": low_watermark_ns,
            "partitions": row.partitions,
            "positions": row.text,
        }
        for number, row in enumerate(rows)
    ]
    connection.execute(sa.insert(positions), values)


def forget_positions(
    connection: sa.Connection, pipeline: str, *, but_at_ns: int | None = None
) -> None:
    """Remove the positions of a pipeline, but for those at a low watermark."""
    c = positions.c
    others = [] if but_at_ns is None else [c.low_watermark_ns != but_at_ns]
    connection.execute(sa.delete(positions).where(c.pipeline == pipeline, *others))


def read_positions(store: Store, pipeline: str, low_watermark_ns: int | None = None) -> list[str]:
    """Return the texts that are a pipeline's positions; none without them.

    Args:
        store: the metadata store.
        pipeline: the pipeline's name.
        low_watermark_ns: only those at this low watermark; None for the present ones.
    """
    c = positions.c
    at = [] if low_watermark_ns is None else [c.low_watermark_ns == low_watermark_ns]
    # Spanner takes the table's name in ORDER BY for the column's, unless that has another.
    texts = sa.select(c.positions.label("text"))
    statement = texts.where(c.pipeline == pipeline, *at).order_by(c.number)
    return store.read(lambda connection: list(connection.execute(statement).scalars()))


def count_partitions(store: Store, pipeline: str) -> int | None:
    """Return the number of a pipeline's positions; None if it has none."""
    total = sa.select(sa.func.sum(positions.c.partitions)).where(positions.c.pipeline == pipeline)
    count = store.read(lambda connection: connection.execute(total).scalar())
    return None if count is None else int(count)
