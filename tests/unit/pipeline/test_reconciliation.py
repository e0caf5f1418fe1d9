"""Restored parts: the output ends up with each epoch once, or an operator is asked."""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.pipeline.reconciliation import CheckpointPosition as C
from slackwater.pipeline.reconciliation import OutputNs as O
from slackwater.pipeline.reconciliation import (
    Positions,
    Verdict,
    begun_epoch_ns,
    last_ns,
    reconcile,
    refusal,
    remakes_checkpoint,
    skip_from_ns,
)
from slackwater.pipeline.reconciliation import StorePosition as S

NOTHING = Positions(None, S(), O())


# An epoch (20, 30] follows one that ends at 20. Each row: checkpoint, store, output, verdict.
@pytest.mark.parametrize(
    ("checkpoint", "store", "output", "verdict"),
    [
        # A crash at each step of an epoch.
        (None, S(), O(), Verdict.NEW),
        (C(10, None), S(), O(), Verdict.GO_ON),
        (C(10, None), S(), O(10), Verdict.GO_ON),
        (C(10, 10), S(), O(10), Verdict.FIND_PARTITIONS),
        (C(20, 20), S(20), O(20), Verdict.GO_ON),
        (C(30, 20), S(20), O(20), Verdict.GO_ON),
        (C(30, 20), S(20), O(20, begun_ns=30), Verdict.GO_ON),
        (C(30, 20), S(20), O(30), Verdict.GO_ON),
        (C(30, 30), S(20), O(30), Verdict.FIND_PARTITIONS),
        (C(30, 30), S(30), O(30), Verdict.GO_ON),
        (C(30, 30), S(30), None, Verdict.GO_ON),
        # After an initial scan at 5.
        (None, S(scan_ns=5), O(5), Verdict.NEW),
        (C(5, None), S(scan_ns=5), O(5), Verdict.GO_ON),
        (C(10, 5), S(5, scan_ns=5), O(5), Verdict.GO_ON),
        # The store is behind, or lost.
        (C(30, 30), S(10), O(30), Verdict.FIND_PARTITIONS),
        (C(30, 30), S(), O(30), Verdict.FIND_PARTITIONS),
        (C(30, 20), S(), O(20), Verdict.FIND_PARTITIONS),
        (C(30, 30), S(10), None, Verdict.FIND_PARTITIONS),
        # The checkpoint is behind, missing or torn.
        (C(20, 20), S(30), O(30), Verdict.CHECKPOINT_BEHIND),
        (C(20, 10), S(30), O(30), Verdict.CHECKPOINT_BEHIND),
        (C(20, 10), S(20), O(10, begun_ns=30), Verdict.CHECKPOINT_BEHIND),
        (C(30, 10), S(20), O(20), Verdict.CHECKPOINT_BEHIND),
        (C(20, 20), S(30), None, Verdict.STORE_AHEAD),
        (C(20, 20, is_whole=False), S(20), O(20), Verdict.CHECKPOINT_TORN),
        (None, S(30), O(30), Verdict.CHECKPOINT_MISSING),
        (None, S(30), None, Verdict.CHECKPOINT_MISSING),
        (None, S(), O(30), Verdict.CHECKPOINT_MISSING),
        (None, S(scan_ns=5), O(30), Verdict.CHECKPOINT_MISSING),
        (None, S(), O(20, begun_ns=30), Verdict.CHECKPOINT_MISSING),
        (None, S(), O(has_rows=True), Verdict.SCAN_UNKNOWN),
        (None, S(scan_ns=5), O(has_rows=True), Verdict.NEW),
        # The output was emptied during or after an initial scan.
        (None, S(scan_ns=5), O(has_rows=False), Verdict.NEW),
        (None, S(scan_ns=5, scanned=9), O(has_rows=True), Verdict.NEW),
        (None, S(scan_ns=5, scanned=9), O(has_rows=False), Verdict.SCAN_LOST),
        (None, S(scan_ns=5, scanned=9), O(), Verdict.NEW),
        (None, S(scan_ns=5, scanned=9, is_scan_done=True), O(), Verdict.SCAN_LOST),
        (None, S(scan_ns=5, is_scan_done=True), O(5), Verdict.NEW),
        (None, S(5, scan_ns=5, is_scan_done=True), O(), Verdict.SCAN_LOST),
        (C(5, None), S(scan_ns=5, is_scan_done=True), O(), Verdict.SCAN_LOST),
        (C(10, 5), S(5, scan_ns=5, is_scan_done=True), O(), Verdict.OUTPUT_EMPTY),
        (C(30, None), S(30, scan_ns=5, is_scan_done=True), O(), Verdict.GO_ON),
        (None, S(scan_ns=5, is_scan_done=True), None, Verdict.NEW),
        # Only the checkpoint's commit of (20, 30] is missing: the replay finds the epoch there.
        (C(30, 20), S(30), O(30), Verdict.GO_ON),
        # Only its plan is missing: the next epoch has to end where that one does.
        (C(20, 20), S(20, plan_start_ns=20, plan_end_ns=30), O(20), Verdict.GO_ON),
        (C(20, 20), S(20), O(20, begun_ns=30), Verdict.GO_ON),
        # The output is behind, empty, or another's.
        (C(30, 30), S(30), O(20), Verdict.OUTPUT_BEHIND),
        (C(30, 30), S(30), O(), Verdict.OUTPUT_EMPTY),
        (C(30, 30), S(30), O(30, pipeline="users"), Verdict.OUTPUT_FOREIGN),
        (None, S(), O(30, pipeline="users"), Verdict.OUTPUT_FOREIGN),
        # Two of them are behind.
        (C(20, 20), S(10), O(30), Verdict.CHECKPOINT_BEHIND),
        (C(30, 30), S(10), O(20), Verdict.OUTPUT_BEHIND),
        (C(20, 20), S(30), O(20), Verdict.STORE_AHEAD),
        (C(20, 20), S(30), O(10), Verdict.OUTPUT_BEHIND),
        (C(10, 10), S(30), O(20), Verdict.CHECKPOINT_BEHIND),
    ],
)
def test_the_verdict_on_every_combination(
    checkpoint: C | None, store: S, output: O | None, verdict: Verdict
) -> None:
    assert reconcile("orders", Positions(checkpoint, store, output)) is verdict


@pytest.mark.parametrize("verdict", [verdict for verdict in Verdict if verdict.is_refused])
def test_each_refusal_says_what_to_do(verdict: Verdict) -> None:
    positions = Positions(C(30, 20), S(10), O(20, pipeline="users"))
    message, hint = refusal("orders", positions, verdict, "slackwater run -c orders.yaml")
    assert "orders" in message
    assert verdict.value in message
    assert hint
    if "{last}" in hint or "--from-watermark" in hint:
        assert "`slackwater run -c orders.yaml --from-watermark last`" in hint


@pytest.mark.parametrize("verdict", Verdict)
def test_only_an_expendable_checkpoint_is_made_again_and_only_if_the_output_has_an_end(
    verdict: Verdict,
) -> None:
    with_end, without = (Positions(None, S(30), output) for output in (O(30), O()))
    is_remade = remakes_checkpoint(with_end, verdict, is_expendable=True)
    assert is_remade == verdict.name.startswith("CHECKPOINT_")
    assert not remakes_checkpoint(with_end, verdict, is_expendable=False)
    assert not remakes_checkpoint(without, verdict, is_expendable=True)


def test_an_epoch_that_somebody_may_have_written_keeps_its_end() -> None:
    assert begun_epoch_ns(replace(NOTHING, output=O(20, begun_ns=30)), 20) == 30
    planned = S(20, plan_start_ns=20, plan_end_ns=30)
    assert begun_epoch_ns(replace(NOTHING, store=planned), 20) == 30
    assert begun_epoch_ns(replace(NOTHING, store=planned), 30) is None
    assert begun_epoch_ns(replace(NOTHING, store=planned), 10) is None
    assert begun_epoch_ns(NOTHING, None) is None


def test_records_are_skipped_after_the_last_epoch_committed_or_else_after_the_first_one() -> None:
    assert skip_from_ns(NOTHING) is None
    assert skip_from_ns(replace(NOTHING, checkpoint=C(10, None))) == 10
    assert skip_from_ns(replace(NOTHING, checkpoint=C(30, 20))) == 20


def test_the_output_knows_the_last_epoch_best() -> None:
    assert last_ns(NOTHING) is None
    assert last_ns(Positions(C(30, 30), S(40), O(20))) == 20
    assert last_ns(Positions(C(30, 20), S(10), O())) == 20
    assert last_ns(Positions(C(30, 20), S(40), None)) == 40


# A life of a pipeline, step by step. Its parts are immutable values, so that each can be restored.

Cut = tuple[int, int]
TABLES = 2


@dataclass(frozen=True)
class Disk:
    """The three durable parts.

    Attributes:
        offsets: the ends of the epochs that the checkpoint has as planned.
        commits: how many of them it has as committed.
        store: the metadata store's position.
        tables: the cuts in each table of the output, in the order of their commits.
        log: the output's watermark log.
    """

    offsets: tuple[int, ...] = ()
    commits: int = 0
    store: S = field(default_factory=S)
    tables: tuple[tuple[Cut, ...], ...] = ((),) * TABLES
    log: tuple[int, ...] = ()

    def positions(self, *, is_telling: bool) -> Positions:
        planned = self.offsets[-1:]
        committed = self.offsets[self.commits - 1] if self.commits else None
        highest = max((cut[1] for table in self.tables for cut in table), default=0)
        complete = self.log[-1] if self.log else None
        begun = highest if highest > (complete or 0) else None
        return Positions(
            C(planned[0], committed) if planned else None,
            self.store,
            O(complete, begun) if is_telling else None,
        )


def epoch_steps(disk: Disk, end: int) -> list[Disk]:
    """Return the disk after each durable step of the next epoch, as Spark and the daemon do them.

    The end counts only if the checkpoint has no epoch planned that it does not have as committed.
    """
    steps = []
    if len(disk.offsets) == disk.commits:
        disk = replace(disk, offsets=(*disk.offsets, end))
        steps.append(disk)
    end = disk.offsets[-1]
    start = disk.offsets[-2] if len(disk.offsets) > 1 else end
    committed = start if len(disk.offsets) > 1 else disk.store.committed_ns
    store = replace(disk.store, committed_ns=committed, plan_start_ns=start, plan_end_ns=end)
    disk = replace(disk, store=store)
    steps.append(disk)
    for index, table in enumerate(disk.tables):
        if start < end and not any(cut[1] == end for cut in table):
            written = (*table, (start, end))
            tables = (*disk.tables[:index], written, *disk.tables[index + 1 :])
            disk = replace(disk, tables=tables)
            steps.append(disk)
    if end not in disk.log:
        disk = replace(disk, log=(*disk.log, end))
        steps.append(disk)
    disk = replace(disk, commits=len(disk.offsets))
    steps.append(disk)
    disk = replace(disk, store=replace(disk.store, committed_ns=end))
    return [*steps, disk]


def next_end(disk: Disk, begun: int | None, clock: int) -> int:
    """Return the end that the planner chooses: an epoch that was begun comes first."""
    is_due = begun is not None and disk.offsets and disk.offsets[-1] < begun
    return begun if begun is not None and is_due else clock


def started(disk: Disk, *, is_telling: bool) -> tuple[list[Disk], int | None]:
    """Return the disk's states and the next end, the operator doing what a start says."""
    positions = disk.positions(is_telling=is_telling)
    verdict = reconcile("orders", positions)
    if not verdict.is_refused:
        start_ns = positions.checkpoint.planned_ns if positions.checkpoint else None
        return [disk], begun_epoch_ns(positions, start_ns)
    start = last_ns(positions)
    assert start is not None, verdict
    begun = begun_epoch_ns(positions, start)
    # What `--from-watermark last` does: a new checkpoint, whose first epoch has no records. The
    # process may die after each step.
    restarted = replace(disk, store=S(start))
    disk = replace(restarted, offsets=(), commits=0)
    return [restarted, disk, *epoch_steps(disk, start)], begun


def restored(disks: list[Disk], moments: dict[str, int]) -> Disk:
    """Return the last disk, with some parts as they were at earlier moments."""
    at = {part: disks[max(0, len(disks) - 1 - back)] for part, back in moments.items()}
    disk = disks[-1]
    if "checkpoint" in at:
        disk = replace(disk, offsets=at["checkpoint"].offsets, commits=at["checkpoint"].commits)
    if "store" in at:
        disk = replace(disk, store=at["store"].store)
    if "output" in at:
        disk = replace(disk, tables=at["output"].tables, log=at["output"].log)
    return disk


@given(data=st.data(), is_telling=st.booleans())
def test_whatever_is_restored_no_epoch_is_lost_and_none_is_written_twice(
    data: st.DataObject, *, is_telling: bool
) -> None:
    """With an output that can't tell, records may come twice, but only where that is said."""
    parts = ["checkpoint", "store", "output"] if is_telling else ["store"]
    disks = [Disk()]
    clock, begun = 1, None
    for _ in range(data.draw(st.integers(1, 8), label="lives")):
        for _ in range(data.draw(st.integers(1, 4), label="epochs")):
            clock += data.draw(st.integers(1, 9), label="span")
            disks += epoch_steps(disks[-1], next_end(disks[-1], begun, clock))
        died = data.draw(st.integers(0, 6), label="steps undone by a crash")
        disks = disks[: max(1, len(disks) - died)]
        moments = data.draw(
            st.dictionaries(st.sampled_from(parts), st.integers(0, 20)), label="restored"
        )
        disk = restored(disks, moments)
        positions = disk.positions(is_telling=is_telling)
        if reconcile("orders", positions) is Verdict.OUTPUT_EMPTY:
            # An operator's decision: what the output had is lost.
            break
        if disk.positions(is_telling=True) == NOTHING:
            disks, begun = [Disk()], None
            continue
        disks, begun = started(disk, is_telling=is_telling)
        clock = max(clock, begun or 0)
    for _ in range(3):
        clock += 1
        disks += epoch_steps(disks[-1], next_end(disks[-1], begun, clock))
    for table in disks[-1].tables:
        for (_, ended), (began, _) in pairwise(table):
            assert ended == began, disks[-1]
    firsts = {table[0][0] for table in disks[-1].tables if table}
    assert len(firsts) <= 1, disks[-1]
