"""Names of tables and columns that the emulator takes, with every mark that means something."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from slackwater.reader.change_stream import Dialect
from slackwater.testing.emulator_database import update_ddl
from tests.support.changing import ChangingDatabase
from tests.support.emulators import NewDatabase

_MARKS = ['q"t', "q't", "s/t", "p%t", "[red]", "<b>x</b>", "a b", "a-b", "a*b", "a?b", "a:b"]
_MARKS += ["a#b", "a;b", "a=b", "(x)", "{table}", "table", "back\\slash", "n\\nl", "\x1b[31m", "ü"]
_OF_POSTGRESQL = ["b`t", "n\nl", "1a", '"', '""']
# The second has a schema of its own.
SCHEMA, IN_SCHEMA = 's"/1', 's"/1.s/t'

# Those that all formats can hold, and those that some can't.
_COLUMNS = ['q"c', "q'c", "v.x", "s/c", "..", "p%c", "[red]", "<b>x</b>", "select", "a-b"]
_COLUMNS += ["_c", "ü"]
REFUSED_COLUMN = "a, b"
# A name with all marks at once.
EVERY_MARK = "\"'/%[red]<b>x</b> -*?:#;=(){table}\\n$|&~^+@!,\tü\x1b[31m"
# The key of every table, and what each row has besides.
KEY, OF_COLUMNS = "k.y", "Columns"


def tables(dialect: Dialect) -> list[str]:
    """Return the full names of the tables of create()."""
    of_dialect = _OF_POSTGRESQL if dialect is Dialect.POSTGRESQL else []
    return [*_MARKS, *of_dialect, EVERY_MARK, IN_SCHEMA, OF_COLUMNS]


def columns(dialect: Dialect, table: str) -> list[str]:
    """Return the columns of a table, without its key."""
    if table != OF_COLUMNS:
        return ["v"]
    return [*_COLUMNS, *(["b`c", "n\\c"] if dialect is Dialect.POSTGRESQL else [])]


def quoted(dialect: Dialect, name: str) -> str:
    """Quote a part of a name in DDL, where GoogleSQL knows no escape sequences."""
    if dialect is Dialect.POSTGRESQL:
        return '"' + name.replace('"', '""') + '"'
    return f"`{name}`"


def create_table(dialect: Dialect, table: str, *names: str) -> str:
    """Return the statement that creates a table, by its full name."""
    kinds = {Dialect.POSTGRESQL: ("bigint", "varchar")}.get(dialect, ("INT64", "STRING(MAX)"))
    key = quoted(dialect, KEY)
    values = "".join(f", {quoted(dialect, name)} {kinds[1]}" for name in names)
    is_inside = dialect is Dialect.POSTGRESQL
    body = f"{key} {kinds[0]} NOT NULL{values}{f', PRIMARY KEY ({key})' if is_inside else ''}"
    name = ".".join(quoted(dialect, part) for part in table.split("."))
    return f"CREATE TABLE {name} ({body}){'' if is_inside else f' PRIMARY KEY ({key})'}"


def create(
    new_database: NewDatabase, dialect: Dialect, state_folder: str, names: Sequence[str] = ()
) -> ChangingDatabase:
    """Make a database with some tables, or with all, and a row with key 1 in each."""
    made = names or tables(dialect)
    database = ChangingDatabase(dialect, new_database, state_folder, "ALL")
    statements = [f"CREATE SCHEMA {quoted(dialect, SCHEMA)}"]
    statements += [create_table(dialect, t, *columns(dialect, t)) for t in made]
    update_ddl(database.stream, statements)
    write(database, 1, made)
    return database


def write(database: ChangingDatabase, number: int, names: Sequence[str]) -> None:
    """Insert a row into each of the tables, in one transaction."""
    with database.client.batch() as batch:
        for name in names:
            row = values(database.dialect, name, number)
            batch.insert(name, tuple(row), [tuple(row.values())])


def values(dialect: Dialect, table: str, number: int) -> dict[str, Any]:
    """Return the values of a row."""
    return {KEY: number, **{name: f"{name} {number}" for name in columns(dialect, table)}}


def failing(names: list[str], work: Callable[[str], object]) -> Iterator[str]:
    """Yield those names with which something fails, and how."""
    for name in names:
        try:
            work(name)
        except Exception as error:  # noqa: BLE001 - all of them are of interest
            yield f"{name!r}: {error!r}"[:300]
