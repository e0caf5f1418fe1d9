"""Reading a table piece by piece in its key's order, each piece as of its own time."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from slackwater.reader.database.snapshot_read import column_types, plain_values, row_record
from slackwater.reader.database.watched_tables import Table
from slackwater.reader.decode.result_rows import ResultRows
from slackwater.reader.records import ColumnType, DataChangeRecord
from slackwater.reader.transport.connection import Connection
from slackwater.reader.transport.grpc_errors import CALL_ERRORS, to_reader_error
from slackwater.reader.transport.read_request import KeySpan

# A read whose first rows take longer fails.
_FIRST_ANSWER_S_MAX: Final = 1.5
_WHOLE_S_MAX: Final = 30.0


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """The limits at which a piece ends, whichever comes first.

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
        types: the columns' types; empty without rows.
    """

    rows: Sequence[Mapping[str, Any]]
    last_key: tuple[Any, ...] | None
    types: tuple[ColumnType, ...] = ()

    def records(self, table: Table, at_ns: int) -> list[DataChangeRecord]:
        """Return the rows as records of a snapshot of the table at a time; see snapshot()."""
        return [
            row_record(dict(row), table, self.types, at_ns, number)
            for number, row in enumerate(self.rows)
        ]


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
        limits: of the piece.

    Raises:
        ReaderError: Spanner's answer; the read is not retried.
    """
    span = KeySpan(after, rows_max=limits.rows)
    rows, types, is_cut = _read(connection, table, span, at_ns, limits)
    if not is_cut and len(rows) < limits.rows:
        return KeyRangeRows(rows, None, types)
    return KeyRangeRows(rows, tuple(rows[-1][name] for name in table.key), types)


def read_whole_range(
    connection: Connection,
    table: Table,
    after: Sequence[Any] | None,
    through: tuple[Any, ...] | None,
    at_ns: int,
) -> KeyRangeRows:
    """Return all rows of a range that read_key_range() has returned before.

    Args:
        connection, table, after, at_ns: see read_key_range().
        through: the last_key of that range.

    Raises:
        ReaderError: Spanner's answer; the read is not retried.
    """
    rows, types, _ = _read(connection, table, KeySpan(after, through), at_ns, None)
    return KeyRangeRows(rows, through, types)


def _read(
    connection: Connection, table: Table, span: KeySpan, at_ns: int, limits: ReadLimits | None
) -> tuple[list[dict[str, Any]], tuple[ColumnType, ...], bool]:
    """Return rows, their types, and whether a limit was met before the span's end."""
    columns = tuple(table.columns)
    seconds_max = _WHOLE_S_MAX if limits is None else _FIRST_ANSWER_S_MAX + limits.seconds
    until_s = time.monotonic() + (_WHOLE_S_MAX if limits is None else limits.seconds)
    rows: list[dict[str, Any]] = []
    decoder, size = ResultRows(len(columns)), 0
    try:
        with closing(connection.read_keys(table.name, columns, span, at_ns, seconds_max)) as call:
            for message in call:
                size += len(message)
                rows += [
                    dict(zip(columns, plain_values(values), strict=True))
                    for values in decoder.feed(message)
                ]
                if limits and rows and (size >= limits.size or time.monotonic() >= until_s):
                    return rows, column_types(decoder.metadata, table), True
    except CALL_ERRORS as error:
        connection.forget_session_if_lost(error)
        raise to_reader_error(error, connection.change_stream) from error
    types = column_types(decoder.metadata, table) if rows else ()
    return rows, types, False
