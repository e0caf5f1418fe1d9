"""Decides how much time the next epoch covers, from the records and durations of the last ones.

When a pipeline is far behind, few large epochs are better than many small ones, because each costs
Spark a job and the sink a commit. But a single epoch over days of records would show no progress
for hours, and would start again from its beginning after a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slackwater.state.models import Epoch
from slackwater.timestamp import NANOSECONDS_PER_SECOND, seconds_to_ns

# Used until an epoch has shown how dense the records are.
FIRST_NS: Final = seconds_to_ns(60)
# The next records may be denser than the last ones.
_GROWTH_MAX: Final = 4
_LEAST_NS: Final = NANOSECONDS_PER_SECOND
EPOCHS_CONSIDERED: Final = 5


@dataclass(frozen=True, slots=True)
class SpanTarget:
    """The approximate upper limits of an epoch.

    Attributes:
        records: the number of data change records.
        seconds: the time from planning to commit.
    """

    records: int
    seconds: float


def next_span_ns(epochs: Sequence[Epoch], target: SpanTarget, span_max_ns: int) -> int:
    """Return the longest time that the next epoch may cover, in nanoseconds.

    Args:
        epochs: the last epochs, the newest last; those that cover no time are ignored.
        target: the limits of the next epoch.
        span_max_ns: the upper bound of the result.
    """
    spanning = [epoch for epoch in epochs if epoch.end_ns > epoch.start_ns]
    if not spanning:
        return min(FIRST_NS, span_max_ns)
    last_ns = spanning[-1].end_ns - spanning[-1].start_ns
    # After live epochs of a second each, catching up starts with a minute again.
    bounds = [float(span_max_ns), float(max(FIRST_NS, _GROWTH_MAX * last_ns))]
    for epoch in spanning:
        span_ns = epoch.end_ns - epoch.start_ns
        if epoch.records > 0:
            bounds.append(span_ns / epoch.records * target.records)
        if epoch.seconds > target.seconds:
            bounds.append(span_ns / epoch.seconds * target.seconds)
    return max(_LEAST_NS, int(min(bounds)))
