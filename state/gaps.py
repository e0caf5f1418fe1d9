"""Gaps: records that are lost to a pipeline for good, accepted by its operator."""

import sqlalchemy as sa

from slackwater.state.models import Gap
from slackwater.state.store import Store
from slackwater.state.tables import gaps as table


def record_gap(store: Store, gap: Gap) -> None:
    """Record a gap; it replaces one that begins at the same low watermark.

    Raises:
        StateError: the store can't be reached.
    """
    row = {name: getattr(gap, name) for name in table.c.keys()}  # noqa: SIM118

    def work(connection: sa.Connection) -> None:
        key = (table.c.pipeline == gap.pipeline, table.c.start_ns == gap.start_ns)
        connection.execute(sa.delete(table).where(*key))
        connection.execute(sa.insert(table), row)

    store.write(work)


def gaps(store: Store, pipeline: str) -> list[Gap]:
    """Return the gaps of a pipeline, the oldest first.

    Raises:
        StateError: the store can't be reached.
    """
    statement = sa.select(table).where(table.c.pipeline == pipeline).order_by(table.c.start_ns)
    rows = store.read(lambda c: c.execute(statement).all())
    return [Gap(**row._asdict()) for row in rows]
