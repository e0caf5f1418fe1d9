"""How far ahead of Spanner's clock an epoch ends: by the time that its tasks take to begin.

From the choice of a low watermark until partition queries are opened, Spark logs the choice, plans
a job and starts its tasks. What is committed meanwhile would have to wait for the next epoch. So
the low watermark is chosen ahead of the clock, and a task opens its queries when it has passed:
each of them ends in the past, as if the choice had been made there.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Final

from slackwater.timestamp import NANOSECONDS_PER_SECOND, ns_to_seconds

# Also what a task can lose if its clock is not Spanner's.
LEAD_MAX_NS: Final = NANOSECONDS_PER_SECOND // 2
EPOCHS_CONSIDERED: Final = 5


def next_lead_ns(delays_ns: Sequence[int]) -> int:
    """The lead of the next epoch, in nanoseconds, at most LEAD_MAX_NS.

    Args:
        delays_ns: from the choice of a low watermark until the first task began, of the last
            epochs for which it is known.
    """
    return min(max(0, int(median(delays_ns))), LEAD_MAX_NS) if delays_ns else 0


def wait_until_past(watermark_ns: int) -> None:
    """Return when a low watermark has passed by this machine's clock, after LEAD_MAX_NS anyway.

    If this clock is ahead of Spanner's, a query waits for its end there.
    """
    give_up_ns = time.monotonic_ns() + LEAD_MAX_NS
    while (left_ns := watermark_ns - time.time_ns()) >= 0 and time.monotonic_ns() < give_up_ns:
        time.sleep(ns_to_seconds(min(left_ns, LEAD_MAX_NS)))
