"""Requests to read tables again, and their progress, on SQLite, on PostgreSQL and on Spanner."""

from dataclasses import replace

import pytest

from slackwater.state.errors import LeaseLostError
from slackwater.state.lease import acquire_lease, read_lease
from slackwater.state.rescan_models import OTHER_TABLE, REQUESTED, Rescan, RescanState
from slackwater.state.rescans import (
    read_seen_tables,
    record_rescan,
    record_seen_tables,
    request_rescans,
    rescans,
    stop_rescans,
)
from slackwater.state.store import Store

FIRST = Rescan("orders", "T", 1_000, "requested")
SECOND = Rescan("orders", "U", 2_000, "requested")


def own(store: Store) -> int:
    """Take the pipeline, and return the lease's generation."""
    lease = acquire_lease(store, "orders", "owner", read_lease(store, "orders"))
    assert lease is not None
    return lease.generation


def test_requests_are_recorded_replaced_and_stopped(store: Store) -> None:
    generation = own(store)
    assert rescans(store, "orders") == []
    request_rescans(store, [SECOND, FIRST])
    assert rescans(store, "orders") == [FIRST, SECOND]
    assert rescans(store, "other") == []
    further = replace(FIRST, after_key='["5"]', records=7, corrected=1, chunks=1, at_ns=3_000)
    assert record_rescan(store, further, generation=generation)
    assert stop_rescans(store, "orders", ["U", "V"]) == ["U"]
    assert rescans(store, "orders", [RescanState.RUNNING]) == [further]
    assert not record_rescan(store, replace(SECOND, chunks=1), generation=generation)
    newer = replace(FIRST, requested_at_ns=5_000)
    request_rescans(store, [newer])
    # The owner has not yet seen that the table is to be read from its beginning again.
    assert not record_rescan(store, further, generation=generation)
    assert rescans(store, "orders", [RescanState.RUNNING]) == [replace(newer, at_ns=3_000)]


def test_a_former_owner_records_nothing(store: Store) -> None:
    former = own(store)
    request_rescans(store, [FIRST])
    generation = own(store)
    with pytest.raises(LeaseLostError):
        record_rescan(store, replace(FIRST, chunks=9), generation=former)
    with pytest.raises(LeaseLostError):
        record_seen_tables(store, "orders", ["T"], [SECOND], generation=former)
    assert rescans(store, "orders") == [FIRST]
    assert read_seen_tables(store, "orders") is None
    record_seen_tables(store, "orders", [], [], generation=generation)
    assert read_seen_tables(store, "orders") == frozenset()
    record_seen_tables(store, "orders", ["T"], [], generation=generation)
    record_seen_tables(store, "orders", ["T", "U"], [SECOND], generation=generation)
    assert read_seen_tables(store, "orders") == frozenset({"T", "U"})
    assert rescans(store, "orders") == [FIRST, SECOND]


def test_a_table_that_lacks_rows_does_so_until_it_was_read_whoever_asks_or_stops(
    store: Store,
) -> None:
    generation = own(store)
    lacking = Rescan("orders", "T", 1_000, OTHER_TABLE)
    request_rescans(store, [lacking], generation=generation)
    request_rescans(store, [replace(lacking, requested_at_ns=2_000, reason=REQUESTED)])
    (asked,) = rescans(store, "orders")
    assert (asked.reason, asked.requested_at_ns) == (OTHER_TABLE, 2_000)
    assert stop_rescans(store, "orders", ["T"]) == ["T"]
    (stopped,) = rescans(store, "orders")
    assert stopped.lacks_rows
    again = replace(lacking, requested_at_ns=3_000, reason=REQUESTED)
    request_rescans(store, [again])
    (running,) = rescans(store, "orders")
    assert running.lacks_rows
    assert record_rescan(store, replace(running, state=RescanState.DONE), generation=generation)
    (done,) = rescans(store, "orders")
    assert not done.lacks_rows
    request_rescans(store, [replace(again, requested_at_ns=4_000)])
    assert rescans(store, "orders")[0].reason == REQUESTED
    with pytest.raises(LeaseLostError):
        request_rescans(store, [lacking], generation=generation - 1)
