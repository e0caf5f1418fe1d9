"""The lead of an epoch's end over Spanner's clock: the time that its tasks take to begin.

After a low watermark is chosen, Spark logs it, plans a job and starts the job's tasks; only then
are partition queries opened. Records committed in between would have to wait for the next epoch. So
the low watermark is chosen ahead of the clock, and a task waits until it has passed before it opens
queries. Every query still ends in the past.
"""

import time
from collections.abc import Sequence
from statistics import median
from typing import Final

from slackwater.timestamp import NANOSECONDS_PER_SECOND, ms_to_ns, ns_to_seconds

# Also the longest time that a task can lose if its clock is behind Spanner's.
LEAD_MAX_NS: Final = NANOSECONDS_PER_SECOND // 2
EPOCHS_CONSIDERED: Final = 5


def next_lead_ns(delays_ns: Sequence[int]) -> int:
    """Return the lead of the next epoch, in nanoseconds, at most LEAD_MAX_NS.

    Args:
        delays_ns: the times from the choice of a low watermark until the first task began, for the
            last epochs for which they are known.
    """
    return min(max(0, int(median(delays_ns))), LEAD_MAX_NS) if delays_ns else 0


def behind_heartbeats_ns(heartbeat_ms: int) -> int:
    """Return the lead of an epoch with continuous reading: it lies behind the clock.

    At any time, partitions are complete through their last heartbeats. An epoch that ended later
    would wait for the next ones.
    """
    return -ms_to_ns(heartbeat_ms)


def wait_until_past(watermark_ns: int) -> None:
    """Wait until this machine's clock has passed a low watermark, for at most LEAD_MAX_NS.

    If this clock is ahead of Spanner's, the query itself waits at Spanner until its end has passed.
    """
    give_up_ns = time.monotonic_ns() + LEAD_MAX_NS
    while (left_ns := watermark_ns - time.time_ns()) >= 0 and time.monotonic_ns() < give_up_ns:
        time.sleep(ns_to_seconds(min(left_ns, LEAD_MAX_NS)))
