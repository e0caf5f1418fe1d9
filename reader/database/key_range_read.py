"""Reading a table piece by piece in its key's order, each piece as it stood at its own time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slackwater.reader.database.snapshot_read import plain_values
from slackwater.reader.database.watched_tables import Table
from slackwater.reader.decode.result_rows import ResultRows
from slackwater.reader.transport.connection import Connection
from slackwater.reader.transport.grpc_errors import CALL_ERRORS, to_reader_error

# A read whose first rows take longer fails.
_FIRST_ANSWER_S_MAX: Final = 1.5


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """After how much a piece ends: what comes first.

    Attributes:
        rows, size: rows, and bytes of the answer.
        seconds: of reading.
    """

    rows: int
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class KeyRangeRows:
    """All rows of a range of keys.

    Attributes:
        rows: their values as Spanner's JSON has them, by column, in the key's order.
        last_key: the key at which the range ends, inclusive; None if it goes on to the table's end.
    """

    rows: Sequence[Mapping[str, Any]]
    last_key: tuple[Any, ...] | None


def read_key_range(
    connection: Connection,
    table: Table,
    after: Sequence[Any] | None,
    at_ns: int,
    limits: ReadLimits,
) -> KeyRangeRows:
    """Return the rows behind a key, as many as the limits allow, but at least one.

    Args:
        connection: to the table's database.
        table: the table and the columns to read.
        after: the key behind which the range begins; None for the table's beginning.
        at_ns: the read timestamp, nanoseconds; within the database's version retention period.
        limits: of what is read.

    Raises:
        ReaderError: Spanner's answer; it is not asked again.
    """
    columns = tuple(table.columns)
    until_s = time.monotonic() + limits.seconds
    rows: list[dict[str, Any]] = []
    decoder, size, is_cut = ResultRows(len(columns)), 0, False
    call = connection.read_after(
        table.name, columns, after, at_ns, limits.rows, _FIRST_ANSWER_S_MAX + limits.seconds
    )
    try:
        for message in call:
            size += len(message)
            rows += [
                dict(zip(columns, plain_values(values), strict=True))
                for values in decoder.feed(message)
            ]
            if rows and (size >= limits.size or time.monotonic() >= until_s):
                is_cut = True
                break
    except CALL_ERRORS as error:
        connection.forget_session_if_lost(error)
        raise to_reader_error(error, connection.change_stream) from error
    finally:
        call.cancel()
    if not is_cut and len(rows) < limits.rows:
        return KeyRangeRows(rows, None)
    return KeyRangeRows(rows, tuple(rows[-1][name] for name in table.key))
