"""The time by BigQuery's clock at which mirrors were as of a low watermark.

BigQuery reads a table as of a time of its own, not of Spanner's. So the row that each transaction
changes is looked at as of several times, until one transaction alone lies between two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

# A transaction that states a low watermark comes after it, by Google's clocks.
_BEFORE_US: Final = 60 * 1_000_000


@dataclass(frozen=True, slots=True)
class Mark:
    """The low watermark of a pipeline at a time; all times are in microseconds.

    Attributes:
        time_us: the time, by BigQuery's clock.
        low_watermark_us: 0 before the first.
        transactions: how many had changed the row.
    """

    time_us: int
    low_watermark_us: int = 0
    transactions: int = 0


def time_of(
    low_watermark_us: int, mark_at: Callable[[int], Mark], oldest_us: int, now_us: int
) -> int | None:
    """Return a time at which mirrors had all epochs up to a low watermark, and none after it.

    An epoch of many tables is several transactions, of which the last states its low watermark. So
    it is the first time at which that is stated: later ones may have a part of the next epoch.

    Args:
        low_watermark_us: an epoch's, which may have had no changes: then nothing states it.
        mark_at: returns what was stated at a time.
        oldest_us, now_us: the times between which one can look.

    Returns:
        None if it was before all of these.
    """
    latest = mark_at(now_us)
    if latest.low_watermark_us > low_watermark_us:
        before, at = _change(low_watermark_us, mark_at, oldest_us, latest)
        if before.low_watermark_us >= low_watermark_us:
            return None
        if at.low_watermark_us == low_watermark_us:
            return at.time_us
        latest = before
    is_gone = latest.time_us != now_us
    if not latest.low_watermark_us:
        # No epoch had changes. Those of later ones come after their low watermarks.
        first_us = _first_us(low_watermark_us, oldest_us, latest)
        return None if is_gone and first_us > low_watermark_us else first_us
    before, at = _change(latest.low_watermark_us, mark_at, oldest_us, latest)
    if before.low_watermark_us < latest.low_watermark_us:
        return at.time_us
    return None if is_gone else before.time_us


def _first_us(low_watermark_us: int, oldest_us: int, latest: Mark) -> int:
    """Return a time before a low watermark was stated, or the first at which one can look."""
    return min(max(oldest_us, low_watermark_us - _BEFORE_US), latest.time_us)


def _change(
    low_watermark_us: int, mark_at: Callable[[int], Mark], oldest_us: int, latest: Mark
) -> tuple[Mark, Mark]:
    """Return what was stated before and after the transaction that reached a low watermark.

    Args:
        low_watermark_us, mark_at, oldest_us: see time_of().
        latest: a mark that has reached it.

    Returns:
        The first has reached it, too, if that was before one can look.
    """
    before = mark_at(_first_us(low_watermark_us, oldest_us, latest))
    if before.low_watermark_us >= low_watermark_us:
        return before, latest
    # Fewer, if somebody has removed the row meanwhile.
    while (
        abs(latest.transactions - before.transactions) > 1 and latest.time_us - before.time_us > 1
    ):
        middle = mark_at((before.time_us + latest.time_us) // 2)
        if middle.low_watermark_us < low_watermark_us:
            before = middle
        else:
            latest = middle
    return before, latest
