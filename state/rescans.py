"""Tables that are read again while the changes go on: the requests and their progress.

Any process may ask. Only the pipeline's owner records progress, and only for the request that it
has read: a newer one for the same table begins again at the table's beginning.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import sqlalchemy as sa

from slackwater.state.rescan_models import Rescan, RescanState
from slackwater.state.store import Store
from slackwater.state.tables import rescans as table
from slackwater.state.tables import seen_tables
from slackwater.state.transaction import Transaction

# Stands beside the seen tables: a stream may have been seen to watch none.
_POLLED: Final = ""
_IDENTITY: Final = ("pipeline", "table_name", "requested_at_ns")


def request_rescans(
    store: Store, requests: Sequence[Rescan], generation: int | None = None
) -> None:
    """Record requests; each replaces an earlier one for the same table.

    A table that lacks rows keeps its reason, even if it is requested for another meanwhile.

    Args:
        store: the metadata store.
        requests: of one pipeline.
        generation: the generation of the owner's lease; None for those of an operator.

    Raises:
        LeaseLostError: the pipeline's generation is not this one.
        StateError: the store can't be reached.
    """

    def work(connection: sa.Connection) -> None:
        if generation is not None:
            Transaction(connection).require_generation(requests[0].pipeline, generation)
        _request(connection, requests)

    store.write(work)


def rescans(
    store: Store, pipeline: str, states: Collection[RescanState] = tuple(RescanState)
) -> list[Rescan]:
    """Return the requests of a pipeline in these states, the oldest first.

    Raises:
        StateError: the store can't be reached.
    """
    statement = (
        sa.select(table)
        .where(table.c.pipeline == pipeline, table.c.state.in_([s.value for s in states]))
        .order_by(table.c.requested_at_ns, table.c.table_name)
    )
    rows = store.read(lambda c: c.execute(statement).all())
    return [_rescan(row) for row in rows]


def stop_rescans(store: Store, pipeline: str, names: Collection[str]) -> list[str]:
    """Stop the running ones, and return their tables; corrected rows stay.

    Raises:
        StateError: the store can't be reached.
    """
    is_running = (
        table.c.pipeline == pipeline,
        table.c.table_name.in_(names),
        table.c.state == RescanState.RUNNING.value,
    )

    def work(connection: sa.Connection) -> list[str]:
        rows = connection.execute(sa.select(table.c.table_name).where(*is_running)).all()
        statement = sa.update(table).where(*is_running).values(state=RescanState.STOPPED.value)
        connection.execute(statement)
        return sorted(row.table_name for row in rows)

    return store.write(work)


def record_rescan(store: Store, rescan: Rescan, *, generation: int) -> bool:
    """Record the progress of a request.

    Args:
        store: the metadata store.
        rescan: the request, as it is now.
        generation: the generation of the owner's lease.

    Returns:
        False if the request was stopped or replaced meanwhile; then nothing was changed.

    Raises:
        LeaseLostError: the pipeline's generation is not this one.
        StateError: the store can't be reached.
    """
    values = _values(rescan)
    same = [table.c[name] == values.pop(name) for name in _IDENTITY]
    same.append(table.c.state == RescanState.RUNNING.value)

    def work(connection: sa.Connection) -> bool:
        Transaction(connection).require_generation(rescan.pipeline, generation)
        return bool(connection.execute(sa.update(table).where(*same).values(values)).rowcount)

    return store.write(work)


def read_seen_tables(store: Store, pipeline: str) -> frozenset[str] | None:
    """Return the tables that the pipeline's stream was seen to watch; None before the first poll.

    Raises:
        StateError: the store can't be reached.
    """
    statement = sa.select(seen_tables.c.table_name).where(seen_tables.c.pipeline == pipeline)
    names = frozenset(store.read(lambda c: c.execute(statement).scalars().all()))
    return names - {_POLLED} if names else None


def record_seen_tables(
    store: Store,
    pipeline: str,
    names: Iterable[str],
    requests: Sequence[Rescan],
    *,
    generation: int,
) -> None:
    """Replace the tables that the stream watches, and record requests for new ones with them.

    Raises:
        LeaseLostError: the pipeline's generation is not this one.
        StateError: the store can't be reached.
    """
    rows = [{"pipeline": pipeline, "table_name": name} for name in (_POLLED, *names)]

    def work(connection: sa.Connection) -> None:
        Transaction(connection).require_generation(pipeline, generation)
        connection.execute(sa.delete(seen_tables).where(seen_tables.c.pipeline == pipeline))
        connection.execute(sa.insert(seen_tables), rows)
        _request(connection, requests)

    store.write(work)


def _request(connection: sa.Connection, requests: Sequence[Rescan]) -> None:
    for request in requests:
        same = (table.c.pipeline == request.pipeline, table.c.table_name == request.table)
        row = connection.execute(sa.select(table).where(*same)).first()
        before = request if row is None else _rescan(row)
        reason = before.reason if before.lacks_rows else request.reason
        again = replace(request, reason=reason, at_ns=before.last_at_ns or None)
        connection.execute(sa.delete(table).where(*same))
        connection.execute(sa.insert(table), _values(again))


def _values(rescan: Rescan) -> dict[str, Any]:
    values = {
        name: getattr(rescan, name)
        for name in table.c.keys()  # noqa: SIM118
        if name not in ("table_name", "state")
    }
    return values | {"table_name": rescan.table, "state": rescan.state.value}


def _rescan(row: Any) -> Rescan:
    values = row._asdict()
    name, state = values.pop("table_name"), RescanState(values.pop("state"))
    return Rescan(table=name, state=state, **values)
