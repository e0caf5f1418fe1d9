"""The lease of a pipeline: one owner at a time, told apart by generations.

No clock is compared with another machine's. An owner renews its lease by raising a counter; who
waits takes over when the counter has stood still for the lease's duration by its own clock. An
owner that was only frozen learns of it at its next write, which its former generation fences off
("How to do distributed locking", Martin Kleppmann, 2016).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from slackwater.state.models import Lease
from slackwater.state.store import Store
from slackwater.state.tables import pipelines
from slackwater.state.transaction import locking


@dataclass(frozen=True, slots=True)
class LeaseObservation:
    """A lease as somebody who waits for it saw it.

    Attributes:
        lease: what was seen.
        since_s: the first moment at which it looked like this, by a monotonic clock, seconds.
    """

    lease: Lease
    since_s: float


def observe(former: LeaseObservation | None, lease: Lease, now_s: float) -> LeaseObservation:
    """What is known of a lease after one more look at it."""
    if former is not None and former.lease == lease:
        return former
    return LeaseObservation(lease, now_s)


def is_expired(sighting: LeaseObservation, now_s: float, *, duration_s: float) -> bool:
    """True where nobody owns the pipeline, or its owner has not renewed for the duration."""
    return sighting.lease.owner is None or now_s - sighting.since_s >= duration_s


def read_lease(store: Store, pipeline: str) -> Lease:
    """The lease of a pipeline that is in the store.

    Raises:
        StateError: the store can't be asked.
    """
    columns = (pipelines.c.owner, pipelines.c.generation, pipelines.c.beat)
    statement = sa.select(*columns).where(pipelines.c.name == pipeline)
    row = store.read(lambda c: c.execute(statement).one())
    return Lease(row.owner, row.generation or 0, row.beat or 0)


def acquire_lease(store: Store, pipeline: str, owner: str, seen: Lease) -> Lease | None:
    """Become the owner, unless the lease is no longer as it was seen; the new lease.

    Raises:
        StateError: the store can't be asked.
    """
    taken = Lease(owner, seen.generation + 1, seen.heartbeat + 1)

    def work(connection: sa.Connection) -> bool:
        current = _locked(connection, pipeline)
        if current == seen:
            _set(connection, pipeline, taken)
            return True
        # An attempt whose answer was lost may have done it.
        return current == taken

    return taken if store.write(work) else None


def renew_lease(store: Store, pipeline: str, lease: Lease) -> Lease | None:
    """Show that the owner is alive; None where it is not the owner any more.

    Raises:
        StateError: the store can't be asked.
    """

    def work(connection: sa.Connection) -> Lease | None:
        current = _locked(connection, pipeline)
        if (current.owner, current.generation) != (lease.owner, lease.generation):
            return None
        renewed = replace(current, heartbeat=current.heartbeat + 1)
        _set(connection, pipeline, renewed)
        return renewed

    return store.write(work)


def release_lease(store: Store, pipeline: str, lease: Lease) -> None:
    """Leave the pipeline to whoever waits; nothing happens where it has another owner.

    Raises:
        StateError: the store can't be asked.
    """

    def work(connection: sa.Connection) -> None:
        current = _locked(connection, pipeline)
        if (current.owner, current.generation) == (lease.owner, lease.generation):
            _set(connection, pipeline, replace(current, owner=None))

    store.write(work)


def _locked(connection: sa.Connection, pipeline: str) -> Lease:
    columns = (pipelines.c.owner, pipelines.c.generation, pipelines.c.beat)
    statement = sa.select(*columns).where(pipelines.c.name == pipeline)
    row: Any = connection.execute(locking(connection, statement)).one()
    return Lease(row.owner, row.generation or 0, row.beat or 0)


def _set(connection: sa.Connection, pipeline: str, lease: Lease) -> None:
    connection.execute(
        sa.update(pipelines)
        .where(pipelines.c.name == pipeline)
        .values(owner=lease.owner, generation=lease.generation, beat=lease.heartbeat)
    )
