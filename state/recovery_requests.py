"""Requests to go on after a loss, from an operator to the process that waits with the pipeline."""

import sqlalchemy as sa

from slackwater.state.models import DesiredState
from slackwater.state.store import Store
from slackwater.state.tables import pipelines

_COLUMNS = (pipelines.c.from_watermark, pipelines.c.skip_to)


def request_recovery(
    store: Store, name: str, from_watermark: str | None, skip_to: str | None
) -> bool:
    """Have a pipeline that waits for an operator go on; return False if it does not wait.

    Both in one transaction: a request that outlives its failure would skip records later.

    Args:
        store: the metadata store.
        name: the pipeline's name.
        from_watermark, skip_to: as `slackwater run` has them.

    Raises:
        StateError: the store can't be reached.
    """
    statement = (
        sa.update(pipelines)
        .where(
            pipelines.c.name == name,
            pipelines.c.desired_state == DesiredState.AWAITING_OPERATOR.value,
        )
        .values(
            desired_state=DesiredState.RUNNING.value, from_watermark=from_watermark, skip_to=skip_to
        )
    )
    return store.write(lambda c: c.execute(statement).rowcount) > 0


def take_recovery(
    store: Store, name: str, generation: int | None
) -> tuple[str | None, str | None] | None:
    """Return a request, as from_watermark and skip_to, and remove it; None if there is none.

    It is removed first: if this process dies before it has obeyed, the pipeline fails as before,
    and waits for another request.

    Args:
        store: the metadata store.
        name: the pipeline's name.
        generation: of the lease that this process holds; a process that lost it gets nothing.

    Raises:
        StateError: the store can't be reached.
    """
    of_owner = (pipelines.c.name == name, pipelines.c.generation == generation)

    def work(connection: sa.Connection) -> tuple[str | None, str | None] | None:
        row = connection.execute(sa.select(*_COLUMNS).where(*of_owner)).first()
        if row is None or row == (None, None):
            return None
        nothing = {column.name: None for column in _COLUMNS}
        connection.execute(sa.update(pipelines).where(*of_owner).values(nothing))
        return row.from_watermark, row.skip_to

    return store.write(work)
