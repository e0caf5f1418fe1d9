"""The database's tables as its information schema shows them: columns, types, primary keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reader.change_stream import Dialect
from reader.connection import Connection

_DEFAULT_SCHEMA: Final = {Dialect.GOOGLE_STANDARD_SQL: "", Dialect.POSTGRESQL: "public"}
_COLUMNS: Final = (
    "SELECT c.table_schema, c.table_name, c.column_name, c.spanner_type, k.ordinal_position"
    " FROM information_schema.columns c"
    " JOIN information_schema.tables t"
    " ON t.table_schema = c.table_schema AND t.table_name = c.table_name"
    " LEFT JOIN information_schema.index_columns k"
    " ON k.table_schema = c.table_schema AND k.table_name = c.table_name"
    " AND k.column_name = c.column_name AND k.index_type = 'PRIMARY_KEY'"
    " WHERE t.table_type = 'BASE TABLE'"
    " AND LOWER(c.table_schema) NOT IN ('information_schema', 'spanner_sys', 'pg_catalog')"
    " ORDER BY c.table_schema, c.table_name, c.ordinal_position"
)


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        name: as data change records name it: with its schema, unless that is the default one.
        columns: in the table's order, the type of each by its name, as the dialect spells it:
            STRING(MAX), character varying.
        key: the primary key's columns, in the key's order; a table may have none.
    """

    name: str
    columns: Mapping[str, str]
    key: tuple[str, ...]


def tables(connection: Connection, dialect: Dialect) -> list[Table]:
    """The tables of a database.

    Raises:
        ReaderError: as Connection.query().
    """
    found: dict[str, list[Sequence[str]]] = {}
    for schema, table, *column in connection.query(_COLUMNS):
        name = table if schema == _DEFAULT_SCHEMA[dialect] else f"{schema}.{table}"
        found.setdefault(name, []).append(column)
    return [_table(name, columns) for name, columns in found.items()]


def _table(name: str, rows: list[Sequence[str]]) -> Table:
    # An INT64 comes as a string.
    positions = sorted((int(position), column) for column, _, position in rows if position)
    return Table(
        name,
        {column: kind for column, kind, _ in rows},
        tuple(column for _, column in positions),
    )
