"""Tables that are new to a change stream."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from slackwater.pipeline.epochs.new_tables import NewTables
from slackwater.reader.database.watched_tables import Table
from slackwater.reader.errors import UnavailableError
from slackwater.state.lease import acquire_lease, read_lease
from slackwater.state.store import Store
from slackwater.timestamp import seconds_to_ns


def unreadable(_: int) -> Sequence[Table]:
    raise UnavailableError("Spanner does not answer.")


def test_an_epoch_that_nobody_has_looked_at_is_not_published_unless_it_is_long_past() -> None:
    no_store: Any = None
    new = NewTables("orders", unreadable, no_store, 1, every_s=0.0)
    with pytest.raises(UnavailableError):
        new.request_new(time.time_ns())
    assert new.request_new(time.time_ns() - seconds_to_ns(7_200)) == []


def test_tables_that_come_after_the_stream_has_watched_none_are_new(
    orders_store: Store,
) -> None:
    """Their rows and changes of the meantime are in no epoch."""
    store = orders_store
    lease = acquire_lease(store, "orders", "owner", read_lease(store, "orders"))
    assert lease is not None
    watched: list[str] = []

    def tables_at(_: int) -> Sequence[Table]:
        return [Table(name, {}, (), ()) for name in watched]

    def requested(*names: str) -> list[str]:
        watched[:] = names
        # As after a restart, which has nothing but the store.
        new = NewTables("orders", tables_at, store, lease.generation, every_s=0.0)
        return [request.table for request in new.request_new(time.time_ns())]

    assert [requested(), requested("A", "B"), requested("A"), requested("A", "B"), requested()] == [
        *([], ["A", "B"], [], ["B"], [])
    ]
    assert requested("A", "B") == ["A", "B"]


def test_tables_are_looked_for_in_an_unchanged_schema_only_until_that_has_succeeded(
    orders_store: Store,
) -> None:
    lease = acquire_lease(orders_store, "orders", "owner", read_lease(orders_store, "orders"))
    assert lease is not None
    looks: list[int] = []

    def tables_at(end_ns: int) -> Sequence[Table]:
        looks.append(end_ns)
        if end_ns == long_ago_ns:
            raise UnavailableError("The versions are gone.")
        return []

    long_ago_ns, now_ns = time.time_ns() - seconds_to_ns(7_200), time.time_ns()
    new = NewTables("orders", tables_at, orders_store, lease.generation, every_s=0.0)
    for end_ns in (long_ago_ns, now_ns, now_ns):
        new.request_new(end_ns, is_unchanged=True)
    assert looks == [long_ago_ns, now_ns]
    # In another schema they are, and so is after it.
    new.request_new(long_ago_ns)
    new.request_new(now_ns, is_unchanged=True)
    assert looks[2:] == [long_ago_ns, now_ns]
