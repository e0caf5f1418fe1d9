"""The request of a read by keys, made of what a query's request says of session and time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.cloud.spanner_v1.types import ExecuteSqlRequest, KeyRange, KeySet, ReadRequest


def read_request(
    like: ExecuteSqlRequest,
    table: str,
    columns: Sequence[str],
    key: Sequence[Any] | None,
    rows_max: int,
) -> Any:
    """Return the protobuf message that reads rows of a table in its key's order.

    Args:
        like: has the session, the read timestamp and the options.
        table: its full name.
        columns: the names of the columns to read.
        key: the primary key behind which to begin, its values as Spanner's JSON has them; None for
            the table's beginning.
        rows_max: how many rows to read at most.
    """
    # Every key begins with an empty list: the range goes on to the last row.
    behind = KeySet(all_=True) if key is None else KeySet(ranges=[_behind(key)])
    request = ReadRequest(
        session=like.session,
        transaction=like.transaction,
        request_options=like.request_options,
        directed_read_options=like.directed_read_options,
        table=table,
        columns=columns,
        key_set=behind,
        limit=rows_max,
    )
    return ReadRequest.pb(request)


def _behind(key: Sequence[Any]) -> KeyRange:
    return KeyRange(start_open=list(key), end_closed=[])
