"""The counts of a plan's tasks, kept until the epoch is written and audited."""

import sqlalchemy as sa

from slackwater.state.models import MoveCounts, PartialTransaction, TaskCounts
from slackwater.state.store import Store
from slackwater.state.tables import plan_moves, plan_partial_transactions, plan_tasks


def read_task_counts(store: Store, plan_id: str) -> dict[int, TaskCounts]:
    """Return the counts of a plan's sealed tasks, by task number.

    Raises:
        StateError: the store can't be reached.
    """

    def work(connection: sa.Connection) -> dict[int, TaskCounts]:
        partial_transactions: dict[int, list[PartialTransaction]] = {}
        of_plan = sa.select(plan_partial_transactions).where(
            plan_partial_transactions.c.plan_id == plan_id
        )
        for row in connection.execute(of_plan):
            partial_transactions.setdefault(row.task, []).append(
                PartialTransaction(
                    row.transaction_id,
                    row.records,
                    row.partitions,
                    row.records_stated,
                    row.partitions_stated,
                )
            )
        moves: dict[int, list[MoveCounts]] = {}
        of_plan = sa.select(plan_moves).where(plan_moves.c.plan_id == plan_id)
        for row in connection.execute(of_plan):
            moves.setdefault(row.task, []).append(
                MoveCounts(row.second_ns, row.moves_out, row.moves_in, row.digest)
            )
        sealed = (plan_tasks.c.plan_id == plan_id, plan_tasks.c.records.is_not(None))
        return {
            row.task: TaskCounts(
                row.records,
                row.late_records,
                tuple(partial_transactions.get(row.task, ())),
                tuple(row.violations.splitlines()),
                moves=tuple(moves.get(row.task, ())),
            )
            for row in connection.execute(sa.select(plan_tasks).where(*sealed))
        }

    return store.read(work)
