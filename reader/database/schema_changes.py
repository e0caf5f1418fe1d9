"""The DDL statements of a database, and the names that belonged to another table before them.

A change record names its table, and nothing else tells tables apart: Spanner shows no identity of a
table, neither in its information schema nor in its records. After two tables of the same columns
have exchanged their names, the statements by which they did so are the only trace. Spanner lists
them for seven days, each with its commit timestamp.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Final

from slackwater.reader.transport.connection import Connection
from slackwater.reader.transport.ddl_updates import DdlUpdate, ddl_updates
from slackwater.timestamp import NANOSECONDS_PER_MICROSECOND, seconds_to_ns

# "Operations ... within the last 7 days": ListDatabaseOperations in Spanner's documents.
CHANGES_KEPT_NS: Final = seconds_to_ns(7 * 86_400)
# In both dialects. A GoogleSQL text in double quotes is taken for a name, which does no harm.
_NAME: Final = r'(?:`[^`]+`|"(?:[^"]|"")+"|[\w$]+)'
_TOKEN: Final = re.compile(
    r"--[^\n]*|#[^\n]*|/\*.*?\*/|'(?:\\.|''|[^'\\])*'"
    rf"|(?P<name>{_NAME}(?:\s*\.\s*{_NAME})*)",
    re.DOTALL,
)
_PART: Final = re.compile(_NAME)
_DEFAULT_SCHEMA: Final = "public"
_IF_EXISTS: Final = frozenset({("if", False), ("exists", False), ("column", False)})
_ALTER_TABLE: Final = (("alter", False), ("table", False))
_DROP_TABLE: Final = (("drop", False), ("table", False))
_DROP: Final = ("drop", False)


@dataclass(frozen=True)
class SchemaChange:
    """A DDL statement that was carried out, or will be.

    Attributes:
        statement: its text.
        at_ns: its commit timestamp, nanoseconds; None if it has not been committed yet.
    """

    statement: str
    at_ns: int | None

    @cached_property
    def words(self) -> tuple[tuple[str, bool], ...]:
        """The words in lower case, without quotation marks, and whether they had some."""
        names = (match["name"] for match in _TOKEN.finditer(self.statement) if match["name"])
        return tuple(map(_word, names))

    @property
    def renames(self) -> bool:
        """Return whether the statement gives a table another name."""
        return ("rename", False) in self.words

    @property
    def moves_names(self) -> bool:
        """Return whether a name may belong to another table after the statement, or to none."""
        return self.renames or self.words[:2] == _DROP_TABLE

    @property
    def mentioned(self) -> set[str]:
        """The full names in the statement, and its other words, in lower case."""
        return {word for word, _ in self.words}

    @property
    def dropped_column(self) -> tuple[str, str] | None:
        """The table and the column that the statement drops; None if it drops none."""
        words = tuple(word for word in self.words if word not in _IF_EXISTS)
        if words[:2] != _ALTER_TABLE or _DROP not in words[3:-1]:
            return None
        return words[2][0], words[words.index(_DROP, 3) + 1][0]


def _word(text: str) -> tuple[str, bool]:
    """Return a word or full name, and whether it is quoted and so is not a keyword."""
    parts = [part.lower() for part in _PART.findall(text)]
    names = [_unquoted(part) for part in parts]
    if len(names) > 1 and names[0] == _DEFAULT_SCHEMA:
        names = names[1:]
    return ".".join(names), names != parts


def _unquoted(part: str) -> str:
    if part[0] == '"':
        return part[1:-1].replace('""', '"')
    return part.strip("`")


def schema_changes(connection: Connection) -> list[SchemaChange] | None:
    """Return the DDL statements of the last seven days that were not refused.

    Returns:
        None if the credentials may not list them.

    Raises:
        ReaderError: Spanner can't be reached.
    """
    updates = ddl_updates(connection)
    return None if updates is None else changes_of(updates)


def changes_of(updates: Iterable[DdlUpdate]) -> list[SchemaChange]:
    """Return the statements of requests, except refused ones."""
    return [
        SchemaChange(statement, at_ns)
        for update in updates
        for statement, at_ns in zip_longest(update.statements, update.times_ns)
        if at_ns is not None or not update.is_done
    ]


def reassigned_tables(
    changes: Iterable[SchemaChange], names: Iterable[str], start_ns: int, end_ns: int
) -> dict[str, int]:
    """Return the tables whose names have belonged to others in a span, or to none.

    A statement counts for all tables that it mentions, so that it need not be understood.

    Args:
        changes: the database's.
        names: the full names of the tables after the span.
        start_ns, end_ns: the span; a change at its end belongs to it.

    Returns:
        The last time before the present table got its name, by name.
    """
    spelled = {name.lower(): name for name in names}
    others: dict[str, int] = {}
    for change in changes_in(changes, start_ns, end_ns):
        for name in spelled.keys() & change.mentioned if change.moves_names else ():
            others[spelled[name]] = _before(change, others.get(spelled[name], 0))
    return others


def recreated_columns(
    changes: Iterable[SchemaChange],
    columns: Mapping[str, Collection[str]],
    start_ns: int,
    end_ns: int,
) -> dict[tuple[str, str], int]:
    """Return the columns that were dropped in a span, and are there after it.

    Args:
        changes, start_ns, end_ns: see reassigned_tables().
        columns: those of each table after the span.

    Returns:
        The last time before the present column was made, by table and column.
    """
    spelled = {
        (table.lower(), name.lower()): (table, name)
        for table, names in columns.items()
        for name in names
    }
    others: dict[tuple[str, str], int] = {}
    for change in changes_in(changes, start_ns, end_ns):
        if (column := change.dropped_column) is not None and column in spelled:
            others[spelled[column]] = _before(change, others.get(spelled[column], 0))
    return others


def changes_in(changes: Iterable[SchemaChange], start_ns: int, end_ns: int) -> list[SchemaChange]:
    """Return the changes that were committed in a span."""
    return [one for one in changes if one.at_ns is not None and start_ns < one.at_ns <= end_ns]


def is_unchanged(changes: Iterable[SchemaChange], since_ns: int, until_ns: int) -> bool:
    """Return whether the schema at a time is that of an earlier one.

    A change without a commit timestamp may have been committed by now.
    """
    return not any(one.at_ns is None or since_ns < one.at_ns <= until_ns for one in changes)


def _before(change: SchemaChange, least_ns: int) -> int:
    return max((change.at_ns or 0) - NANOSECONDS_PER_MICROSECOND, least_ns)
