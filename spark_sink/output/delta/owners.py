"""The owners of a Delta table, and the time for which its latest version stays the latest."""

import math
import time
from typing import Final

# In seconds: before, no process removes the version after the latest, which frees its number.
CURRENT_S: Final = 30.0
# By two clocks: one may go back, and one may stop with its machine.
Moment = tuple[float, float]
NEVER: Final[Moment] = (-math.inf, -math.inf)


def now() -> Moment:
    """Return the time by both clocks, in seconds."""
    return time.monotonic(), time.time()


def is_long_ago(moment: Moment) -> bool:
    """Return whether versions after the one that was the latest may have been removed."""
    return any(at - then >= CURRENT_S for at, then in zip(now(), moment, strict=True))


def new_owner(last: int) -> int:
    """Return a unique number for an owner, higher than the last one's."""
    return max(last + 1, time.time_ns() // 1_000)
