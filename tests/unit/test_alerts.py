"""What a running pipeline is warned of: decisions without a clock or a store."""

from __future__ import annotations

from slackwater.pipeline.alerts import held_back_by
from slackwater.pipeline.catch_up import RETENTION_WARNING, retention_used
from slackwater.state.models import OpenQuery

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
