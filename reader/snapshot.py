"""A table as it stood at a time: the rows that were there before the first change.

Spanner's JSON of a value is the same in a query's answer as in a data change record, so a row
becomes a mod without knowing its types.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import orjson
from google.protobuf import json_format

from reader.change_stream import Dialect
from reader.connection import Connection
from reader.decode import ResultRows
from reader.records import ColumnType, DataChangeRecord, Mod
from reader.status import CALL_ERRORS, is_retryable, to_reader_error
from reader.tables import Table

_ATTEMPTS_MAX: Final = 5
_PAUSE_S: Final = 0.1
_PAUSE_S_MAX: Final = 5.0
_QUOTES: Final = {Dialect.GOOGLE_STANDARD_SQL: "`", Dialect.POSTGRESQL: '"'}


def snapshot(
    connection: Connection, dialect: Dialect, table: Table, at_ns: int
) -> Iterator[DataChangeRecord]:
    """The rows of a table at a time, in the order of its key, each as a record of its own.

    A row of a snapshot belongs to no transaction: its server_transaction_id is empty. It is told as
    an INSERT at the time of the snapshot, with the whole row as new_values.

    Args:
        connection: to the table's database.
        dialect: the database's.
        table: which columns are read.
        at_ns: the read timestamp, nanoseconds; inside the database's version retention period.

    Raises:
        ReaderError: what Spanner failed with, after some tries.
    """
    for number, (columns, values) in enumerate(_rows(connection, dialect, table, at_ns)):
        row = dict(zip((column.name for column in columns), values, strict=True))
        keys = {name: row.pop(name) for name in table.key}
        yield DataChangeRecord(
            at_ns,
            "",
            f"{number:08d}",
            True,
            table.name,
            columns,
            (Mod(_json(keys), _json(row), "{}"),),
            "INSERT",
            "NEW_ROW",
            1,
            1,
            "",
            False,
        )


def _rows(
    connection: Connection, dialect: Dialect, table: Table, at_ns: int
) -> Iterator[tuple[tuple[ColumnType, ...], list[Any]]]:
    """The rows once each, however often the read breaks: their order is always the same."""
    sql = _select(dialect, table)
    done = failures = 0
    while True:
        rows = ResultRows(len(table.columns))
        columns: tuple[ColumnType, ...] = ()
        seen = 0
        call = connection.read(sql, at_ns)
        try:
            for message in call:
                found = rows.feed(message)
                if not columns and rows.metadata is not None:
                    columns = _column_types(rows.metadata, table)
                for values in found:
                    seen += 1
                    if seen > done:
                        done, failures = seen, 0
                        yield columns, [_plain(value) for value in values]
        except CALL_ERRORS as error:
            failures += 1
            connection.forget_session_if_lost(error)
            if failures == _ATTEMPTS_MAX or not is_retryable(error):
                raise to_reader_error(error, connection.change_stream) from error
            time.sleep(min(_PAUSE_S_MAX, _PAUSE_S * 2**failures))
        else:
            return
        finally:
            call.cancel()


def _select(dialect: Dialect, table: Table) -> str:
    quote = _QUOTES[dialect]

    def quoted(name: str) -> str:
        return ".".join(f"{quote}{part}{quote}" for part in name.split("."))

    columns = ", ".join(map(quoted, table.columns))
    order = ", ".join(map(quoted, table.key))
    # Names come from the information schema, and identifiers hold no quotation marks.
    return f"SELECT {columns} FROM {quoted(table.name)}" + (f" ORDER BY {order}" if order else "")  # noqa: S608


def _column_types(metadata: Any, table: Table) -> tuple[ColumnType, ...]:
    return tuple(
        ColumnType(field.name, _json(_type(field.type_)), field.name in table.key, position)
        for position, field in enumerate(metadata.row_type.fields, 1)
    )


def _type(of: Any) -> Any:
    """A type as a data change record writes it."""
    names = {"typeAnnotation": "type_annotation", "arrayElementType": "array_element_type"}
    found = json_format.MessageToDict(of)

    def renamed(kind: Any) -> Any:
        if not isinstance(kind, dict):
            return kind
        return {names.get(name, name): renamed(value) for name, value in sorted(kind.items())}

    return renamed(found)


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "list_value":
        return [_plain(item) for item in value.list_value.values]
    return None if kind == "null_value" else getattr(value, kind)


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
