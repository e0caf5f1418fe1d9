"""What plans leave in every store: the ends that they showed, and their failed audits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from slackwater.state.models import Plan
from slackwater.state.plans import begin_plan, has_failed_audit, note_failed_audit
from slackwater.state.store import Store
from tests.stores import STORES


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, new_store_url: Callable[[str], str]) -> str:
    return new_store_url(request.param)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store.open(url, migrate=True)
    opened.ensure_pipeline("orders", "stream")
    yield opened
    opened.close()


def test_an_end_is_observed_with_and_without_children(store: Store) -> None:
    ends: dict[str, list[str]] = {"a": ["c"], "b": []}
    begin_plan(store, Plan("p1", "orders", 0, 7), tasks=1)
    for _ in range(2):
        store.run(lambda t: t.record_finished_parents("p1", ends, 0))
    assert store.run(lambda t: t.observed_ends("p1")) == {"a", "b"}
    assert store.run(lambda t: t.finished_parents("p1", ["c"])) == {"c": {"a": 0}}


def test_a_failed_audit_is_noted_once(store: Store) -> None:
    plan = Plan("p1", "orders", 0, 7)
    for _ in range(2):
        note_failed_audit(store, plan)
        assert has_failed_audit(store, "orders", 0, 7)
        assert not has_failed_audit(store, "orders", 0, 8)
