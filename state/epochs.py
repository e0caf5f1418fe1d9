"""The committed epochs of a pipeline, for monitoring and to choose the next epoch's span."""

import sqlalchemy as sa

from slackwater.state.models import Epoch
from slackwater.state.store import Store
from slackwater.state.tables import epochs as table


def record_epoch(store: Store, epoch: Epoch) -> None:
    """Record a committed epoch; a second call replaces it.

    Raises:
        StateError: the store can't be reached.
    """
    row = {name: getattr(epoch, name) for name in table.c.keys()}  # noqa: SIM118
    key = (table.c.pipeline == epoch.pipeline, table.c.end_ns == epoch.end_ns)

    def work(connection: sa.Connection) -> None:
        connection.execute(sa.delete(table).where(*key))
        connection.execute(sa.insert(table), row)

    store.write(work)


def last_epochs(store: Store, pipeline: str, *, limit: int) -> list[Epoch]:
    """Return the last epochs, the newest last.

    Raises:
        StateError: the store can't be reached.
    """
    newest = sa.select(table).where(table.c.pipeline == pipeline)
    newest = newest.order_by(table.c.end_ns.desc()).limit(limit)
    rows = store.read(lambda c: c.execute(newest).all())
    return [Epoch(**row._asdict()) for row in reversed(rows)]


def forget_epochs(store: Store, pipeline: str, *, before_ns: int) -> None:
    """Remove the epochs whose low watermark lies before a time.

    Raises:
        StateError: the store can't be reached.
    """
    older = sa.delete(table).where(table.c.pipeline == pipeline, table.c.end_ns < before_ns)
    store.write(lambda c: c.execute(older))


def prune_epochs(store: Store, pipeline: str, *, keep: int) -> None:
    """Remove all but the last epochs.

    Raises:
        StateError: the store can't be reached.
    """
    newest = last_epochs(store, pipeline, limit=keep)
    if newest:
        older = sa.delete(table).where(
            table.c.pipeline == pipeline, table.c.end_ns < newest[0].end_ns
        )
        store.write(lambda c: c.execute(older))
