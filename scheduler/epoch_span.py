"""The span of the next epoch, chosen from the records and durations of the last ones.

When a pipeline is far behind, few large epochs are better than many small ones, because each costs
Spark a job and the sink a commit. But a single epoch over days of records would show no progress
for hours, and would start again from its beginning after a crash.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median
from typing import Final

from slackwater.state.models import Epoch
from slackwater.timestamp import NANOSECONDS_PER_SECOND, ns_to_seconds, seconds_to_ns

# Used until an epoch has shown how dense the records are.
FIRST_NS: Final = seconds_to_ns(60)
# The next records may be denser than the last ones.
_GROWTH_MAX: Final = 4
_LEAST_NS: Final = NANOSECONDS_PER_SECOND
EPOCHS_CONSIDERED: Final = 8
# Of these, the densest decides how many records to expect.
_DENSITY_EPOCHS: Final = 5
# How far the cost is extrapolated where the target's time may be exceeded.
_BEYOND_MAX: Final = 2
# An outage makes an epoch longer and never shorter. So an epoch that took less time than a model
# says counts for more than one that took more: four outages in eight epochs are left out.
_FASTER_WEIGHT: Final = 1.5
# Lines whose mean distance differs by less fit equally well: times are not more exact than that.
_ERROR_TOLERANCE: Final = 0.02
# Shorter times are not told apart.
_SECONDS_LEAST: Final = 0.05
# Beyond this share of an epoch's time, the fixed cost can hardly be reduced by a longer span.
_FIXED_SHARE_LEAST: Final = 0.05


@dataclass(frozen=True, slots=True)
class SpanTarget:
    """The approximate upper limits of an epoch.

    Attributes:
        records: the number of data change records.
        seconds: the time from planning to commit.
    """

    records: int
    seconds: float


@dataclass(frozen=True, slots=True)
class EpochCost:
    """The time that an epoch takes, as a function of its span.

    Attributes:
        fixed_s: the part that does not depend on its span, in seconds.
        per_second: the seconds that each second of its span adds; at 1 or more the pipeline can't
            keep up with any span.
    """

    fixed_s: float
    per_second: float


def next_span_ns(epochs: Sequence[Epoch], target: SpanTarget, span_max_ns: int) -> int:
    """Return the longest time that the next epoch may cover, in nanoseconds.

    target.records and span_max_ns are always kept to, as far as the last epochs tell how dense the
    records are. target.seconds is exceeded where the fixed cost of an epoch leaves no other way to
    keep up: epochs that are too short for it fall behind without end.

    Args:
        epochs: the last epochs, the newest last; those that cover no time are ignored.
        target: the limits of the next epoch.
        span_max_ns: the upper bound of the result.
    """
    spanning = [epoch for epoch in epochs if epoch.end_ns > epoch.start_ns]
    if not spanning:
        return min(FIRST_NS, span_max_ns)
    # After live epochs of a second each, catching up starts with a minute again.
    bounds = [float(span_max_ns), float(max(FIRST_NS, _GROWTH_MAX * _span_ns(spanning[-1])))]
    density = _density(spanning)
    if density > 0:
        bounds.append(target.records / density * NANOSECONDS_PER_SECOND)
    bounds.append(_time_bound_s(spanning[-EPOCHS_CONSIDERED:], target) * NANOSECONDS_PER_SECOND)
    return max(min(_LEAST_NS, span_max_ns), int(min(bounds)))


def epoch_cost(epochs: Sequence[Epoch]) -> EpochCost:
    """Return the cost of an epoch that fits most of the given ones, leaving outliers out.

    The part that is not fixed is taken as proportional to the records or to the span, whichever
    explains the times better. If the epochs were all alike, all of the cost counts as proportional:
    the next epoch then shows whether that is so.

    Args:
        epochs: at least one; each covers some time.
    """
    by_span = _fit([(_span_s(epoch), epoch.seconds) for epoch in epochs])
    by_records = _fit([(float(epoch.records), epoch.seconds) for epoch in epochs])
    if by_span.error <= by_records.error:
        return EpochCost(by_span.fixed, by_span.slope)
    return EpochCost(by_records.fixed, by_records.slope * _density(epochs))


def _time_bound_s(epochs: Sequence[Epoch], target: SpanTarget) -> float:
    """Return the span up to which the time that an epoch takes is acceptable, in seconds."""
    cost = epoch_cost(epochs)
    bound_s = max(_within_target_s(cost, target.seconds), _keeps_up_s(cost, _pause_s(epochs)))
    longest_s = max(_span_s(epoch) for epoch in epochs)
    is_short = cost.fixed_s + cost.per_second * longest_s <= target.seconds / 2
    return bound_s if is_short else min(bound_s, _BEYOND_MAX * longest_s)


def _within_target_s(cost: EpochCost, target_s: float) -> float:
    """Return the span of an epoch that takes the target's time, in seconds."""
    left_s = max(0.0, target_s - cost.fixed_s)
    return left_s / cost.per_second if cost.per_second > 0 else math.inf


def _keeps_up_s(cost: EpochCost, pause_s: float) -> float:
    """Return the span that is needed to catch up, in seconds.

    An epoch of span s and the pause after it take F + p*s, which is less than s only if s is more
    than F / (1 - p). Twice that closes the lag at half of the greatest possible speed.

    Args:
        cost: of an epoch.
        pause_s: the time between the end of an epoch and the begin of the next one.
    """
    fixed_s = cost.fixed_s + pause_s
    if fixed_s <= 0:
        return 0.0
    catches_up_s = 2 * fixed_s / (1 - cost.per_second) if cost.per_second < 1 else math.inf
    variable_to_fixed = (1 - _FIXED_SHARE_LEAST) / _FIXED_SHARE_LEAST
    is_efficient_s = (
        variable_to_fixed * fixed_s / cost.per_second if cost.per_second > 0 else math.inf
    )
    return min(catches_up_s, is_efficient_s)


def _pause_s(epochs: Sequence[Epoch]) -> float:
    """Return the usual time between two epochs, in seconds: epoch.trigger may make them wait."""
    pauses_s = [
        ns_to_seconds(later.committed_at_ns - earlier.committed_at_ns) - later.seconds
        for earlier, later in pairwise(epochs)
        if later.start_ns == earlier.end_ns
    ]
    return max(0.0, median(pauses_s)) if pauses_s else 0.0


def _density(epochs: Sequence[Epoch]) -> float:
    """Return the records per second of the densest of the last epochs."""
    return max(epoch.records / _span_s(epoch) for epoch in epochs[-_DENSITY_EPOCHS:])


def _span_ns(epoch: Epoch) -> int:
    return epoch.end_ns - epoch.start_ns


def _span_s(epoch: Epoch) -> float:
    return ns_to_seconds(_span_ns(epoch))


@dataclass(frozen=True, slots=True)
class _Line:
    """A line fixed + slope * x through points, and how far the points are from it."""

    fixed: float
    slope: float
    error: float = 0.0


def _fit(points: Sequence[tuple[float, float]]) -> _Line:
    """Return the line with neither part negative that the points are nearest to.

    The distance is that of the logarithms: an outlier counts by its ratio, wherever it lies. Of
    lines that fit equally well it is the one with the least fixed part.
    """
    lines = []
    error_max = math.inf
    for line in _lines(points):
        error = _error(line, points, error_max)
        if error <= error_max:
            lines.append(_Line(line.fixed, line.slope, error))
            error_max = min(error_max, error + _ERROR_TOLERANCE * len(points))
    return min((line for line in lines if line.error <= error_max), key=lambda line: line.fixed)


def _lines(points: Sequence[tuple[float, float]]) -> Iterator[_Line]:
    """Yield the lines through two points, and through one with no slope or no fixed part."""
    for x, y in points:
        yield _Line(y, 0.0)
        if x > 0:
            yield _Line(0.0, y / x)
    for (x1, y1), (x2, y2) in combinations(points, 2):
        if x1 != x2:
            slope = (y2 - y1) / (x2 - x1)
            fixed = y1 - slope * x1
            if slope > 0 and fixed > 0:
                yield _Line(fixed, slope)


def _error(line: _Line, points: Sequence[tuple[float, float]], error_max: float) -> float:
    """Return how far the points are from a line, or only that it is more than some error."""
    total = 0.0
    for x, y in points:
        expected = max(_SECONDS_LEAST, line.fixed + line.slope * x)
        ratio = math.log(max(_SECONDS_LEAST, y) / expected)
        total += ratio if ratio > 0 else -ratio * _FASTER_WEIGHT
        if total > error_max:
            break
    return total
