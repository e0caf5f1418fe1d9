"""The cut of an epoch: pure arithmetic on low watermarks.

Commit timestamps are whole microseconds. A low watermark lies half a microsecond after one
(nanoseconds end in 500), so that no record can lie on a boundary, and it does not matter which
end of a query is inclusive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slackwater.state.models import Plan
from slackwater.timestamp import (
    HALF_MICROSECOND_NS,
    NANOSECONDS_PER_MICROSECOND,
    ceil_to_us,
    floor_to_us,
    us_to_ns,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Timestamps = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]


def watermark_before(time_ns: int) -> int:
    """Return the latest low watermark before a time, such as a reading of Spanner's clock."""
    return floor_to_us(time_ns - HALF_MICROSECOND_NS - 1) + HALF_MICROSECOND_NS


def watermark_for_start(start_ns: int) -> int:
    """Return the low watermark after which all records at or after a start_timestamp come."""
    return ceil_to_us(start_ns) - HALF_MICROSECOND_NS


def watermark_at_or_after(time_ns: int) -> int:
    """Return the earliest low watermark that does not lie before a time."""
    return watermark_before(time_ns) + NANOSECONDS_PER_MICROSECOND


def watermark_for_end(end_ns: int) -> int:
    """Return the low watermark up to which all records at or before an end_timestamp come."""
    return floor_to_us(end_ns) + HALF_MICROSECOND_NS


def is_watermark(time_ns: int) -> bool:
    """Return True for a time that a low watermark can have."""
    return time_ns - floor_to_us(time_ns) == HALF_MICROSECOND_NS


def next_watermark(
    *, clock_ns: int, lead_ns: int, base_ns: int | None, span_max_ns: int, end_ns: int | None
) -> int:
    """Return the low watermark at which the next epoch ends; it never goes back.

    Args:
        clock_ns: Spanner's clock by a strong read: all committed at or before it is visible.
        lead_ns: how far ahead of the clock it may lie, negative for behind it: see
            scheduler.epoch_lead.
        base_ns: the low watermark at which the epoch starts; None if it is not known, which
            leaves its span unbounded and allows no lead.
        span_max_ns: the longest span of an epoch.
        end_ns: the pipeline's last low watermark, None for none.
    """
    target = watermark_before(clock_ns if base_ns is None else clock_ns + lead_ns)
    if base_ns is not None:
        target = min(target, watermark_for_end(base_ns + span_max_ns))
    if end_ns is not None:
        target = min(target, end_ns)
    if base_ns is not None:
        target = max(target, base_ns)
    return target


@dataclass(frozen=True, slots=True)
class Cut:
    """The commit timestamps of an epoch: start_ns < commit_timestamp <= end_ns.

    Every question whether a record belongs to an epoch is answered here: for one timestamp, and for
    a column of them.
    """

    start_ns: int
    end_ns: int

    def contains(self, commit_ns: int) -> bool:
        """Return True for a commit timestamp of the epoch."""
        return not self.is_late(commit_ns) and not self.is_beyond(commit_ns)

    def is_late(self, commit_ns: int) -> bool:
        """Return True for a commit timestamp of an earlier epoch."""
        return commit_ns <= self.start_ns

    def is_beyond(self, commit_ns: int) -> bool:
        """Return True for a commit timestamp of a later epoch."""
        return commit_ns > self.end_ns

    def contains_each(self, commit_us: Timestamps) -> Flags:
        """Return contains() for each commit timestamp, in microseconds."""
        commit_ns = us_to_ns(commit_us)
        return (commit_ns > self.start_ns) & (commit_ns <= self.end_ns)

    def late_each(self, commit_us: Timestamps) -> Flags:
        """Return is_late() for each commit timestamp, in microseconds."""
        return us_to_ns(commit_us) <= self.start_ns


def cut_of(plan: Plan) -> Cut:
    """Return the cut of a plan's epoch."""
    return Cut(plan.start_ns, plan.end_ns)
