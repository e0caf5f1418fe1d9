"""The lease of a pipeline: one owner at a time, distinguished by generations.

Clocks of different machines are never compared. A generation is a reading of one, but only so that
no two are alike. An owner renews its lease by raising a counter. A standby takes over when the
counter has not changed for the lease's duration by the standby's own clock. An owner that was only
frozen learns of this at its next write, which is refused because its generation is over ("How to do
distributed locking", Martin Kleppmann, 2016).
"""

import time
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from slackwater.state.errors import LeaseLostError
from slackwater.state.models import Lease
from slackwater.state.store import Store
from slackwater.state.tables import pipelines
from slackwater.state.transaction import locking
from slackwater.timestamp import NANOSECONDS_PER_MICROSECOND


@dataclass(frozen=True, slots=True)
class LeaseObservation:
    """A lease as a waiting process last saw it.

    Attributes:
        lease: the lease.
        since_s: when it was first seen like this, in seconds of a monotonic clock.
    """

    lease: Lease
    since_s: float


def observe(last: LeaseObservation | None, lease: Lease, now_s: float) -> LeaseObservation:
    """Return the observation of a lease after it was read once more."""
    if last is not None and last.lease == lease:
        return last
    return LeaseObservation(lease, now_s)


def is_expired(observation: LeaseObservation, now_s: float, *, duration_s: float) -> bool:
    """Return True if the pipeline has no owner, or its owner has not renewed for the duration."""
    return observation.lease.owner is None or now_s - observation.since_s >= duration_s


def read_lease(store: Store, pipeline: str) -> Lease:
    """Return the lease of a pipeline that is in the store.

    Raises:
        StateError: the store can't be reached.
    """
    columns = (pipelines.c.owner, pipelines.c.generation, pipelines.c.heartbeat)
    statement = sa.select(*columns).where(pipelines.c.name == pipeline)
    return _lease(pipeline, store.read(lambda c: c.execute(statement).one_or_none()))


def acquire_lease(store: Store, pipeline: str, owner: str, seen: Lease) -> Lease | None:
    """Become the owner and return the new lease; None if the lease has changed since it was seen.

    Raises:
        StateError: the store can't be reached.
    """
    # Not the next number: a store that was restored from a backup must not give a generation again
    # that a former owner, not yet stopped, still writes under.
    generation = max(seen.generation + 1, time.time_ns() // NANOSECONDS_PER_MICROSECOND)
    taken = Lease(owner, generation, seen.heartbeat + 1)

    def work(connection: sa.Connection) -> bool:
        current = _locked(connection, pipeline)
        if current == seen:
            _set(connection, pipeline, taken)
            return True
        # An earlier attempt whose answer was lost may have done it.
        return current == taken

    return taken if store.write(work) else None


def renew_lease(store: Store, pipeline: str, lease: Lease) -> Lease | None:
    """Renew the lease to show that the owner is alive; None if it is no longer the owner.

    Raises:
        StateError: the store can't be reached.
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
    """Release the pipeline to a waiting process; do nothing if it has another owner.

    Raises:
        StateError: the store can't be reached.
    """

    def work(connection: sa.Connection) -> None:
        current = _locked(connection, pipeline)
        if (current.owner, current.generation) == (lease.owner, lease.generation):
            _set(connection, pipeline, replace(current, owner=None))

    store.write(work)


def _locked(connection: sa.Connection, pipeline: str) -> Lease:
    columns = (pipelines.c.owner, pipelines.c.generation, pipelines.c.heartbeat)
    statement = sa.select(*columns).where(pipelines.c.name == pipeline)
    return _lease(pipeline, connection.execute(locking(connection, statement)).one_or_none())


def _lease(pipeline: str, row: Any) -> Lease:
    """Return the lease in a row of the table pipelines.

    Raises:
        LeaseLostError: there is no row: the store was emptied under a running process.
    """
    if row is None:
        raise LeaseLostError(
            f"the metadata store no longer has pipeline {pipeline!r}.",
            "Start the program again: it makes the pipeline anew",
        )
    return Lease(row.owner, row.generation, row.heartbeat)


def _set(connection: sa.Connection, pipeline: str, lease: Lease) -> None:
    connection.execute(
        sa.update(pipelines)
        .where(pipelines.c.name == pipeline)
        .values(owner=lease.owner, generation=lease.generation, heartbeat=lease.heartbeat)
    )
