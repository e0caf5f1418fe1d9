"""The commit of an epoch: the one place where the low watermark rises and partition ends count.

And the reverse: a store that is behind the output, or ahead of it, is set to where the output ends.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from slackwater.state.confirmation import confirm
from slackwater.state.lineage_rows import key_conditions, replace_lineage
from slackwater.state.models import Partition
from slackwater.state.plans import delete_plans, is_sealed
from slackwater.state.positions import confirm_positions, forget_positions
from slackwater.state.store import Store
from slackwater.state.tables import epochs, partitions, pipelines, plans
from slackwater.state.transaction import Transaction, locking


def commit_epoch(
    store: Store, pipeline: str, watermark_ns: int, *, generation: int | None = None
) -> bool:
    """Record that the sink has committed everything through a low watermark.

    One transaction raises the pipeline's low watermark, which never goes back, and confirms what
    the committed plan has read of partitions: see state.confirmation. A second call changes
    nothing, so every process that learns of a commit calls it, and the first one records it.

    Args:
        store: the metadata store.
        pipeline: the pipeline's name.
        watermark_ns: the end of the committed epoch.
        generation: the generation of the caller's lease; None if it has no lease.

    Returns:
        False if the store does not have what the epoch's tasks recorded, and so nothing was
        changed: it was restored from a backup, or failed over to a replica that was behind.

    Raises:
        LeaseLostError: the pipeline's generation is not this one.
        StateError: the store can't be reached.
    """

    def work(connection: sa.Connection) -> bool:
        Transaction(connection).require_generation(pipeline, generation)
        if _is_recorded(connection, pipeline, watermark_ns):
            return True
        plan = _committed_plan(connection, pipeline, watermark_ns)
        if plan is None:
            return False
        _set_low_watermark(connection, pipeline, watermark_ns)
        _confirm(connection, pipeline, plan)
        confirm_positions(connection, pipeline, plan.plan_id, watermark_ns)
        return True

    return store.write(work)


def restart_at(
    store: Store,
    pipeline: str,
    watermark_ns: int,
    alive: Sequence[Partition],
    *,
    mode: str | None = None,
    generation: int | None = None,
) -> None:
    """Make a low watermark the pipeline's position, regardless of the store's content.

    Its partitions become these, and its plans and the epochs after the low watermark are removed.
    Positions at this low watermark stay.
    Tasks of an earlier plan fail: their plan is missing.

    Args:
        store: the metadata store.
        pipeline: the pipeline's name.
        watermark_ns: where the output ends.
        alive: the partitions to read from there; none if they are to be found when the next epoch
            is planned.
        mode: the partition mode of their change stream; None if there are none.
        generation: the generation of the caller's lease; None if it has no lease.

    Raises:
        LeaseLostError: the pipeline's generation is not this one.
        StateError: the store can't be reached.
    """

    def work(connection: sa.Connection) -> None:
        Transaction(connection).require_generation(pipeline, generation)
        replace_lineage(connection, pipeline, alive, mode)
        forget_positions(connection, pipeline, but_at_ns=watermark_ns)
        of_pipeline = sa.select(plans.c.plan_id).where(plans.c.pipeline == pipeline)
        delete_plans(connection, list(connection.execute(of_pipeline).scalars()))
        connection.execute(
            sa.delete(epochs).where(epochs.c.pipeline == pipeline, epochs.c.end_ns > watermark_ns)
        )
        _set_low_watermark(connection, pipeline, watermark_ns)
        connection.execute(
            sa.update(pipelines)
            .where(pipelines.c.name == pipeline)
            .values(planned_watermark_ns=watermark_ns)
        )

    store.write(work)


def _is_recorded(connection: sa.Connection, pipeline: str, watermark_ns: int) -> bool:
    """Return True if the low watermark is there already; the row is locked for what follows."""
    column = pipelines.c.low_watermark_ns
    statement = sa.select(column).where(pipelines.c.name == pipeline)
    recorded_ns = connection.execute(locking(connection, statement)).scalar()
    return recorded_ns is not None and recorded_ns >= watermark_ns


def _committed_plan(connection: sa.Connection, pipeline: str, watermark_ns: int) -> Any:
    """Return the plan whose epoch was committed; None if the store does not have its facts.

    That is the last plan made for the watermark: after its commit the cut is not planned again. All
    its tasks were sealed before the audit.
    """
    return connection.execute(
        sa.select(plans.c.plan_id, plans.c.start_ns)
        .where(plans.c.pipeline == pipeline, plans.c.end_ns == watermark_ns, is_sealed())
        .order_by(plans.c.number.desc())
        .limit(1)
    ).one_or_none()


def _set_low_watermark(connection: sa.Connection, pipeline: str, watermark_ns: int) -> None:
    connection.execute(
        sa.update(pipelines)
        .where(pipelines.c.name == pipeline)
        .values(low_watermark_ns=watermark_ns)
    )


def _confirm(connection: sa.Connection, pipeline: str, plan: Any) -> None:
    """Confirm what the committed plan has read."""
    c, transaction = partitions.c, Transaction(connection)
    claims = transaction.claims(plan.plan_id)
    for field, keys in confirm(claims, transaction.observed_ends(plan.plan_id)):
        # By their keys: PostgreSQL, without statistics yet, took 8 s for a join of 10,000
        # partitions with the plan's rows.
        for condition in key_conditions(keys, c.function, c.token):
            connection.execute(
                sa.update(partitions)
                .where(c.pipeline == pipeline, condition, c[field].is_(None))
                .values({field: plan.start_ns})
            )
