"""Plans: attempts at epochs, and the tasks of each."""

from collections.abc import Collection, Sequence
from typing import Final

import sqlalchemy as sa

from slackwater.state.errors import PlanMissingError
from slackwater.state.lineage_rows import chunks
from slackwater.state.models import PartitionKey, Plan
from slackwater.state.store import Store
from slackwater.state.tables import (
    failed_audits,
    pipelines,
    plan_claims,
    plan_ends,
    plan_moves,
    plan_open_queries,
    plan_partial_transactions,
    plan_partition_load,
    plan_positions,
    plan_task_metrics,
    plan_tasks,
    plans,
)
from slackwater.state.transaction import Transaction

# The latest plan, and the one before it, whose tasks may still be ending.
_PLANS_KEPT: Final = 2
# The plans themselves last, so that no row is left of a plan that was deleted.
_OF_A_PLAN: Final = (
    plan_claims,
    plan_ends,
    plan_moves,
    plan_open_queries,
    plan_partial_transactions,
    plan_partition_load,
    plan_positions,
    plan_task_metrics,
    plan_tasks,
    plans,
)


def begin_plan(
    store: Store,
    plan: Plan,
    *,
    tasks: int,
    claims: Sequence[tuple[PartitionKey, int]] = (),
    repeats: str | None = None,
) -> None:
    """Add a plan and its tasks to the store, and remove the plans before the previous one.

    A second call changes nothing: a commit whose answer was lost is tried again.

    Args:
        store: the metadata store.
        plan: the plan.
        tasks: the number of its tasks.
        claims: the roots that it reads from their starts, each with the number of its task.
        repeats: a plan of the same cut whose epoch was written, and whose positions this one has.

    Raises:
        LeaseLostError: the pipeline has another owner now.
    """

    def work(connection: sa.Connection) -> None:
        Transaction(connection).require_generation(plan.pipeline, plan.generation)
        same = sa.select(plans.c.plan_id).where(plans.c.plan_id == plan.plan_id)
        if connection.execute(same).first() is not None:
            return
        latest = connection.execute(
            sa.select(sa.func.max(plans.c.number)).where(plans.c.pipeline == plan.pipeline)
        ).scalar()
        number = (latest or 0) + 1
        connection.execute(
            sa.insert(plans),
            {
                "plan_id": plan.plan_id,
                "pipeline": plan.pipeline,
                "number": number,
                "start_ns": plan.start_ns,
                "end_ns": plan.end_ns,
            },
        )
        rows = [{"plan_id": plan.plan_id, "task": index} for index in range(tasks)]
        if rows:
            connection.execute(sa.insert(plan_tasks), rows)
        rows_of_claims = [
            {"plan_id": plan.plan_id, **key._asdict(), "task": task} for key, task in claims
        ]
        if rows_of_claims:
            connection.execute(sa.insert(plan_claims), rows_of_claims)
        if repeats is not None:
            _copy_positions(connection, repeats, plan.plan_id)
        _raise_planned_watermark(connection, plan)
        _remove_old_plans(connection, plan, number)

    store.write(work)


def _remove_old_plans(connection: sa.Connection, plan: Plan, number: int) -> None:
    """Remove the plans that a new one, of this number, makes obsolete."""
    connection.execute(
        sa.delete(failed_audits).where(
            failed_audits.c.pipeline == plan.pipeline, failed_audits.c.end_ns <= plan.start_ns
        )
    )
    old = connection.execute(
        sa.select(plans.c.plan_id).where(
            plans.c.pipeline == plan.pipeline,
            plans.c.number <= number - _PLANS_KEPT,
            plans.c.plan_id != (plan.must_match_plan or ""),
        )
    ).scalars()
    delete_plans(connection, list(old))


def _raise_planned_watermark(connection: sa.Connection, plan: Plan) -> None:
    planned = pipelines.c.planned_watermark_ns
    connection.execute(
        sa.update(pipelines)
        .where(
            pipelines.c.name == plan.pipeline,
            sa.or_(planned.is_(None), planned < plan.end_ns),
        )
        .values(planned_watermark_ns=plan.end_ns)
    )


def _copy_positions(connection: sa.Connection, plan_id: str, to_plan: str) -> None:
    """Give a plan the positions of another one of its cut."""
    c = plan_positions.c
    columns = ["task", "number", "attempt", "partitions", "positions"]
    rows = sa.select(sa.literal(to_plan), *(c[name] for name in columns)).where(
        c.plan_id == plan_id
    )
    connection.execute(sa.insert(plan_positions).from_select(["plan_id", *columns], rows))


def delete_plans(connection: sa.Connection, plan_ids: Collection[str]) -> None:
    """Delete plans, and everything that belongs to them."""
    for chunk in chunks(plan_ids):
        for table in _OF_A_PLAN:
            connection.execute(sa.delete(table).where(table.c.plan_id.in_(chunk)))


def is_sealed() -> sa.ColumnElement[bool]:
    """Return the condition on rows of the table plans that all tasks of the plan are sealed."""
    tasks = plan_tasks.c
    unsealed = sa.select(tasks.plan_id).where(
        tasks.plan_id == plans.c.plan_id, tasks.records.is_(None)
    )
    return ~unsealed.exists()


def sealed_plan_id(store: Store, pipeline: str, start_ns: int, end_ns: int) -> str | None:
    """Return the last plan of a cut whose tasks are all sealed; None if there is none."""
    statement = (
        sa.select(plans.c.plan_id)
        .where(
            plans.c.pipeline == pipeline,
            plans.c.start_ns == start_ns,
            plans.c.end_ns == end_ns,
            is_sealed(),
        )
        .order_by(plans.c.number.desc())
        .limit(1)
    )
    plan_id = store.read(lambda c: c.execute(statement).scalar())
    return None if plan_id is None else str(plan_id)


def unsealed_tasks(store: Store, plan_id: str) -> list[int]:
    """Return the numbers of a plan's tasks that are not sealed."""
    c = plan_tasks.c
    statement = sa.select(c.task).where(c.plan_id == plan_id, c.records.is_(None)).order_by(c.task)
    return list(store.read(lambda connection: connection.execute(statement).scalars().all()))


def partition_load(store: Store, pipeline: str) -> dict[str, int]:
    """Return the number of records of each partition in the last two plans, by label."""
    c = plan_partition_load.c
    statement = (
        sa.select(c.label, sa.func.sum(c.records).label("records"))
        .join(plans, plans.c.plan_id == c.plan_id)
        .where(plans.c.pipeline == pipeline)
        .group_by(c.label)
    )
    rows = store.read(lambda connection: connection.execute(statement).all())
    return {row.label: int(row.records) for row in rows}


def claims_of_plan(store: Store, plan_id: str) -> set[PartitionKey]:
    """Return the partitions that a plan's tasks read from their starts."""
    return store.read(lambda c: set(Transaction(c).claims(plan_id)))


def note_failed_audit(store: Store, plan: Plan) -> None:
    """Note that an attempt at a plan's cut has failed the audit; the cut's next plan follows that.

    Raises:
        LeaseLostError: the pipeline has another owner now.
        StateError: the store can't be reached.
    """

    def work(connection: sa.Connection) -> None:
        Transaction(connection).require_generation(plan.pipeline, plan.generation, is_shared=True)
        _record_failed_audit(connection, plan)

    store.write(work)


def reject_plans(store: Store, plan: Plan) -> None:
    """Unseal all plans of a cut, because its epoch failed the audit and is not written.

    A later plan of the cut then does not have to match them, and follows a failed audit.

    Raises:
        LeaseLostError: the pipeline has another owner now, whose plans are not to be changed.
        StateError: the store can't be reached.
    """
    of_cut = sa.select(plans.c.plan_id).where(
        plans.c.pipeline == plan.pipeline,
        plans.c.start_ns == plan.start_ns,
        plans.c.end_ns == plan.end_ns,
    )

    def work(connection: sa.Connection) -> None:
        Transaction(connection).require_generation(plan.pipeline, plan.generation)
        _record_failed_audit(connection, plan)
        for plan_id in list(connection.execute(of_cut).scalars()):
            connection.execute(
                sa.update(plan_tasks).where(plan_tasks.c.plan_id == plan_id).values(records=None)
            )

    store.write(work)


def _record_failed_audit(connection: sa.Connection, plan: Plan) -> None:
    key = {"pipeline": plan.pipeline, "end_ns": plan.end_ns}
    table = failed_audits
    connection.execute(
        sa.delete(table).where(*(table.c[column] == value for column, value in key.items()))
    )
    connection.execute(sa.insert(table), {**key, "start_ns": plan.start_ns})


def has_failed_audit(store: Store, pipeline: str, start_ns: int, end_ns: int) -> bool:
    """Return True if an attempt at a cut has failed the audit."""
    statement = sa.select(failed_audits.c.end_ns).where(
        failed_audits.c.pipeline == pipeline,
        failed_audits.c.start_ns == start_ns,
        failed_audits.c.end_ns == end_ns,
    )
    return store.read(lambda c: c.execute(statement).first()) is not None


def latest_plan(store: Store, pipeline: str) -> Plan | None:
    """Return a pipeline's latest plan, without its generation; None before the first."""
    latest = sa.select(plans).where(plans.c.pipeline == pipeline)
    row = store.read(lambda c: c.execute(latest.order_by(plans.c.number.desc())).first())
    return None if row is None else Plan(row.plan_id, row.pipeline, row.start_ns, row.end_ns)


def plan_by_id(store: Store, plan_id: str) -> Plan:
    """Return the plan with an id.

    Raises:
        PlanMissingError: this is not the planner's store, or the plan was removed long ago.
    """
    row = store.read(
        lambda c: c.execute(sa.select(plans).where(plans.c.plan_id == plan_id)).first()
    )
    if row is None:
        raise PlanMissingError(
            f"the plan {plan_id} is not in the metadata store {store.url}.",
            "Every Spark executor must reach the store of the pipeline",
        )
    return Plan(row.plan_id, row.pipeline, row.start_ns, row.end_ns)
