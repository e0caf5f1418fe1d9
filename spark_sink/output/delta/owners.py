"""Who owns a Delta table, and for how long its latest version is the latest."""

from __future__ import annotations

import math
import time
from typing import Final

# In seconds: for so long nobody removes the version after the latest, whose number is free then.
CURRENT_S: Final = 30.0
# By two clocks: one goes back at times, and one may stop with its machine.
Moment = tuple[float, float]
NEVER: Final[Moment] = (-math.inf, -math.inf)


def now() -> Moment:
    """Return the time by both clocks, in seconds."""
    return time.monotonic(), time.time()


def is_long_ago(moment: Moment) -> bool:
    """Return whether versions after the one that was the latest may have been removed."""
    return any(at - then >= CURRENT_S for at, then in zip(now(), moment, strict=True))


def new_owner(former: int) -> int:
    """Return a number for an owner that no other has, and that is higher than a former one's."""
    return max(former + 1, time.time_ns() // 1_000)
