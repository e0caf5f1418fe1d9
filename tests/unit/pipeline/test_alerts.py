"""What a running pipeline is warned of: decisions without a clock or a store."""

import time
from collections.abc import Callable

import pytest
import structlog

from slackwater.pipeline.alerts import Alerts, Reminder, held_back_by
from slackwater.pipeline.catch_up import RETENTION_WARNING, retention_used
from slackwater.state.models import OpenQuery, Plan
from slackwater.state.open_queries import report_queries
from slackwater.state.plans import begin_plan
from slackwater.state.store import Store

DAY_NS = 86_400 * 10**9


def test_the_partition_furthest_behind_holds_the_low_watermark_back() -> None:
    near = OpenQuery("near", 90, 60_000, 50_000, 3)
    far = OpenQuery("far", 10, 6_000, 100, 0)
    assert held_back_by([near, far]) == far
    silent = OpenQuery("silent", 10, 6_000, 5_900, 1)
    assert held_back_by([far, silent]) == silent


def test_a_query_that_has_just_begun_holds_nothing_back() -> None:
    assert held_back_by([OpenQuery("new", 10, 900, 900, 0)]) is None
    assert held_back_by([]) is None


def test_the_share_of_the_retention_that_is_used_warns_early() -> None:
    used = retention_used(DAY_NS, clock_ns=DAY_NS + DAY_NS // 2, retention_ns=DAY_NS)
    assert used == 0.5
    assert used >= RETENTION_WARNING
    assert retention_used(2 * DAY_NS, clock_ns=DAY_NS, retention_ns=DAY_NS) == 0
    assert retention_used(0, clock_ns=3 * DAY_NS, retention_ns=DAY_NS) == 3


def said_in(hours: float, is_so: Callable[[float], bool]) -> list[float]:
    """When something is said that is looked at every two seconds."""
    reminder = Reminder()
    looks_s = [2.0 * number for number in range(round(hours * 1_800))]
    return [now_s for now_s in looks_s if is_so(now_s) and reminder.is_due(now_s)]


def test_what_goes_on_for_an_hour_is_said_a_few_times() -> None:
    assert said_in(1, lambda _: True) == [0, 60, 180, 420, 900, 1_800, 2_700]


def test_what_comes_and_goes_with_each_epoch_goes_on() -> None:
    assert len(said_in(1, lambda now_s: now_s % 40 > 15)) < 10


def test_what_comes_back_is_said_at_once() -> None:
    assert said_in(1, lambda now_s: not 100 < now_s < 1_000) == [
        0,
        60,
        1_000,
        1_060,
        1_180,
        1_420,
        1_900,
        2_800,
    ]


def test_five_stalled_partitions_are_a_few_lines_an_hour(
    orders_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_plan(orders_store, Plan("plan", "orders", 0, 10, None), tasks=1)
    alerts = Alerts(orders_store, "orders", lambda: 0, DAY_NS)
    now_s = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    with structlog.testing.capture_logs() as logs:
        for look in range(600):
            now_s += 6
            stalled = [OpenQuery(f"p{n}", (look * n) % 7, 90_000, 80_000, 2) for n in range(5)]
            report_queries(orders_store, "plan", 0, stalled)
            alerts.look_at_queries()
    assert 5 <= len(logs) < 10
    assert {entry["stalled_partitions"] for entry in logs} == {5}
    assert {entry["log_level"] for entry in logs} == {"warning"}
