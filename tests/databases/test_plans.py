"""What plans leave in every store: the ends that they observed, claims, and failed audits."""

from slackwater.state.models import PartitionKey, Plan
from slackwater.state.plans import begin_plan, has_failed_audit, note_failed_audit
from slackwater.state.store import Store
from slackwater.state.transaction import Transaction

A, B, C = (PartitionKey("", token) for token in "abc")


def test_an_end_is_observed_by_a_task(store: Store) -> None:
    begin_plan(store, Plan("p1", "orders", 0, 7), tasks=2)
    store.run(lambda t: t.add_ends("p1", [A], 0))
    store.run(lambda t: t.add_ends("p1", [B], 1))
    assert store.run(lambda t: t.observed_ends("p1")) == {A: 0, B: 1}
    assert store.run(lambda t: t.observed_ends("p1", [B])) == {B: 1}


def test_a_partition_is_claimed_once_and_stays_its_claimers(store: Store) -> None:
    begin_plan(store, Plan("p1", "orders", 0, 7), tasks=1)
    store.run(lambda t: t.lock_announced("p1", [B, C]))
    assert store.run(lambda t: t.claims("p1")) == {}
    for task in (1, 2, 1):
        store.run(lambda t, task=task: t.claim("p1", [C], task))  # type: ignore[misc]
        assert store.run(lambda t: t.claims("p1", [B, C])) == {C: 1}
    assert store.run(lambda t: t.claims_of_task("p1", 1)) == {C}
    assert store.run(lambda t: t.claims_of_task("p1", 2)) == set()


def test_a_new_plan_starts_with_no_ends_and_claims(store: Store) -> None:
    def work(transaction: Transaction, plan_id: str) -> None:
        transaction.lock_announced(plan_id, [C])
        transaction.add_ends(plan_id, [A], 0)
        transaction.claim(plan_id, [C], 3)

    for plan in ("p1", "p2"):
        begin_plan(store, Plan(plan, "orders", 0, 7), tasks=1)
        assert store.run(lambda t, p=plan: t.observed_ends(p)) == {}  # type: ignore[misc]
        assert store.run(lambda t, p=plan: t.claims(p)) == {}  # type: ignore[misc]
        store.run(lambda t, p=plan: work(t, p))  # type: ignore[misc]


def test_a_failed_audit_is_noted_once(store: Store) -> None:
    plan = Plan("p1", "orders", 0, 7)
    for _ in range(2):
        note_failed_audit(store, plan)
        assert has_failed_audit(store, "orders", 0, 7)
        assert not has_failed_audit(store, "orders", 0, 8)
