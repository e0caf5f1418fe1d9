"""The time at which mirrors in BigQuery were as of a low watermark, over random histories."""

import random
from dataclasses import dataclass

import pytest

from slackwater.spark_sink.tables.in_bigquery.marks import Mark, time_of

SECOND = 1_000_000


@dataclass
class History:
    """The transactions of a pipeline: what each left, and the epochs of the rows of two mirrors."""

    marks: list[Mark]
    rows: list[tuple[int, int]]
    ends: list[int]
    looks: int = 0

    def look(self, time_us: int) -> Mark:
        self.looks += 1
        place = self._place(time_us)
        mark = self.marks[place] if place >= 0 else Mark(0)
        return Mark(time_us, mark.low_watermark_us, mark.transactions)

    def _place(self, time_us: int) -> int:
        return sum(mark.time_us <= time_us for mark in self.marks) - 1

    def rows_at(self, time_us: int) -> tuple[int, int]:
        place = self._place(time_us)
        return self.rows[place] if place >= 0 else (0, 0)


def drawn(choose: random.Random) -> History:
    """Return a history of epochs: some have no changes, some are two transactions, some are late.

    One of several transactions is repeated, and changes nothing.
    """
    history = History([], [], [])
    now = 0
    end = 1_000 * SECOND
    for number in range(1, choose.randrange(2, 40)):
        end += choose.randrange(1, 90 * SECOND)
        history.ends.append(end)
        kind = choose.choice(["none", "one", "two", "repeated"])
        if kind == "none":
            continue
        now = max(now, end) + choose.randrange(1, 200 * SECOND)
        before, others = (
            (history.marks[-1], history.rows[-1]) if history.marks else (Mark(0), (0, 0))
        )
        stated, transactions = before.low_watermark_us, before.transactions
        if kind == "two":
            transactions += 1
            history.marks.append(Mark(now, stated, transactions))
            history.rows.append((number, others[1]))
            now += choose.randrange(1, 30 * SECOND)
        for _ in range(2 if kind == "repeated" else 1):
            transactions += 1
            history.marks.append(Mark(now, end, transactions))
            history.rows.append((number, number))
            now += choose.randrange(1, SECOND)
    return history


@pytest.mark.parametrize("seed", range(200))
def test_mirrors_have_at_that_time_what_the_last_epoch_with_changes_left(seed: int) -> None:
    choose = random.Random(seed)
    history = drawn(choose)
    last_us = history.marks[-1].time_us if history.marks else 0
    # The next epoch may be between its transactions.
    now_us = last_us + choose.randrange(0, 1_000 * SECOND)
    oldest_us = choose.choice([0, 0, choose.randrange(0, now_us + 1)])
    for end in history.ends:
        time_us = time_of(end, history.look, oldest_us, now_us)
        stated = max(
            (m.low_watermark_us for m in history.marks if m.low_watermark_us <= end), default=0
        )
        if time_us is None:
            reached = [m.time_us for m in history.marks if m.low_watermark_us == stated and stated]
            assert oldest_us >= min(reached, default=end)
            continue
        number = 1 + history.ends.index(stated) if stated else 0
        assert oldest_us <= time_us <= now_us
        assert history.rows_at(time_us) == (number, number)


def test_a_week_of_epochs_a_second_apart_takes_some_twenty_looks() -> None:
    ends = range(0, 604_800 * SECOND, SECOND)
    looks: list[int] = []

    def look(time_us: int) -> Mark:
        looks.append(time_us)
        reached = max(0, time_us // SECOND - 5)
        return Mark(time_us, reached * SECOND, reached)

    for end, most in ((ends[-10], 12), (ends[1_000], 22)):
        looks.clear()
        time_us = time_of(end, look, 0, ends[-1])
        assert len(looks) <= most
        assert time_us is not None
        assert look(time_us).low_watermark_us == end
