"""The lineage rules over random histories: every record once, children after all their parents.

No database, no Spark, no clock: the rules are driven as a plan drives them, partitions are read
in any order, attempts die and are replayed, and ends are shown late.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from slackwater.scheduler.lineage import is_ready, prunable, query_start_ns, roots, states
from slackwater.state.models import Partition
from tests.simulation.history import STEP_NS, History, histories


@dataclass
class Reading:
    """What one attempt at an epoch did, in order."""

    order: list[str]
    delivered: list[tuple[str, int]]
    ended: set[str]


class Ledger:
    """The facts that outlive an attempt, as the metadata store keeps them."""

    def __init__(self, history: History, watermark_ns: int) -> None:
        self.partitions = {
            life.token: Partition(life.token, watermark_ns)
            for life in history.alive_at(watermark_ns)
        }

    def known(self) -> list[Partition]:
        return list(self.partitions.values())

    def forget(self, tokens: list[str]) -> None:
        for token in tokens:
            del self.partitions[token]
        for token, p in self.partitions.items():
            self.partitions[token] = replace(p, parents=p.parents - set(tokens))

    def finish(self, token: str, end_ns: int) -> None:
        known = self.partitions[token]
        assert known.end_timestamp_ns in (None, end_ns)
        self.partitions[token] = replace(known, end_timestamp_ns=end_ns)

    def settle(self, tokens: set[str], found_ns: int) -> None:
        for token in tokens:
            if self.partitions[token].end_confirmed_in_epoch_ns is None:
                self.partitions[token] = replace(
                    self.partitions[token], end_confirmed_in_epoch_ns=found_ns
                )


def attempt(
    history: History,
    ledger: Ledger,
    cut: tuple[int, int],
    draw: st.DataObject,
    *,
    steps_max: int,
    hidden: set[str],
) -> Reading | None:
    """Run one plan; None where it died after steps_max partitions."""
    start_ns, end_ns = cut
    ready = [(p.token, query_start_ns(p, start_ns)) for p in roots(ledger.known(), start_ns)]
    finished_parents: dict[str, set[str]] = {}
    claimed: set[str] = set()
    reading = Reading([], [], set())
    while ready:
        if len(reading.order) == steps_max:
            return None
        token, from_ns = ready.pop(draw.draw(st.integers(0, len(ready) - 1)))
        life = history.lives[token]
        reading.order.append(token)
        reading.delivered += [(token, t) for t in life.record_times(from_ns, end_ns)]
        shown_late = life.end_ns is not None and life.end_ns <= start_ns
        if life.end_ns is None or life.end_ns > end_ns or (token in hidden and not shown_late):
            continue
        children = [Partition(c, life.end_ns, history.lives[c].parents) for c in life.children]
        for child in children:
            ledger.partitions.setdefault(child.token, child)
            finished_parents.setdefault(child.token, set()).add(token)
        ledger.finish(token, life.end_ns)
        reading.ended.add(token)
        for child in children:
            if child.token not in claimed and is_ready(
                child, finished_parents[child.token], ledger.partitions, start_ns
            ):
                claimed.add(child.token)
                ready.append((child.token, child.start_timestamp_ns))
    return reading


@given(histories(), st.data())
def test_every_record_is_delivered_once_and_children_come_after_all_parents(
    history: History, data: st.DataObject
) -> None:
    start_ns = data.draw(st.integers(1, history.end_ns // STEP_NS)) * STEP_NS - 500
    ledger = Ledger(history, start_ns)
    # Parents whose end a query with an end_timestamp does not show (apache/beam issue 40232).
    ended = [life.token for life in history.lives.values() if life.end_ns is not None]
    hidden = data.draw(st.sets(st.sampled_from(ended), max_size=2)) if ended else set()
    delivered: list[tuple[str, int]] = []
    order: list[str] = []
    watermark_ns = start_ns
    while watermark_ns < history.end_ns:
        end_ns = watermark_ns + data.draw(st.integers(1, 6)) * STEP_NS
        cut = (watermark_ns, end_ns)
        # Attempts that die, in the middle or just before the commit; what they recorded stays.
        for steps_max in data.draw(st.lists(st.integers(0, 6), max_size=2)):
            attempt(history, ledger, cut, data, steps_max=steps_max, hidden=hidden)
        reading = attempt(history, ledger, cut, data, steps_max=10**6, hidden=hidden)
        assert reading is not None
        if not hidden:
            assert all(watermark_ns < time <= end_ns for _, time in reading.delivered)
        assert len(set(reading.order)) == len(reading.order), "a partition was read twice"
        delivered += reading.delivered
        order += [token for token in reading.order if token not in order]
        ledger.settle(reading.ended, watermark_ns)
        watermark_ns = end_ns
        ledger.forget(prunable(ledger.known(), watermark_ns, keep_ns=0))
    # One more epoch brings what the last cut hid.
    final = attempt(
        history, ledger, (watermark_ns, watermark_ns + STEP_NS), data, steps_max=10**6, hidden=set()
    )
    assert final is not None
    delivered += final.delivered
    expected = [
        (life.token, time)
        for life in history.lives.values()
        for time in life.record_times(start_ns, watermark_ns + STEP_NS)
    ]
    assert sorted(delivered) == sorted(expected)
    position = {token: i for i, token in enumerate(order)}
    for token, at in position.items():
        for parent in history.lives[token].parents & position.keys():
            assert position[parent] < at


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
