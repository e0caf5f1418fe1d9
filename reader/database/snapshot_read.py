"""Reading a table as it stood at a time: the rows that were there before the first change.

Spanner writes a value in the same JSON in the answer to a query as in a data change record. So a
row becomes a mod without any conversion by type.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, Final

import orjson
import pyarrow as pa
from google.protobuf import json_format

from slackwater.reader.change_stream import Dialect
from slackwater.reader.database.watched_tables import Table
from slackwater.reader.decode.result_rows import ResultRows
from slackwater.reader.decode.snapshot_columns import (
    IN_COMMON,
    plain_column,
    plain_value,
    row_columns,
)
from slackwater.reader.records import ColumnType, DataChangeRecord, Mod
from slackwater.reader.transport.connection import Connection, PartitionedRead
from slackwater.reader.transport.grpc_errors import CALL_ERRORS, is_retryable, to_reader_error
from slackwater.reader.transport.quoting import identifier, table_identifier

_ATTEMPTS_MAX: Final = 5
_PAUSE_S: Final = 0.1
_PAUSE_S_MAX: Final = 5.0
_ROWS_A_BATCH: Final = 1_000
# Of messages.
_BYTES_A_BATCH: Final = 4 << 20


def snapshot(
    connection: Connection, dialect: Dialect, table: Table, at_ns: int
) -> Iterator[DataChangeRecord]:
    """Yield the rows of a table at a time, in the order of its key, each as a record of its own.

    The record is an INSERT at the time of the snapshot, with the whole row as new_values. It
    belongs to no transaction, so its server_transaction_id is empty.

    Args:
        connection: to the table's database.
        dialect: the database's.
        table: the table and the columns to read.
        at_ns: the read timestamp, nanoseconds; within the database's version retention period.

    Raises:
        ReaderError: Spanner's answer, after some attempts.
    """
    sql = f"{select(dialect, table)}{_order(dialect, table)}"
    done = failures = 0
    while True:
        seen = 0
        try:
            # Each row comes once, however often the read breaks: their order never changes.
            with closing(connection.read(sql, at_ns)) as call:
                for record in _records(call, table, at_ns):
                    seen += 1
                    if seen > done:
                        done, failures = seen, 0
                        yield record
        except CALL_ERRORS as error:
            failures += 1
            connection.forget_session_if_lost(error)
            if failures == _ATTEMPTS_MAX or connection.is_closed or not is_retryable(error):
                raise to_reader_error(error, connection.change_stream) from error
            time.sleep(min(_PAUSE_S_MAX, _PAUSE_S * 2**failures))
        else:
            return


def snapshot_part(
    connection: Connection,
    dialect: Dialect,
    table: Table,
    at_ns: int,
    *,
    read: PartitionedRead,
    token: bytes,
    data_boost: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one part of a partitioned read of a table, in no particular order.

    They are the first 13 columns of the output, with the values of the records of snapshot(). If it
    breaks, the caller must drop its rows and read the part again from its beginning.

    Args:
        connection: to the table's database.
        dialect: the database's.
        table: the same as when the read was divided.
        at_ns: the read timestamp, nanoseconds, of the partitioned read.
        read: the partitioned read.
        token: the part's.
        data_boost: read with Data Boost, which does not use the instance's compute.

    Raises:
        ReaderError: Spanner's answer.
    """
    sql = select(dialect, table)
    try:
        with closing(connection.read_part(sql, read, token, data_boost=data_boost)) as call:
            yield from _batches(call, table, at_ns)
    except CALL_ERRORS as error:
        raise to_reader_error(error, connection.change_stream) from error


def select(dialect: Dialect, table: Table) -> str:
    """Return the query of a table's rows; Spanner can divide it into parts."""
    columns = ", ".join(identifier(dialect, name) for name in table.columns)
    of_table = table_identifier(dialect, table.name)
    return f"SELECT {columns} FROM {of_table}"  # noqa: S608 - the names are quoted


def _order(dialect: Dialect, table: Table) -> str:
    names = ", ".join(identifier(dialect, name) for name in table.key)
    return f" ORDER BY {names}" if names else ""


def plain_values(values: Iterable[Any]) -> list[Any]:
    """Return the values of a row as JSON has them, from google.protobuf.Values."""
    return list(map(plain_value, values))


def _batches(call: Iterable[bytes], table: Table, at_ns: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the messages of a query, about a thousand at a time."""
    width = len(table.columns)
    rows = ResultRows(width)
    types: tuple[ColumnType, ...] = ()
    values: dict[str, list[Any]] = {name: [] for name in table.columns}
    first = count = size = 0

    def batch() -> pa.RecordBatch:
        return row_columns(values, table.key, types, table=table.name, at_ns=at_ns, first=first)

    for message in call:
        new = rows.feed_values(message)
        types = types or column_types(rows.metadata, table)
        # At once, so that the message's memory is free for the next one.
        for place, column in enumerate(values.values()):
            column += plain_column(new[place::width])
        count += len(new) // width
        size += len(message)
        if count >= _ROWS_A_BATCH or size >= _BYTES_A_BATCH:
            yield batch()
            first += count
            count = size = 0
            values = {name: [] for name in table.columns}
    if count:
        yield batch()


def _records(call: Iterable[bytes], table: Table, at_ns: int) -> Iterator[DataChangeRecord]:
    """Yield the rows in the messages of a query, as records."""
    rows = ResultRows(len(table.columns))
    columns: tuple[ColumnType, ...] = ()
    number = 0
    for message in call:
        complete = rows.feed(message)
        if not columns:
            columns = column_types(rows.metadata, table)
        for values in complete:
            row = dict(zip(table.columns, plain_values(values), strict=True))
            yield row_record(row, table, columns, at_ns, number)
            number += 1


def row_record(
    row: dict[str, Any], table: Table, columns: tuple[ColumnType, ...], at_ns: int, number: int
) -> DataChangeRecord:
    """Return a row as snapshot() yields it.

    Args:
        row: values as Spanner's JSON has them, by column.
        table: its table.
        columns: the columns' types.
        at_ns: the read timestamp, nanoseconds.
        number: of the row in its read.
    """
    keys = {name: row.pop(name) for name in table.key}
    mod = Mod(_json(keys), _json(row), "{}")
    return DataChangeRecord(
        commit_timestamp_ns=at_ns,
        record_sequence=f"{number:08d}",
        table_name=table.name,
        column_types=columns,
        mods=(mod,),
        **IN_COMMON,
    )


def column_types(metadata: Any, table: Table) -> tuple[ColumnType, ...]:
    """Return the types of a table's columns from the metadata of a read."""
    return tuple(
        ColumnType(field.name, _json(_type(field.type_)), field.name in table.key, position)
        for position, field in enumerate(metadata.row_type.fields, 1)
    )


def _type(spanner_type: Any) -> Any:
    """Return a type in the JSON of a data change record."""
    names = {"typeAnnotation": "type_annotation", "arrayElementType": "array_element_type"}
    as_json = json_format.MessageToDict(spanner_type)

    def renamed(kind: Any) -> Any:
        if not isinstance(kind, dict):
            return kind
        return {names.get(name, name): renamed(value) for name, value in sorted(kind.items())}

    return renamed(as_json)


def _json(value: Any) -> str:
    # The names of an object are in the order in which change records have them.
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
