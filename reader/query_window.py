"""The time that one query may cover, with partition_mode MUTABLE_KEY_RANGE.

Such a query must have an end_timestamp. Newer releases of the emulator allow at most 30 minutes
after start_timestamp (its change_stream_query_validator.cc). apache/beam pull request 34967 says 30
minutes after the later of now and start_timestamp, which allows no less. A longer time is read by
several queries, one after the other.
"""

from typing import Final

from slackwater.timestamp import seconds_to_ns

# As in Debezium's connector and spanner-change-streams-tail.
QUERY_SPAN_MAX_NS: Final = seconds_to_ns(20 * 60)


def query_end_ns(start_ns: int, end_ns: int | None) -> int:
    """Return the end_timestamp of the next query of a partition that is to be read through end_ns.

    Args:
        start_ns: the query's start_timestamp, nanoseconds.
        end_ns: the time to read through, inclusive, nanoseconds; None to read until the reader has
            enough, or the partition ends.
    """
    window_ns = start_ns + QUERY_SPAN_MAX_NS
    return window_ns if end_ns is None else min(end_ns, window_ns)
