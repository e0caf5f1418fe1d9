"""How much time the next epoch shall cover: decided from what the last ones carried.

Far behind, few large epochs are better than many small ones, each of which costs Spark a job and
the sink a commit; but a single one over days of records would show no progress for hours, and start
anew from its beginning after a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slackwater.state.models import Epoch
from slackwater.timestamp import NANOSECONDS_PER_SECOND, seconds_to_ns

# As long as nothing is known of the density of the records.
FIRST_NS: Final = seconds_to_ns(60)
# What comes may be denser than what came.
_GROWTH_MAX: Final = 4
_LEAST_NS: Final = NANOSECONDS_PER_SECOND
EPOCHS_CONSIDERED: Final = 5


@dataclass(frozen=True, slots=True)
class SpanTarget:
    """What an epoch shall hold at most, about.

    Attributes:
        records: data change records.
        seconds: from planning to commit.
    """

    records: int
    seconds: float


def next_span_ns(epochs: Sequence[Epoch], target: SpanTarget, span_max_ns: int) -> int:
    """The longest time that the next epoch shall cover, in nanoseconds.

    Args:
        epochs: the last ones, the newest last; those that cover no time say nothing.
        target: for the next one.
        span_max_ns: never more than this.
    """
    spanning = [epoch for epoch in epochs if epoch.end_ns > epoch.start_ns]
    if not spanning:
        return min(FIRST_NS, span_max_ns)
    last_ns = spanning[-1].end_ns - spanning[-1].start_ns
    # After live epochs of a second each, catching up begins with a minute again.
    bounds = [float(span_max_ns), float(max(FIRST_NS, _GROWTH_MAX * last_ns))]
    for epoch in spanning:
        span_ns = epoch.end_ns - epoch.start_ns
        if epoch.records > 0:
            bounds.append(span_ns / epoch.records * target.records)
        if epoch.seconds > target.seconds:
            bounds.append(span_ns / epoch.seconds * target.seconds)
    return max(_LEAST_NS, int(min(bounds)))
