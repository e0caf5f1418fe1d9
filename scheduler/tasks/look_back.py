"""The search for the records with which a partition ended, when no query has shown them.

A query whose end_timestamp is just after its partition's end may end without the records of that
end (apache/beam issue 40232), and Spanner refuses later starts. A query that starts before the
partition's end, and has no end_timestamp, returns them: it goes on to the partition's end.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from slackwater.reader.errors import StartOutsidePartitionError
from slackwater.timestamp import NANOSECONDS_PER_SECOND

Record = TypeVar("Record")

_FIRST_STEP_NS: Final = NANOSECONDS_PER_SECOND
_STEP_FACTOR: Final = 4
_STEPS_MAX: Final = 15
_PAUSE_S: Final = 0.2


def look_back(
    first_ns: int,
    start_ns: int,
    query: Callable[[int], list[Record]],
    shows_end: Callable[[list[Record]], bool],
    pause: Callable[[float], None],
) -> list[Record] | None:
    """Return the facts that a query from an earlier start shows, further back each time.

    Args:
        first_ns: the partition's own start, the earliest that there is.
        start_ns: the start behind the partition's end.
        query: reads from a start to the partition's end.
        shows_end: whether the end is among the records of a query.
        pause: sleeps for a number of seconds.

    Returns:
        None if none of them shows the end.

    Raises:
        ReaderError: a query failed; StartOutsidePartitionError only for the partition's own start.
    """
    step_ns = _FIRST_STEP_NS
    for _ in range(_STEPS_MAX):
        earlier_ns = max(first_ns, start_ns - step_ns)
        try:
            records = query(earlier_ns)
        except StartOutsidePartitionError:
            if earlier_ns == first_ns:
                raise
        else:
            if shows_end(records):
                return records
        if earlier_ns == first_ns:
            # There is no earlier start to try; the answer may differ in a moment.
            pause(_PAUSE_S)
        step_ns *= _STEP_FACTOR
    return None
