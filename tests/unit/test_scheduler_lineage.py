"""The lineage rules one by one; tests/simulation drives them together over random histories."""

from __future__ import annotations

from dataclasses import replace

from slackwater.scheduler.lineage import (
    is_finished,
    is_ready,
    lineage_at,
    orphans,
    prunable,
    query_start_ns,
    roots,
    unfinished,
)
from slackwater.state.models import Partition

START_NS = 10_500
RUNNING = Partition("running", 1_000)
OBSERVED = Partition("observed", 1_000, end_timestamp_ns=9_000)
FINISHED = Partition(
    "finished", 1_000, end_timestamp_ns=9_000, end_confirmed_in_epoch_ns=START_NS - 1_000
)


def test_an_end_counts_only_when_an_earlier_epoch_has_confirmed_it() -> None:
    assert is_finished(FINISHED, START_NS)
    assert not is_finished(RUNNING, START_NS)
    assert not is_finished(OBSERVED, START_NS)
    # The epoch that starts here may be replayed, and has to observe the end again.
    assert not is_finished(replace(FINISHED, end_confirmed_in_epoch_ns=START_NS), START_NS)


def test_an_end_after_the_watermark_does_not_count_yet() -> None:
    assert not is_finished(replace(FINISHED, end_timestamp_ns=START_NS + 500), START_NS)


def test_a_child_starts_when_each_parent_has_finished_in_this_plan_or_before() -> None:
    child = Partition("child", 9_000, frozenset({"finished", "observed"}))
    parents = {"finished": FINISHED, "observed": OBSERVED}
    assert not is_ready(child, set(), parents, START_NS)
    assert not is_ready(child, {"finished"}, parents, START_NS)
    assert is_ready(child, {"observed"}, parents, START_NS)
    assert not is_ready(child, {"finished"}, {}, START_NS), "a parent that is not recorded yet"


def test_roots_have_started_and_wait_for_no_parent() -> None:
    child = Partition("child", 9_000, frozenset({"finished"}))
    waiting = Partition("waiting", 9_000, frozenset({"finished", "running"}))
    later = Partition("later", START_NS + 500)
    lineage = [later, waiting, child, FINISHED, RUNNING]
    assert roots(lineage, START_NS) == [RUNNING, child]
    assert unfinished(lineage, START_NS) == [later, waiting, child, RUNNING]
    assert lineage_at(lineage, START_NS) == lineage
    assert lineage_at([RUNNING, FINISHED], START_NS) == [RUNNING]


def test_a_partition_whose_parent_was_never_announced_is_an_orphan_and_no_root() -> None:
    child = Partition("child", 9_000, frozenset({"nobody"}))
    assert orphans([child, RUNNING], START_NS) == [("child", "nobody")]
    assert roots([child], START_NS) == []


def test_a_query_starts_where_the_last_epoch_ended_but_not_after_the_partition_s_end() -> None:
    assert query_start_ns(RUNNING, START_NS) == START_NS
    assert query_start_ns(Partition("new", START_NS + 500), START_NS) == START_NS + 500
    assert query_start_ns(OBSERVED, START_NS) == 9_000


def test_a_finished_partition_is_pruned_when_no_child_waits_and_its_time_is_over() -> None:
    waiting = Partition("waiting", 9_000, frozenset({"finished", "running"}))
    assert prunable([FINISHED, RUNNING], START_NS, keep_ns=1_000) == ["finished"]
    assert prunable([FINISHED, RUNNING], START_NS, keep_ns=2_000) == []
    assert prunable([FINISHED, RUNNING, waiting], START_NS, keep_ns=0) == []
