"""How far mirrors were compared with their tables, on SQLite, on PostgreSQL and on Spanner."""

from collections.abc import Callable

import pytest

from slackwater.state.store import Store
from slackwater.state.verified_models import VerifiedTable
from slackwater.state.verified_tables import forget_all_but, record_verified, verified_tables
from tests.support.stores import STORES


@pytest.mark.parametrize("kind", STORES)
def test_rounds_are_recorded_and_forgotten(kind: str, new_store_url: Callable[[str], str]) -> None:
    store = Store.open(new_store_url(kind), migrate=True)
    assert verified_tables(store, "orders") == []
    begun = VerifiedTable("orders", "s.T")
    other = VerifiedTable("orders", "U", "[1]", 1_000, 20, 1, 2, 500)
    for verified in (other, begun, VerifiedTable("others", "V")):
        record_verified(store, verified)
    assert verified_tables(store, "orders") == [other, begun]
    further = begun.after_slice('["a"]', 100, 0, 2_000)
    record_verified(store, further)
    assert verified_tables(store, "orders") == [other, further]
    forget_all_but(store, "orders", ["s.T", "W"])
    assert verified_tables(store, "orders") == [further]
    assert [one.table for one in verified_tables(store, "others")] == ["V"]
    store.close()
