"""Whether a pipeline keeps up, how long it takes to catch up, and the levels of warning.

The same words and limits are used by status, page, log line, metrics and alerts. Rules only: the
epochs and the clock are the caller's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import Final

from slackwater.pipeline.condition import Condition, Level
from slackwater.state.models import Epoch
from slackwater.timestamp import NANOSECONDS_PER_SECOND, ns_to_seconds, seconds_to_ns

# The limits of SlackwaterLagging and SlackwaterRetention in deploy/prometheus/alerts.yaml.
LAG_WARNING_S: Final = 300.0
RETENTION_WARNING: Final = 0.5
EPOCHS_CONSIDERED: Final = 100
# The speed is measured over this time, or over the last few epochs if they took longer.
_MEASURED_NS: Final = seconds_to_ns(300)
_EPOCHS_MEASURED_MIN: Final = 4
# A live pipeline is behind by an epoch, and by another one while that is written.
_CYCLES_BEHIND: Final = 2.5
_BEHIND_S: Final = 10.0
_CYCLES_WITHOUT_EPOCH: Final = 5
_WITHOUT_EPOCH_S: Final = 30.0
# Speeds that differ from 1 by less are those of a pipeline that neither gains nor loses.
_GAIN_LEAST: Final = 0.02


class Pace(StrEnum):
    """The movement of a pipeline's low watermark, compared with the source's clock."""

    KEEPS_UP = "keeps up"
    CATCHES_UP = "catches up"
    HOLDS = "holds its distance"
    FALLS_BEHIND = "falls behind"
    STANDS_STILL = "stands still"
    HELD = "is held"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Whether a pipeline keeps up.

    Attributes:
        pace: of its low watermark.
        lag_s: its lag in seconds; None before the first epoch.
        speed: by how many seconds its low watermark moved in a second; None if not measured yet.
        caught_up_in_s: when it will have caught up; 0 if it has, None if it will not.
        lost_in_s: when it will have fallen out of the retention period; None if it will not.
        without_epoch_s: how long ago its last epoch was committed; None before the first.
        lag_level, retention_level, level: whether its lag, its share of the retention period, or
            all of this together is worrying.
        condition: its condition if it does not run; None if it runs.
    """

    pace: Pace
    lag_s: float | None = None
    speed: float | None = None
    caught_up_in_s: float | None = None
    lost_in_s: float | None = None
    without_epoch_s: float | None = None
    lag_level: Level = Level.OK
    retention_level: Level = Level.OK
    condition: Condition | None = None

    @property
    def level(self) -> Level:
        """The level of the whole."""
        if self.retention_level is not Level.OK:
            return self.retention_level
        if self.condition is not None and self.condition.level is not Level.OK:
            return self.condition.level
        is_slow = self.pace in (Pace.STANDS_STILL, Pace.FALLS_BEHIND)
        return Level.WARNING if is_slow else self.lag_level

    def text(self) -> str:
        """Return one line for people: its condition if it does not run, then its speed."""
        pace = self._pace_text()
        if self.condition is None:
            return pace[:1].upper() + pace[1:]
        return f"{self.condition.text}; {pace}" if pace else self.condition.text

    def _pace_text(self) -> str:
        if self.lag_s is None:
            return "" if self.condition else "no epoch has been committed yet"
        behind = f"behind by {readable_duration(self.lag_s)}"
        match self.pace:
            case Pace.KEEPS_UP:
                return f"keeps up: {behind}"
            case Pace.CATCHES_UP:
                return f"{behind}, caught up in about {readable_duration(self.caught_up_in_s or 0)}"
            case Pace.HOLDS:
                return f"{behind}, and not catching up"
            case Pace.FALLS_BEHIND:
                loss = readable_duration(60 * (1 - (self.speed or 0)))
                return f"{behind}, and falling behind by {loss} a minute{self._lost()}"
            case Pace.HELD:
                return f"{behind}{self._lost()}"
            case Pace.STANDS_STILL:
                without = readable_duration(self.without_epoch_s or 0)
                return f"{behind}: no epoch for {without}{self._lost()}"
            case _:
                return f"{behind}; its speed is not known yet"

    def _lost(self) -> str:
        if self.retention_level is Level.CRITICAL and self.lost_in_s == 0:
            return "; the next records are no longer kept"
        if self.lost_in_s is None or self.retention_level is Level.OK:
            return ""
        return f"; records are lost in about {readable_duration(self.lost_in_s)}"


def catch_up(
    epochs: Sequence[Epoch],
    *,
    lag_ns: int | None,
    now_ns: int,
    retention_ns: int | None,
    condition: Condition | None = None,
) -> CatchUp:
    """Return whether a pipeline keeps up.

    Args:
        epochs: its last ones, the newest last; EPOCHS_CONSIDERED are enough.
        lag_ns: how far its low watermark is behind the source's clock; None before the first epoch.
        now_ns: by the clock of the machine that commits the epochs.
        retention_ns: how long the change stream keeps records; None if that is not known.
        condition: its condition if it does not run; None if it runs.
    """
    if lag_ns is None:
        return CatchUp(Pace.UNKNOWN, condition=condition)
    lag_s = max(0.0, ns_to_seconds(lag_ns))
    without_s = ns_to_seconds(max(0, now_ns - epochs[-1].committed_at_ns)) if epochs else None
    cycle_s, speed = _cycle_s(epochs), _speed(epochs)
    is_held = condition is not None and condition.is_held
    pace = Pace.HELD if is_held else _pace(lag_s, without_s, cycle_s, speed)
    if pace in (Pace.STANDS_STILL, Pace.HELD):
        speed = 0.0
    gain = 0.0 if speed is None else speed - 1
    left_s = None if retention_ns is None else max(0.0, ns_to_seconds(retention_ns) - lag_s)
    is_losing = pace in (Pace.STANDS_STILL, Pace.HELD, Pace.FALLS_BEHIND)
    caught_up_in_s = {Pace.KEEPS_UP: 0.0, Pace.CATCHES_UP: lag_s / max(gain, _GAIN_LEAST)}
    return CatchUp(
        pace,
        lag_s=lag_s,
        speed=speed,
        caught_up_in_s=caught_up_in_s.get(pace),
        lost_in_s=left_s / -gain if is_losing and left_s is not None else None,
        without_epoch_s=without_s,
        lag_level=Level.WARNING if lag_s > LAG_WARNING_S and not is_held else Level.OK,
        retention_level=_retention_level(lag_ns, retention_ns),
        condition=condition,
    )


def retention_used(low_watermark_ns: int, *, clock_ns: int, retention_ns: int) -> float:
    """Return the share of the retention period between the low watermark and now; 1 is its end."""
    return max(0, clock_ns - low_watermark_ns) / retention_ns


def readable_duration(seconds: float) -> str:
    """Return a duration in a readable unit, such as 4 s, 12 min, 2.5 h or 3.1 days."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3_600:
        return f"{seconds / 3_600:.1f} h"
    return f"{seconds / 86_400:.1f} days"


def _pace(
    lag_s: float, without_s: float | None, cycle_s: float | None, speed: float | None
) -> Pace:
    usual_s = cycle_s or 0.0
    silence_max_s = max(_WITHOUT_EPOCH_S, _CYCLES_WITHOUT_EPOCH * usual_s)
    if without_s is None or without_s > silence_max_s:
        return Pace.STANDS_STILL
    if lag_s <= max(_BEHIND_S, _CYCLES_BEHIND * usual_s):
        return Pace.KEEPS_UP
    if speed is None:
        return Pace.UNKNOWN
    if abs(speed - 1) < _GAIN_LEAST:
        return Pace.HOLDS
    return Pace.CATCHES_UP if speed > 1 else Pace.FALLS_BEHIND


def _cycle_s(epochs: Sequence[Epoch]) -> float | None:
    """Return the usual time from one commit to the next one, in seconds."""
    cycles_ns = [
        later.committed_at_ns - earlier.committed_at_ns for earlier, later in pairwise(epochs)
    ]
    return ns_to_seconds(int(median(cycles_ns))) if cycles_ns else None


def _speed(epochs: Sequence[Epoch]) -> float | None:
    """Return by how many seconds the low watermark moved in a second."""
    if len(epochs) < 2:
        return None
    last = epochs[-1]
    recent = [e for e in epochs if last.committed_at_ns - e.committed_at_ns <= _MEASURED_NS]
    first = (
        recent if len(recent) >= _EPOCHS_MEASURED_MIN else list(epochs)[-_EPOCHS_MEASURED_MIN:]
    )[0]
    took_ns = last.committed_at_ns - first.committed_at_ns
    if took_ns < NANOSECONDS_PER_SECOND // 10:
        return None
    return (last.end_ns - first.end_ns) / took_ns


def _retention_level(lag_ns: int, retention_ns: int | None) -> Level:
    if retention_ns is None:
        return Level.OK
    used = retention_used(0, clock_ns=lag_ns, retention_ns=retention_ns)
    return Level.CRITICAL if used > RETENTION_WARNING else Level.OK
