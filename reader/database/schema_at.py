"""The tables and columns of a database at several times: which of them were dropped and made again.

Spanner's information schema has no times of creation, and dropping a table or a column leaves no
change record. But it can be read as of a time, as any table can. A table or column that is absent
at one time and there at a later one was created in between, whatever had its name before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slackwater.reader.change_stream import Dialect
from slackwater.reader.database.watched_tables import tables
from slackwater.reader.transport.connection import Connection
from slackwater.timestamp import floor_to_us, seconds_to_ns

# A database keeps its versions that long at least: "Point-in-time recovery" in Spanner's documents.
VERSIONS_KEPT_NS: Final = seconds_to_ns(3_600)
_EVERY_NS: Final = seconds_to_ns(2)
_TIMES_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class SchemaAt:
    """The columns of each table at a time.

    Attributes:
        at_ns: the time, nanoseconds.
        columns: the names of the columns, by the table's full name.
    """

    at_ns: int
    columns: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Recreated:
    """The tables and columns that were created in a span, each with a time before its creation.

    Attributes:
        tables: the last time at which the table was seen to be absent, by its full name.
        columns: the same for a column of a table that was there, by table and column.
    """

    tables: Mapping[str, int]
    columns: Mapping[tuple[str, str], int]


def schema_at(connection: Connection, dialect: Dialect, at_ns: int) -> SchemaAt:
    """Return the schema as it was at a time.

    Raises:
        ReaderError: as Connection.query(); also if Spanner no longer keeps that time's version.
    """
    columns = {
        table.name: frozenset(table.columns)
        for table in tables(connection, dialect, floor_to_us(at_ns))
    }
    return SchemaAt(at_ns, columns)


def times_to_compare(start_ns: int, end_ns: int) -> list[int]:
    """Return both ends of a span, and times between: one in two seconds, but at most 16."""
    between = min(_TIMES_MAX, (end_ns - start_ns) // _EVERY_NS)
    step = (end_ns - start_ns) // (between + 1)
    return [*(start_ns + number * step for number in range(between + 1)), end_ns]


def recreated(schemas: Sequence[SchemaAt]) -> Recreated:
    """Return the tables and columns that are absent in a schema and there in the last one.

    Args:
        schemas: by time, the earliest first.
    """
    made: dict[str, int] = {}
    added: dict[tuple[str, str], int] = {}
    for earlier in schemas[:-1]:
        for table, columns in schemas[-1].columns.items():
            if table not in earlier.columns:
                made[table] = earlier.at_ns
                continue
            for column in columns - earlier.columns[table]:
                added[table, column] = earlier.at_ns
    return Recreated(made, {name: at for name, at in added.items() if name[0] not in made})
