"""The lineage rules one by one; tests/simulation drives them together over random histories."""

from dataclasses import replace

from slackwater.reader.records import (
    ChildPartition,
    ChildPartitionsRecord,
    PartitionStartRecord,
)
from slackwater.scheduler.epoch import Cut
from slackwater.scheduler.lineage import (
    announced,
    delivered_cut,
    is_finished,
    is_new,
    is_ready,
    lineage_at,
    lost_functions,
    new_functions,
    orphans,
    prunable,
    query_start_ns,
    roots,
    unfinished,
)
from slackwater.state.confirmation import confirm
from slackwater.state.models import Partition, PartitionKey

START_NS = 10_500
AT_START = Cut(START_NS, START_NS)
RUNNING = Partition("running", 1_000, start_confirmed_in_epoch_ns=500)
OBSERVED = replace(RUNNING, token="observed", end_timestamp_ns=9_000)
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
    recorded = {p.key: p for p in (FINISHED, OBSERVED)}
    assert not is_ready(child, set(), recorded, START_NS)
    assert not is_ready(child, {FINISHED.key}, recorded, START_NS)
    assert is_ready(child, {OBSERVED.key}, recorded, START_NS)
    assert not is_ready(child, {FINISHED.key}, {}, START_NS), "a parent that is not recorded yet"


def test_a_record_returned_twice_announces_its_children_once() -> None:
    a, b = (ChildPartition(token, frozenset({"p", "q"})) for token in "ab")
    records = [ChildPartitionsRecord(7, "1", (b,)), ChildPartitionsRecord(7, "2", (a, b))]
    assert announced(records, "") == tuple(Partition(t, 7, frozenset({"p", "q"})) for t in "ab")


def test_roots_have_started_and_wait_for_no_parent() -> None:
    child = Partition("child", 9_000, frozenset({"finished"}))
    waiting = Partition("waiting", 9_000, frozenset({"finished", "running"}))
    later = Partition("later", START_NS + 500)
    lineage = [later, waiting, child, FINISHED, RUNNING]
    assert roots(lineage, AT_START) == [RUNNING, child]
    assert unfinished(lineage, START_NS) == [later, waiting, child, RUNNING]
    assert lineage_at(lineage, START_NS) == lineage
    assert lineage_at([RUNNING, FINISHED], START_NS) == [RUNNING]


def test_a_partition_whose_parent_was_never_announced_is_an_orphan_and_no_root() -> None:
    child = Partition("child", 9_000, frozenset({"nobody"}))
    assert orphans([child, RUNNING], START_NS) == [("child", "nobody")]
    assert roots([child], AT_START) == []


def test_a_query_starts_where_the_last_epoch_ended_but_not_after_the_partition_s_end() -> None:
    assert query_start_ns(RUNNING, START_NS) == START_NS
    assert query_start_ns(Partition("new", 9_000), START_NS) == 9_000
    assert query_start_ns(OBSERVED, START_NS) == 9_000


def test_a_finished_partition_is_pruned_when_no_child_waits_and_its_time_is_over() -> None:
    waiting = Partition("waiting", 9_000, frozenset({"finished", "running"}))
    assert prunable([FINISHED, RUNNING], START_NS, keep_ns=1_000) == [PartitionKey("", "finished")]
    assert prunable([FINISHED, RUNNING], START_NS, keep_ns=2_000) == []
    assert prunable([FINISHED, RUNNING, waiting], START_NS, keep_ns=0) == []


CUT = Cut(START_NS, START_NS + 10_000)


def test_a_commit_confirms_the_starts_that_were_claimed_and_the_ends_that_were_observed() -> None:
    partition = Partition("p", 7_000, end_timestamp_ns=9_000)
    facts = {of_fact for of_fact, keys in confirm({partition.key}, ()) if partition.key in keys}
    assert facts == {"start_confirmed_in_epoch_ns"}
    facts = {of_fact for of_fact, keys in confirm((), {partition.key}) if partition.key in keys}
    assert facts == {"end_confirmed_in_epoch_ns"}


def test_the_records_at_an_inclusive_end_are_not_delivered_again() -> None:
    assert query_start_ns(OBSERVED, START_NS) == 9_000
    assert not delivered_cut(OBSERVED, CUT).contains(9_000)


def test_a_partition_that_no_epoch_has_read_is_read_from_its_start() -> None:
    unread = Partition("p", 7_000)
    assert query_start_ns(unread, START_NS) == 7_000
    assert delivered_cut(unread, CUT).contains(7_000)
    read = replace(unread, start_confirmed_in_epoch_ns=START_NS)
    assert query_start_ns(read, CUT.end_ns) == CUT.end_ns
    assert query_start_ns(read, START_NS) == 7_000, "the same epoch again"


def test_a_partition_within_the_cut_that_is_recorded_is_read_without_its_start_record() -> None:
    recorded = Partition("p", START_NS + 1_500)
    assert roots([recorded, Partition("later", CUT.end_ns + 500)], CUT) == [recorded]


def test_a_partition_without_parents_is_read_at_first_sight_and_by_one_epoch() -> None:
    (new,) = announced([PartitionStartRecord(12_000, "1", ("p", "p"))], "europe")
    assert new == Partition("p", 12_000, function="europe")
    assert is_ready(new, set(), {}, START_NS)
    # The same token under another function is another partition.
    assert is_ready(new, set(), {PartitionKey("", "p"): RUNNING}, START_NS)
    read = replace(new, start_confirmed_in_epoch_ns=START_NS - 1_000)
    assert not is_ready(new, set(), {new.key: read}, START_NS)


def test_an_old_start_record_says_nothing_new_and_an_old_end_does() -> None:
    (long_ago,) = announced([PartitionStartRecord(6_500, "1", ("pruned",))], "")
    assert not is_new(long_ago, 6_500)
    assert is_new(long_ago, 6_499)
    assert is_new(Partition("child", 6_500, frozenset({"parent"})), 6_500)


def test_a_placement_that_was_added_or_dropped_is_known_by_its_partitions() -> None:
    recorded = [
        Partition("a", 1_000, function="asia"),
        Partition("a", 1_000, function="europe"),
        Partition("b", 1_000, frozenset(), 2_000, 1_500, function="africa"),
    ]
    functions = ("asia", "europe")
    assert new_functions(recorded, functions) == []
    assert new_functions(recorded, (*functions, "default")) == ["default"]
    assert lost_functions(recorded, functions, 5_500) == [], "all of africa was read"
    assert lost_functions(recorded, ("asia", "default"), 5_500) == ["europe"]
    assert lost_functions(recorded, functions, 1_500) == ["africa"], "before its end counts"
