"""The lineage rules over random histories: every record once, children after all their parents.

No database, no Spark, no clock: the rules are driven as a plan drives them, with what the simulated
streams answer, in both partition modes. Partitions are read in any order, attempts die and are
replayed, what a partition's last query should show is shown late, and attempts that were given up
go on recording what was announced to them.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.errors import StartOutsidePartitionError
from slackwater.reader.partition_progress import record_time_ns
from slackwater.reader.query_outcome import end_of
from slackwater.reader.records import DataChangeRecord, PartitionEventRecord, PartitionRecord
from slackwater.scheduler.epoch import Cut
from slackwater.scheduler.lineage import (
    announced,
    delivered_cut,
    is_new,
    is_read_from_start,
    is_ready,
    prunable,
    query_start_ns,
    roots,
    starts_since_ns,
    states,
)
from slackwater.scheduler.moves import count_moves, describe_unmatched
from slackwater.state.confirmation import confirm
from slackwater.state.models import Partition, PartitionKey
from tests.simulation.history import STEP_NS, History, Life, histories
from tests.simulation.mutable_history import (
    PLACEMENTS,
    MutableHistory,
    MutableLife,
    random_mutable_history,
)
from tests.simulation.mutable_world import MutableStream
from tests.simulation.world import SimulatedStream

EPOCH_STEPS_MAX = 6
# Longer than an epoch, so that a start that was shown late is not taken for one long finished.
KEEP_NS = (EPOCH_STEPS_MAX + 1) * STEP_NS

Stream = SimulatedStream | MutableStream


def mutable_history_of(seed: int) -> MutableHistory:
    functions = PLACEMENTS if seed % 2 else ("",)
    return random_mutable_history(random.Random(seed), functions=functions)


MUTABLE_HISTORIES = st.integers(0, 2**32).map(mutable_history_of)
STREAMS = st.one_of(
    histories().map(lambda history: SimulatedStream(history, 0, 0, 0.0)),
    MUTABLE_HISTORIES.map(lambda history: MutableStream(history, 0, 0, 0.0)),
)


def lives_of(stream: Stream) -> dict[PartitionKey, Life | MutableLife]:
    if isinstance(stream, MutableStream):
        return dict(stream.history.lives)
    return {PartitionKey("", token): life for token, life in stream.history.lives.items()}


def as_announced(life: Life | MutableLife) -> Partition:
    if isinstance(life, Life):
        return Partition(life.token, life.start_ns, life.parents)
    return Partition(life.token, life.start_ns, function=life.function)


@dataclass
class Reading:
    """What one attempt at an epoch did.

    Attributes:
        claims: the keys of the partitions that it had to read from their starts.
        order: the keys of all partitions that it read, in order.
        delivered: the rows of its data change records, as the streams expect them.
        ended: the keys of the partitions whose ends it has observed.
    """

    claims: set[PartitionKey]
    order: list[PartitionKey] = field(default_factory=list)
    delivered: list[tuple[str, int, str]] = field(default_factory=list)
    events: list[PartitionEventRecord] = field(default_factory=list)
    ended: set[PartitionKey] = field(default_factory=set)


class Ledger:
    """The facts that outlive an attempt, as the metadata store keeps them."""

    def __init__(self, alive: Sequence[Partition], watermark_ns: int, keep_ns: int) -> None:
        self.partitions = {partition.key: partition for partition in alive}
        self.keep_ns = keep_ns
        self._pipeline_start_ns = watermark_ns

    def since_ns(self, watermark_ns: int) -> int:
        return starts_since_ns(self._pipeline_start_ns, watermark_ns, keep_ns=self.keep_ns)

    def record(self, partition: Partition) -> None:
        self.partitions.setdefault(partition.key, partition)

    def record_end(self, key: PartitionKey, end_ns: int) -> None:
        partition = self.partitions[key]
        assert partition.end_timestamp_ns in (None, end_ns)
        self.partitions[key] = replace(partition, end_timestamp_ns=end_ns)

    def commit(self, reading: Reading, cut: Cut) -> None:
        for of_fact, keys in confirm(reading.claims, reading.ended):
            for key in keys:
                if getattr(self.partitions[key], of_fact) is None:
                    values: dict[str, Any] = {of_fact: cut.start_ns}
                    self.partitions[key] = replace(self.partitions[key], **values)
        gone = prunable(list(self.partitions.values()), cut.end_ns, keep_ns=self.keep_ns)
        for key in gone:
            del self.partitions[key]
        tokens = {key.token for key in gone}
        for key, partition in self.partitions.items():
            self.partitions[key] = replace(partition, parents=partition.parents - tokens)


class Attempt:
    """One attempt at an epoch.

    Args:
        hidden: partitions whose first query through their end shows neither their end nor the other
            records at that time, except data (as in apache/beam issue 40232).
        recorded_by_others: partitions that an attempt that was given up records meanwhile.
    """

    def __init__(
        self,
        stream: Stream,
        ledger: Ledger,
        cut: Cut,
        hidden: frozenset[PartitionKey] = frozenset(),
        recorded_by_others: frozenset[PartitionKey] = frozenset(),
    ) -> None:
        self._stream = stream
        self._lives = lives_of(stream)
        self._ledger = ledger
        self._cut = cut
        self._hidden = hidden
        self._recorded_by_others = recorded_by_others

    def run(self, choose: random.Random, steps_max: int = 10**6) -> Reading | None:
        """Read everything; None if it died after steps_max partitions.

        It dies in the worst place: an end is recorded, and the partitions announced beside it are
        not.
        """
        ready = roots(list(self._ledger.partitions.values()), self._cut)
        start_ns = self._cut.start_ns
        reading = Reading({p.key for p in ready if not is_read_from_start(p, start_ns)})
        for key in sorted(self._recorded_by_others):
            self._ledger.record(as_announced(self._lives[key]))
        while ready:
            partition = ready.pop(choose.randrange(len(ready)))
            records = self._read(partition, reading)
            if (end_ns := end_of(records)) is not None:
                self._ledger.record_end(partition.key, end_ns)
                reading.ended.add(partition.key)
            if len(reading.order) == steps_max:
                return None
            reading.order.append(partition.key)
            ready += self._claim(announced(records, partition.function), reading)
        assert len(set(reading.order)) == len(reading.order), "a partition was read twice"
        return reading

    def _read(self, partition: Partition, reading: Reading) -> list[PartitionRecord]:
        """Read a partition through the epoch; return what is said of partitions."""
        cut, key = self._cut, partition.key
        try:
            records = self._records(partition, query_start_ns(partition, cut.start_ns))
        except StartOutsidePartitionError:
            # It is read again from an earlier start, for all but the data.
            records = self._records(partition, partition.start_timestamp_ns)
        else:
            wanted = delivered_cut(partition, cut)
            reading.delivered += [
                (partition.token, record.commit_timestamp_ns, record.record_sequence)
                for record in records
                if isinstance(record, DataChangeRecord)
                and wanted.contains(record.commit_timestamp_ns)
            ]
        end_ns = self._lives[key].end_ns
        is_hidden = key in self._hidden and end_ns is not None and cut.contains(end_ns)
        shown = [
            record
            for record in records
            if isinstance(record, PartitionRecord)
            and not (is_hidden and end_ns is not None and record_time_ns(record) >= end_ns)
        ]
        reading.events += [r for r in shown if isinstance(r, PartitionEventRecord)]
        return shown

    def _records(self, partition: Partition, start_ns: int) -> Sequence[object]:
        return self._stream.records(partition.token, start_ns, self._cut.end_ns, partition.function)

    def _claim(self, others: Sequence[Partition], reading: Reading) -> list[Partition]:
        start_ns, partitions = self._cut.start_ns, self._ledger.partitions
        new = [p for p in others if is_new(p, self._ledger.since_ns(start_ns))]
        for partition in new:
            self._ledger.record(partition)
        claims = [
            partitions[p.key]
            for p in new
            if p.key not in reading.claims and is_ready(p, reading.ended, partitions, start_ns)
        ]
        reading.claims.update(claim.key for claim in claims)
        return claims


def require_parents_first(stream: Stream, order: Sequence[PartitionKey]) -> None:
    position = {key: at for at, key in reversed(list(enumerate(order)))}
    for key, at in position.items():
        for parent in as_announced(lives_of(stream)[key]).parent_keys & position.keys():
            assert position[parent] < at


@given(STREAMS, st.integers(0, 2**32), st.booleans(), st.booleans())
def test_every_record_is_delivered_once_and_children_come_after_all_parents(
    stream: Stream, seed: int, hides: bool, others_record: bool
) -> None:
    choose = random.Random(seed)
    lives, end_ns = lives_of(stream), stream.history.end_ns
    start_ns = choose.randint(1, end_ns // STEP_NS) * STEP_NS - 500
    keep_ns = KEEP_NS if isinstance(stream, MutableStream) else choose.choice((0, KEEP_NS))
    ledger = Ledger(stream.partitions_alive(start_ns), start_ns, keep_ns)
    ending = sorted(key for key, life in lives.items() if life.end_ns is not None)

    def hidden() -> frozenset[PartitionKey]:
        """What is hidden from one attempt, and may be shown to the next."""
        return frozenset(choose.sample(ending, choose.randint(0, len(ending))) if hides else ())

    delivered: list[tuple[str, int, str]] = []
    order: list[PartitionKey] = []
    watermark_ns = start_ns
    while watermark_ns < end_ns:
        cut = Cut(watermark_ns, watermark_ns + choose.randint(1, EPOCH_STEPS_MAX) * STEP_NS)
        # Attempts that die, in the middle or just before the commit; what they recorded stays.
        for _ in range(choose.randint(0, 2)):
            Attempt(stream, ledger, cut, hidden()).run(choose, choose.randint(0, 6))
        others = [key for key, life in lives.items() if cut.contains(life.start_ns)]
        recorded = choose.sample(others, choose.randint(0, len(others))) if others_record else ()
        reading = Attempt(stream, ledger, cut, hidden(), frozenset(recorded)).run(choose)
        assert reading is not None
        if not hides:
            assert all(cut.contains(time_ns) for _, time_ns, _ in reading.delivered)
            assert count_moves(reading.events, cut) == ()
        delivered += reading.delivered
        order += reading.order
        ledger.commit(reading, cut)
        watermark_ns = cut.end_ns
    # One more epoch brings what the last cut hid.
    last = Cut(watermark_ns, watermark_ns + STEP_NS)
    final = Attempt(stream, ledger, last).run(choose)
    assert final is not None
    delivered += final.delivered
    assert sorted(delivered) == sorted(stream.expected(start_ns, last.end_ns))
    require_parents_first(stream, [*order, *final.order])


@given(MUTABLE_HISTORIES, st.integers(0, 2**32))
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


@given(histories(), st.integers(1, 60))
def test_a_partition_is_waiting_only_while_a_parent_is_unfinished(
    history: History, microseconds: int
) -> None:
    watermark_ns = microseconds * STEP_NS - 500
    partitions = [
        Partition(
            life.token,
            life.start_ns,
            life.parents,
            life.end_ns,
            None if life.end_ns is None else -1_000,
        )
        for life in history.lives.values()
    ]
    at = states(partitions, watermark_ns)
    alive = {life.token for life in history.alive_at(watermark_ns)}
    assert {token for token, state in at.items() if state == "running"} == alive
