"""The tables that a change stream watches: columns, types and primary keys.

A change stream does not watch generated columns, unless they belong to the primary key (Spanner's
documentation, "Change streams overview"). So they are not among a table's columns here.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection

_DEFAULT_SCHEMA: Final = {Dialect.GOOGLE_STANDARD_SQL: "", Dialect.POSTGRESQL: "public"}
_COLUMNS: Final = (
    "SELECT c.table_schema, c.table_name, c.column_name, c.spanner_type, k.ordinal_position,"
    " c.is_generated, k.column_ordering, c.is_nullable"
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

_WATCHES_ALL: Final = {
    Dialect.GOOGLE_STANDARD_SQL: "SELECT change_stream_name, `all`"
    " FROM information_schema.change_streams",
    Dialect.POSTGRESQL: 'SELECT change_stream_name, "all" FROM information_schema.change_streams',
}
_WATCHED_TABLES: Final = (
    "SELECT change_stream_name, table_schema, table_name, all_columns"
    " FROM information_schema.change_stream_tables"
)
_WATCHED_COLUMNS: Final = (
    "SELECT change_stream_name, table_schema, table_name, column_name"
    " FROM information_schema.change_stream_columns"
)
# The values for yes: one dialect has booleans, the other has texts.
_YES: Final = (True, "YES")
_GENERATED: Final = "ALWAYS"
_DESCENDING: Final = "DESC"


@dataclass(frozen=True, slots=True)
class Table:
    """A table in the information schema.

    Attributes:
        name: the same as in data change records: with its schema, unless that is the default one.
        columns: the type of each column by its name, in the table's order and the dialect's
            spelling: STRING(MAX), character varying.
        key: the primary key's columns, in the key's order; a table may have none.
        generated: the generated columns, which are not among the columns: no change has them.
        descending: the key's columns that are in descending order.
        nullable: the columns that may be NULL.
    """

    name: str
    columns: Mapping[str, str]
    key: tuple[str, ...]
    generated: tuple[str, ...] = ()
    descending: frozenset[str] = frozenset()
    nullable: frozenset[str] = frozenset()


def tables(connection: Connection, dialect: Dialect, at_ns: int | None = None) -> list[Table]:
    """Return the tables of a database.

    Args:
        connection: to the database.
        dialect: the database's.
        at_ns: as of when, nanoseconds; None for now.

    Raises:
        ReaderError: as Connection.query().
    """
    columns_by_table: dict[str, list[Sequence[str]]] = {}
    for schema, table, *column in connection.query(_COLUMNS, at_ns):
        columns_by_table.setdefault(_full_name(dialect, schema, table), []).append(column)
    return [_table(name, columns) for name, columns in columns_by_table.items()]


def watched_tables(
    connection: Connection, dialect: Dialect, at_ns: int | None = None
) -> list[Table]:
    """Return the tables that the connection's change stream watches, with the watched columns.

    The primary key is always watched; see "Watching explicitly" in Spanner's documentation.

    Args:
        connection, dialect, at_ns: see tables().

    Raises:
        ReaderError: as Connection.query().
    """
    stream = connection.change_stream.change_stream
    everything = tables(connection, dialect, at_ns)
    if watches_all(connection, dialect, at_ns):
        return everything
    whole: set[str] = set()
    parts: set[str] = set()
    for name, schema, table, word in connection.query(_WATCHED_TABLES, at_ns):
        if name == stream:
            (whole if word in _YES else parts).add(_full_name(dialect, schema, table))
    chosen = {
        (_full_name(dialect, schema, table), column)
        for name, schema, table, column in connection.query(_WATCHED_COLUMNS, at_ns)
        if name == stream
    }
    return [
        table if table.name in whole else _part(table, chosen)
        for table in everything
        if table.name in whole | parts
    ]


def watches_all(connection: Connection, dialect: Dialect, at_ns: int | None = None) -> bool:
    """Return whether the change stream watches the whole database; arguments as for tables()."""
    stream = connection.change_stream.change_stream
    streams = connection.query(_WATCHES_ALL[dialect], at_ns)
    return any(name == stream and word in _YES for name, word in streams)


def _part(table: Table, chosen: Collection[tuple[str, str]]) -> Table:
    columns = {
        name: kind
        for name, kind in table.columns.items()
        if name in table.key or (table.name, name) in chosen
    }
    return replace(table, columns=columns)


def _full_name(dialect: Dialect, schema: str, table: str) -> str:
    return table if schema == _DEFAULT_SCHEMA[dialect] else f"{schema}.{table}"


def _table(name: str, rows: list[Sequence[str]]) -> Table:
    # An INT64 comes as a string.
    positions = sorted((int(position), column) for column, _, position, *_ in rows if position)
    generated = [
        column for column, _, position, word, *_ in rows if word == _GENERATED and not position
    ]
    return Table(
        name,
        {column: kind for column, kind, *_ in rows if column not in generated},
        tuple(column for _, column in positions),
        tuple(generated),
        frozenset(name for name, *_, order, _ in rows if (order or "").startswith(_DESCENDING)),
        frozenset(name for name, *_, word in rows if word in _YES),
    )
