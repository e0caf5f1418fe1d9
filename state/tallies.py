"""What the tasks of a plan counted, kept until the epoch is written and audited."""

from __future__ import annotations

import sqlalchemy as sa

from state.facts import Plan, Share, TaskTally
from state.store import Store
from state.tables import plan_shares, plan_tallies
from state.transaction import Transaction


def record_tally(store: Store, plan: Plan, task: int, tally: TaskTally) -> None:
    """Keep a task's tally in the place of a former attempt's.

    Raises:
        LeaseLostError: the pipeline has got another owner.
        StateError: the store can't be reached.
    """
    key = {"plan_id": plan.plan_id, "task": task}
    row = {
        **key,
        "records": tally.records,
        "late_records": tally.late_records,
        "violations": "\n".join(tally.violations),
    }
    shares = [
        {
            **key,
            "transaction_id": share.transaction,
            "records": share.records,
            "partitions": share.partitions,
            "records_stated": share.records_stated,
            "partitions_stated": share.partitions_stated,
        }
        for share in tally.shares
    ]

    def work(connection: sa.Connection) -> None:
        fence = Transaction(connection)
        fence.require_generation(plan.pipeline, plan.generation, is_shared=True)
        for table in (plan_tallies, plan_shares):
            connection.execute(
                sa.delete(table).where(table.c.plan_id == plan.plan_id, table.c.task == task)
            )
        connection.execute(sa.insert(plan_tallies), row)
        if shares:
            connection.execute(sa.insert(plan_shares), shares)

    store.write(work)


def tallies(store: Store, plan_id: str) -> dict[int, TaskTally]:
    """The tallies of a plan's tasks that have ended, by task.

    Raises:
        StateError: the store can't be reached.
    """

    def work(connection: sa.Connection) -> dict[int, TaskTally]:
        shares: dict[int, list[Share]] = {}
        of_plan = sa.select(plan_shares).where(plan_shares.c.plan_id == plan_id)
        for row in connection.execute(of_plan):
            shares.setdefault(row.task, []).append(
                Share(
                    row.transaction_id,
                    row.records,
                    row.partitions,
                    row.records_stated,
                    row.partitions_stated,
                )
            )
        rows = connection.execute(sa.select(plan_tallies).where(plan_tallies.c.plan_id == plan_id))
        return {
            row.task: TaskTally(
                row.records,
                row.late_records,
                tuple(shares.get(row.task, ())),
                tuple(row.violations.splitlines()),
            )
            for row in rows
        }

    return store.read(work)
