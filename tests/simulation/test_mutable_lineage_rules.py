"""The rules for mutable key ranges over random histories: each record once, each move seen twice.

No database, no Spark, no clock: the rules are driven as a plan drives them. Partitions are read in
any order, attempts die and are replayed, what a partition's last query should show is shown late,
and attempts that were given up go on recording starts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.records import PartitionEventRecord, PartitionStartRecord
from slackwater.scheduler.epoch import Cut
from slackwater.scheduler.lineage import is_finished
from slackwater.scheduler.moves import count_moves, describe_unmatched
from slackwater.scheduler.mutable_lineage import (
    announced,
    claimable,
    confirm,
    delivered_cut,
    lost_functions,
    new_functions,
    prunable,
    query_start_ns,
    roots,
    starts_since_ns,
)
from slackwater.state.models import MoveCounts, MutablePartition, PartitionKey
from tests.simulation.mutable_history import (
    PLACEMENTS,
    STEP_NS,
    MutableHistory,
    MutableLife,
    random_mutable_history,
)

EPOCH_STEPS_MAX = 6
# Longer than an epoch, so that a start that was shown late is not taken for one long finished.
KEEP_NS = (EPOCH_STEPS_MAX + 1) * STEP_NS


def history_of(seed: int) -> MutableHistory:
    functions = PLACEMENTS if seed % 2 else ("",)
    return random_mutable_history(random.Random(seed), functions=functions)


HISTORIES = st.integers(0, 2**32).map(history_of)


@dataclass
class Reading:
    """What one attempt at an epoch did.

    Attributes:
        assigned: the keys of the partitions that it had to read.
        delivered: its data change records: key and time.
    """

    assigned: set[PartitionKey]
    delivered: list[tuple[int, int]] = field(default_factory=list)
    events: list[PartitionEventRecord] = field(default_factory=list)
    ended: set[PartitionKey] = field(default_factory=set)


class Ledger:
    """The facts that outlive an attempt, as the metadata store keeps them."""

    def __init__(self, alive: list[MutableLife], watermark_ns: int) -> None:
        self.pipeline_start_ns = watermark_ns
        self.partitions = {
            life.key: MutablePartition(life.token, watermark_ns, function=life.function)
            for life in alive
        }

    def record_start(self, key: PartitionKey, start_ns: int) -> None:
        partition = MutablePartition(key.token, start_ns, function=key.function)
        self.partitions.setdefault(key, partition)

    def record_end(self, key: PartitionKey, end_ns: int) -> None:
        partition = self.partitions[key]
        assert partition.end_timestamp_ns in (None, end_ns)
        self.partitions[key] = replace(partition, end_timestamp_ns=end_ns)

    def commit(self, reading: Reading, cut: Cut) -> None:
        read = [self.partitions[key] for key in reading.assigned]
        for partition in confirm(read, reading.ended, cut):
            self.partitions[partition.key] = partition
        for key in prunable(self.partitions.values(), cut.end_ns, keep_ns=KEEP_NS):
            del self.partitions[key]


class Attempt:
    """One attempt at an epoch.

    Args:
        hidden: partitions whose first query through their end shows neither their end record nor
            the other records at that time, except data (as in apache/beam issue 40232).
        recorded_by_others: partitions whose start an attempt that was given up records meanwhile.
    """

    def __init__(
        self,
        history: MutableHistory,
        ledger: Ledger,
        cut: Cut,
        hidden: frozenset[PartitionKey] = frozenset(),
        recorded_by_others: frozenset[PartitionKey] = frozenset(),
    ) -> None:
        self._history = history
        self._ledger = ledger
        self._cut = cut
        self._hidden = hidden
        self._recorded_by_others = recorded_by_others

    def run(self, choose: random.Random, steps_max: int = 10**6) -> Reading | None:
        """Read everything; None if it died after steps_max partitions.

        It dies in the worst place: an end is recorded, and the starts beside it are not.
        """
        ready = roots(self._ledger.partitions.values(), self._cut)
        reading = Reading({p.key for p in ready})
        for key in sorted(self._recorded_by_others):
            self._ledger.record_start(key, self._history.lives[key].start_ns)
        read: list[PartitionKey] = []
        while ready:
            partition = ready.pop(choose.randrange(len(ready)))
            from_ns, through_ns = self._read_changes(partition, reading)
            self._record_end(partition, through_ns, reading)
            if len(read) == steps_max:
                return None
            read.append(partition.key)
            ready += self._claim_starts(partition, (from_ns, through_ns), reading)
        assert len(set(read)) == len(read), "a partition was read twice"
        return reading

    def _read_changes(self, partition: MutablePartition, reading: Reading) -> tuple[int, int]:
        """Read a partition through the epoch; return from when to when its records are shown."""
        life, cut = self._history.lives[partition.key], self._cut
        from_ns, through_ns = query_start_ns(partition, cut.start_ns), cut.end_ns
        if life.end_ns is not None and from_ns > life.end_ns:
            # Refused: it is read again from an earlier start, for all but the data.
            from_ns = life.start_ns
        else:
            wanted = delivered_cut(partition, cut)
            changes = life.changes_in(from_ns, through_ns)
            reading.delivered += [change for change in changes if wanted.contains(change[1])]
        if life.key in self._hidden and life.end_ns is not None and cut.contains(life.end_ns):
            through_ns = life.end_ns - 1
        reading.events += [e for e in life.events if from_ns <= e.commit_timestamp_ns <= through_ns]
        return from_ns, through_ns

    def _record_end(self, partition: MutablePartition, through_ns: int, reading: Reading) -> None:
        end_ns = self._history.lives[partition.key].end_ns
        if end_ns is not None and end_ns <= through_ns:
            self._ledger.record_end(partition.key, end_ns)
            reading.ended.add(partition.key)

    def _claim_starts(
        self, partition: MutablePartition, shown: tuple[int, int], reading: Reading
    ) -> list[MutablePartition]:
        return [
            claim
            for start in self._history.lives[partition.key].starts
            if shown[0] <= start.start_timestamp_ns <= shown[1]
            for claim in self._claim(start, partition.function, reading)
        ]

    def _claim(
        self, start: PartitionStartRecord, function: str, reading: Reading
    ) -> list[MutablePartition]:
        since_ns = starts_since_ns(
            self._ledger.pipeline_start_ns, self._cut.start_ns, keep_ns=KEEP_NS
        )
        claims = claimable(
            announced(start, function, since_ns=since_ns),
            self._ledger.partitions,
            reading.assigned,
            self._cut.start_ns,
        )
        for claim in claims:
            self._ledger.record_start(claim.key, claim.start_timestamp_ns)
            reading.assigned.add(claim.key)
        return claims


@given(HISTORIES, st.integers(0, 2**32), st.booleans(), st.booleans())
def test_every_record_is_delivered_once(
    history: MutableHistory, seed: int, hides: bool, others_record: bool
) -> None:
    choose = random.Random(seed)
    start_ns = choose.randint(1, history.end_ns // STEP_NS) * STEP_NS - 500
    ledger = Ledger(history.alive_at(start_ns), start_ns)
    ending = sorted(key for key, life in history.lives.items() if life.end_ns is not None)

    def hidden() -> frozenset[PartitionKey]:
        """What is hidden from one attempt, and may be shown to the next."""
        return frozenset(choose.sample(ending, choose.randint(0, len(ending))) if hides else ())

    delivered: list[tuple[int, int]] = []
    watermark_ns = start_ns
    while watermark_ns < history.end_ns:
        cut = Cut(watermark_ns, watermark_ns + choose.randint(1, EPOCH_STEPS_MAX) * STEP_NS)
        # Attempts that die, in the middle or just before the commit; what they recorded stays.
        for _ in range(choose.randint(0, 2)):
            Attempt(history, ledger, cut, hidden()).run(choose, choose.randint(0, 6))
        others = [life.key for life in history.lives.values() if cut.contains(life.start_ns)]
        recorded = choose.sample(others, choose.randint(0, len(others))) if others_record else ()
        reading = Attempt(history, ledger, cut, hidden(), frozenset(recorded)).run(choose)
        assert reading is not None
        if not hides:
            assert all(cut.contains(time_ns) for _, time_ns in reading.delivered)
            assert count_moves(reading.events, cut) == ()
        delivered += reading.delivered
        ledger.commit(reading, cut)
        watermark_ns = cut.end_ns
    # One more epoch brings what the last cut hid.
    final = Attempt(history, ledger, Cut(watermark_ns, watermark_ns + STEP_NS)).run(choose)
    assert final is not None
    delivered += final.delivered
    expected = [
        change for life in history.lives.values() for change in life.changes if change[1] > start_ns
    ]
    assert sorted(delivered) == sorted(expected)


@given(HISTORIES, st.integers(0, 2**32))
def test_a_partition_that_was_not_read_shows_in_the_moves_of_the_others(
    history: MutableHistory, seed: int
) -> None:
    choose = random.Random(seed)
    missed = choose.choice(list(history.lives.values()))
    cut = Cut(-500, history.end_ns + 500)
    # Each partition's events in a task of its own.
    counts = [
        count
        for life in history.lives.values()
        for count in count_moves([event for event in life.events if life is not missed], cut)
    ]
    # Partitions of two placements may have one token. If one gets from another as much as it gives,
    # its event matches itself.
    is_seen = any(
        {*event.move_in_sources, *event.move_out_destinations} != {missed.token}
        or len(event.move_in_sources) != len(event.move_out_destinations)
        for event in missed.events
    )
    assert bool(describe_unmatched(counts)) == is_seen


def test_a_placement_that_was_added_or_dropped_is_known_by_its_partitions() -> None:
    recorded = [
        MutablePartition("a", 1_000, function="asia"),
        MutablePartition("a", 1_000, function="europe"),
        MutablePartition("b", 1_000, frozenset(), 2_000, 1_500, function="africa"),
    ]
    functions = ("asia", "europe")
    assert new_functions(recorded, functions) == []
    assert new_functions(recorded, (*functions, "default")) == ["default"]
    assert lost_functions(recorded, functions, 5_500) == [], "all of africa was read"
    assert lost_functions(recorded, ("asia", "default"), 5_500) == ["europe"]
    assert lost_functions(recorded, functions, 1_500) == ["africa"], "before its end counts"


CUT = Cut(9_500, 19_500)
SINCE_NS = 6_500


def test_a_partition_is_finished_only_by_a_confirmed_end_record() -> None:
    observed = MutablePartition("p", 1_000, end_timestamp_ns=9_000, start_confirmed_in_epoch_ns=500)
    assert not is_finished(observed, CUT.start_ns)
    assert roots([observed], CUT) == [observed]
    (confirmed,) = confirm([observed], {observed.key}, Cut(4_500, 9_500))
    assert is_finished(confirmed, CUT.start_ns)
    # The same epoch again, from a checkpoint: it has to observe the end as before.
    assert not is_finished(confirmed, 4_500)


def test_the_records_at_an_inclusive_end_are_not_delivered_again() -> None:
    ended = MutablePartition("p", 1_000, end_timestamp_ns=9_000, start_confirmed_in_epoch_ns=500)
    assert query_start_ns(ended, CUT.start_ns) == 9_000
    assert not delivered_cut(ended, CUT).contains(9_000)


def test_a_partition_that_no_epoch_has_read_is_read_from_its_start() -> None:
    unread = MutablePartition("p", 7_000)
    assert query_start_ns(unread, CUT.start_ns) == 7_000
    assert delivered_cut(unread, CUT).contains(7_000)
    (read,) = confirm([unread], set(), CUT)
    assert query_start_ns(read, CUT.end_ns) == CUT.end_ns
    assert query_start_ns(read, CUT.start_ns) == 7_000, "the same epoch again"


def test_a_partition_within_the_cut_that_is_recorded_is_read_without_its_start_record() -> None:
    recorded = MutablePartition("p", 12_000)
    assert roots([recorded, MutablePartition("later", 20_000)], CUT) == [recorded]


def test_a_partition_is_claimed_once_at_first_sight() -> None:
    start = announced(PartitionStartRecord(12_000, "1", ("a", "b", "a")), "", since_ns=SINCE_NS)
    claimed = PartitionKey("", "b")
    assert [c.token for c in claimable(start, {}, {claimed}, CUT.start_ns)] == ["a"]
    assert claimable(start, {}, {claimed, PartitionKey("", "a")}, CUT.start_ns) == []


def test_a_token_is_another_partition_under_another_function() -> None:
    start = announced(PartitionStartRecord(12_000, "1", ("a",)), "europe", since_ns=SINCE_NS)
    claims = claimable(start, {}, {PartitionKey("", "a")}, CUT.start_ns)
    assert [claim.key for claim in claims] == [PartitionKey("europe", "a")]


def test_a_partition_that_has_finished_is_not_claimed_when_it_is_announced_again() -> None:
    start = announced(PartitionStartRecord(8_000, "1", ("a",)), "", since_ns=SINCE_NS)
    finished = MutablePartition("a", 8_000, frozenset(), 9_000, 7_500, 7_500)
    assert claimable(start, {finished.key: finished}, (), CUT.start_ns) == []
    long_ago = PartitionStartRecord(SINCE_NS, "1", ("pruned",))
    assert announced(long_ago, "", since_ns=SINCE_NS) == []


def test_a_move_needs_both_sides_at_the_same_time() -> None:
    move_out = PartitionEventRecord(12_000, "1", "a", (), ("b",))
    move_in = PartitionEventRecord(12_000, "9", "b", ("a",), ())
    assert count_moves([move_out, move_in], CUT) == ()
    (seen_out,) = one_task = count_moves([move_out], CUT)
    other_task = count_moves([move_in], CUT)
    assert (seen_out.moves_out, seen_out.moves_in) == (1, 0)
    assert describe_unmatched([*one_task, *other_task]) == []
    elsewhere = count_moves([replace(move_in, move_in_sources=("c",))], CUT)
    (said,) = describe_unmatched([*one_task, *elsewhere])
    assert said.endswith("not every move was read from both sides: 1 out and 1 in")
    late = count_moves([replace(move_in, commit_timestamp_ns=13_000)], CUT)
    assert describe_unmatched([*one_task, *late])
    assert count_moves([replace(move_out, commit_timestamp_ns=9_000)], CUT) == ()


def test_the_digest_of_many_moves_fits_the_stores_column() -> None:
    events = [PartitionEventRecord(12_000, str(i), f"p{i}", (), ("b",)) for i in range(1_000)]
    (counts,) = count_moves(events, CUT)
    assert isinstance(counts, MoveCounts)
    assert 0 <= counts.digest < 2**63
