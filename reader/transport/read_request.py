"""The request of a read by keys, made of what a query's request says of session and time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud.spanner_v1.types import ExecuteSqlRequest, KeyRange, KeySet, ReadRequest


@dataclass(frozen=True, slots=True)
class KeySpan:
    """Keys that follow each other; a key is a list of values as Spanner's JSON has them.

    Attributes:
        after: the key behind which the span begins; None for the table's beginning.
        through: the key at which it ends, inclusive; None for the table's end.
        rows_max: it ends after so many rows; 0 for all.
    """

    after: Sequence[Any] | None = None
    through: Sequence[Any] | None = None
    rows_max: int = 0


def read_request(like: ExecuteSqlRequest, table: str, columns: Sequence[str], span: KeySpan) -> Any:
    """Return the protobuf message that reads rows of a table in its key's order.

    Args:
        like: has the session, the read timestamp and the options.
        table: its full name.
        columns: the names of the columns to read.
        span: the rows' keys.
    """
    request = ReadRequest(
        session=like.session,
        transaction=like.transaction,
        request_options=like.request_options,
        directed_read_options=like.directed_read_options,
        table=table,
        columns=columns,
        key_set=KeySet(ranges=[_key_range(span)]),
        limit=span.rows_max,
    )
    return ReadRequest.pb(request)


def _key_range(span: KeySpan) -> KeyRange:
    # Every key begins with an empty list: without a key the range has all rows on that side.
    end = list(span.through or ())
    if span.after is None:
        return KeyRange(start_closed=[], end_closed=end)
    return KeyRange(start_open=list(span.after), end_closed=end)
