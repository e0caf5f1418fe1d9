"""The progress of comparing a pipeline's mirrors with their tables, for status and monitoring.

Any process may compare. Nothing but reports depends on these rows.
"""

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from slackwater.state.store import Store
from slackwater.state.tables import verified_tables as table
from slackwater.state.verified_models import VerifiedTable


def verified_tables(store: Store, pipeline: str) -> list[VerifiedTable]:
    """Return the tables that are compared, by name.

    Raises:
        StateError: the store can't be reached.
    """
    statement = sa.select(table).where(table.c.pipeline == pipeline).order_by(table.c.table_name)
    rows = store.read(lambda c: c.execute(statement).all())
    return [_verified(row) for row in rows]


def record_verified(store: Store, verified: VerifiedTable) -> None:
    """Record the progress of comparing one table.

    Raises:
        StateError: the store can't be reached.
    """
    values = {
        name: getattr(verified, name)
        for name in table.c.keys()  # noqa: SIM118
        if name != "table_name"
    }
    same = (table.c.pipeline == verified.pipeline, table.c.table_name == verified.table)

    def work(connection: sa.Connection) -> None:
        connection.execute(sa.delete(table).where(*same))
        connection.execute(sa.insert(table), values | {"table_name": verified.table})

    store.write(work)


def forget_all_but(store: Store, pipeline: str, names: Collection[str]) -> None:
    """Forget tables that the pipeline no longer reads.

    Raises:
        StateError: the store can't be reached.
    """
    others = (table.c.pipeline == pipeline, table.c.table_name.not_in(names))
    store.write(lambda connection: connection.execute(sa.delete(table).where(*others)))


def _verified(row: Any) -> VerifiedTable:
    values = row._asdict()
    return VerifiedTable(table=values.pop("table_name"), **values)
