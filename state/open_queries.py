"""The open partition queries of a plan, as its tasks report them for monitoring."""

from collections.abc import Sequence

import sqlalchemy as sa

from slackwater.state.models import OpenQuery, PartitionKey, partition_label
from slackwater.state.plans import latest_plan
from slackwater.state.store import Store
from slackwater.state.tables import partitions, plan_open_queries


def report_queries(store: Store, plan_id: str, task: int, queries: Sequence[OpenQuery]) -> None:
    """Replace a task's last report of its open queries; an empty report removes it.

    Raises:
        StateError: the store can't be reached.
    """
    table = plan_open_queries
    rows = [
        {
            "plan_id": plan_id,
            "task": task,
            "token": query.token,
            "watermark_ns": query.watermark_ns,
            "open_ms": query.open_ms,
            "silent_ms": query.silent_ms,
            "stalls": query.stalls,
        }
        for query in queries
    ]

    def work(connection: sa.Connection) -> None:
        connection.execute(sa.delete(table).where(table.c.plan_id == plan_id, table.c.task == task))
        if rows:
            connection.execute(sa.insert(table), rows)

    store.write(work)


def open_queries(store: Store, plan_id: str) -> list[OpenQuery]:
    """Return the open queries that the tasks of a plan last reported, the furthest behind first.

    Raises:
        StateError: the store can't be reached.
    """
    t = plan_open_queries.c
    statement = sa.select(plan_open_queries).where(t.plan_id == plan_id).order_by(t.watermark_ns)
    rows = store.read(lambda c: c.execute(statement).all())
    return [
        OpenQuery(row.token, row.watermark_ns, row.open_ms, row.silent_ms, row.stalls)
        for row in rows
    ]


def latest_open_queries(store: Store, pipeline: str, *, past_ns: int = 0) -> list[OpenQuery]:
    """Return the open queries of a pipeline's latest plan, the furthest behind first.

    Args:
        past_ns: a plan that ends no later has none; such as a low watermark.

    Raises:
        StateError: the store can't be reached.
    """
    plan = latest_plan(store, pipeline)
    return open_queries(store, plan.plan_id) if plan and plan.end_ns > past_ns else []


def count_stalls(store: Store, pipeline: str, key: PartitionKey, stalls: int) -> None:
    """Add a number of stalls to a partition's.

    Raises:
        StateError: the store can't be reached.
    """
    c = partitions.c
    statement = (
        sa.update(partitions)
        .where(c.pipeline == pipeline, c.function == key.function, c.token == key.token)
        .values(stalls=c.stalls + stalls)
    )
    store.write(lambda connection: connection.execute(statement))


def stalls(store: Store, pipeline: str) -> dict[str, int]:
    """Return how often the queries of a pipeline's partitions stalled, by label, without zeros.

    Raises:
        StateError: the store can't be reached.
    """
    c = partitions.c
    statement = sa.select(c.function, c.token, c.stalls).where(c.pipeline == pipeline, c.stalls > 0)
    rows = store.read(lambda connection: connection.execute(statement).all())
    return {partition_label(PartitionKey(row.function, row.token)): row.stalls for row in rows}
