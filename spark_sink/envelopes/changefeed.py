"""The common parts of the envelopes wrapped, row and key_only, as in CockroachDB's changefeeds.

Timestamps are nanoseconds since the Unix epoch, and behind the point a logical counter of ten
digits, which is always 0 here. In the envelopes row and key_only, everything that is not a column
stands under __crdb__, the name that their consumers know.
"""

from __future__ import annotations

from typing import Final

METADATA_KEY: Final = "__crdb__"


def decimal_timestamp(timestamp_ns: int) -> str:
    """Format a timestamp as CockroachDB writes it, and takes it as a cursor."""
    return f"{timestamp_ns}.0000000000"
