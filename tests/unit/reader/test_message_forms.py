"""Fields added, moved, renamed or left out, wrong values and broken bytes: right or refused.

`python -m tests.faults.messages` decodes tens of thousands of such messages.
"""

from collections import Counter

from tests.faults.messages import BY_COLUMN, run

SEEDS_IN_CI = 120


def test_a_message_is_decoded_right_or_refused_in_both_ways_and_dialects() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS_IN_CI):
        run(seed, seen)
    assert seen.total() > 500
    assert min(seen.values()) > 50
    assert BY_COLUMN["rows"] > 20
