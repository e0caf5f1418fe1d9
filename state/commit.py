"""The commit of an epoch: the one place where the low watermark rises and partition ends count."""

from __future__ import annotations

import sqlalchemy as sa

from slackwater.state.store import Store
from slackwater.state.tables import partitions, pipelines, plan_arrivals, plans
from slackwater.state.transaction import Transaction, chunks


def commit_epoch(
    store: Store, pipeline: str, watermark_ns: int, *, generation: int | None = None
) -> None:
    """Record that the sink has committed everything through a low watermark.

    One transaction raises the pipeline's low watermark, which never goes back, and confirms the
    partition ends that the committed plan observed. A second call changes nothing, so every process
    that learns of a commit calls it, and the first one records it.

    Args:
        store: the metadata store.
        pipeline: the pipeline's name.
        watermark_ns: the end of the committed epoch.
        generation: the generation of the caller's lease; None if it has no lease.

    Raises:
        LeaseLostError: the pipeline's generation is not this one.
        StateError: the store can't be reached.
    """

    def work(connection: sa.Connection) -> None:
        Transaction(connection).require_generation(pipeline, generation)
        _raise_low_watermark(connection, pipeline, watermark_ns)
        _confirm_partition_ends(connection, pipeline, watermark_ns)

    store.write(work)


def _raise_low_watermark(connection: sa.Connection, pipeline: str, watermark_ns: int) -> None:
    column = pipelines.c.low_watermark_ns
    connection.execute(
        sa.update(pipelines)
        .where(pipelines.c.name == pipeline, sa.or_(column.is_(None), column < watermark_ns))
        .values(low_watermark_ns=watermark_ns)
    )


def _confirm_partition_ends(connection: sa.Connection, pipeline: str, watermark_ns: int) -> None:
    """Confirm the ends that the committed plan observed.

    That is the last plan made for the watermark: after its commit the cut is not planned again.
    """
    plan = connection.execute(
        sa.select(plans.c.plan_id, plans.c.start_ns)
        .where(
            plans.c.pipeline == pipeline,
            plans.c.end_ns == watermark_ns,
            plans.c.start_ns < watermark_ns,
        )
        .order_by(plans.c.number.desc())
        .limit(1)
    ).one_or_none()
    if plan is None:
        return
    p, finished = partitions.c, plan_arrivals.c
    observed = sa.select(finished.parent_token).where(finished.plan_id == plan.plan_id).distinct()
    for chunk in chunks(list(connection.execute(observed).scalars())):
        connection.execute(
            sa.update(partitions)
            .where(p.pipeline == pipeline, p.token.in_(chunk), p.end_found_ns.is_(None))
            .values(end_found_ns=plan.start_ns)
        )
