"""The names of tables and columns, in SQL."""

import hashlib
from dataclasses import dataclass

from slackwater.spark_sink.errors import TableNameError
from slackwater.spark_sink.table_names import table_of


@dataclass(frozen=True, slots=True)
class TableAddress:
    """A table of a database.

    Attributes:
        schema: its schema; None for the one that the database takes without a name.
        name: its name there.
    """

    schema: str | None
    name: str

    @property
    def quoted(self) -> str:
        """The name that SQL has for it."""
        parts = [self.name] if self.schema is None else [self.schema, self.name]
        return ".".join(map(identifier, parts))


def digest(text: str) -> str:
    """Return a short name that no other text has."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identifier(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def table_address(path: str, name_max: int | None = None) -> TableAddress:
    """Return the table of a path that ends with its plain name.

    Args:
        path: of the table.
        name_max: how long the names may be, in bytes; None for any length.

    Raises:
        TableNameError: one is longer.
    """
    table = table_of(path.rpartition("/")[2])
    assert table is not None, path  # noqa: S101 - a sink made the path
    schema, _, name = table.rpartition(".")
    for part in (schema, name):
        if name_max is not None and len(part.encode()) > name_max:
            raise TableNameError(
                f"table {table!r}: PostgreSQL takes names of {name_max} bytes at most.",
                "Leave it out with filter.exclude_tables, or rename it",
            )
    return TableAddress(schema or None, name)
