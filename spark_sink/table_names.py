"""The names that outputs have for a table of Spanner's: of a folder, a topic, a view.

A table's name may have almost any character; folders, URLs and topics allow few. Two tables never
share a folder or a topic. Views allow even fewer: if two tables would share one, both are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from slackwater.spark_sink.errors import TableNameError

if TYPE_CHECKING:
    from pyspark.sql import Column

# File systems take 255 bytes and Kafka 249, of which prefixes and suffixes need some.
_BYTES_MAX: Final = 200
_NOT_IN_VIEWS: Final = re.compile(r"[^A-Za-z0-9_]")


def plain_name(table: str) -> str:
    """Return the name of a table's folder, of its table in a catalog, and in its topic.

    Letters of ASCII, digits, underscores and dots stay. Each byte of other characters in UTF-8
    becomes a hyphen and its two digits: a-b becomes a-2Db.

    Raises:
        TableNameError: the name is too long.
    """
    escaped = quote(table, safe="").replace("-", "%2D").replace("~", "%7E")
    if len(escaped) > _BYTES_MAX:
        raise TableNameError(
            f"table {table!r} would need a name of {len(escaped)} bytes in the output, and no more"
            f" than {_BYTES_MAX} are safe everywhere.",
            "Leave it out with filter.exclude_tables, or rename it",
        )
    return escaped.replace("%", "-")


def table_of(name: str) -> str | None:
    """Return the table that plain_name() gives a name; None if it is the name of none."""
    table = unquote(name.replace("-", "%"), errors="replace")
    try:
        return table if plain_name(table) == name else None
    except TableNameError:
        return None


def plain_names(tables: Column) -> Column:
    """Return plain_name() of a column of Spark's; the names are short enough."""
    from pyspark.sql import functions as F

    escaped = F.url_encode(tables)
    for mark, code in (("-", "%2D"), ("*", "%2A"), ("+", "%20"), ("%", "-")):
        escaped = F.replace(escaped, F.lit(mark), F.lit(code))
    return escaped


def view_names(tables: Iterable[str], remedy: str = "") -> dict[str, str]:
    """Return the names of tables' views, by table: marks other than letters and digits become _.

    Args:
        tables: their full names.
        remedy: besides leaving one of the tables out.

    Raises:
        TableNameError: two would have the same; Spark ignores case in names.
    """
    names = {table: _NOT_IN_VIEWS.sub("_", plain_name(table)) for table in tables}
    first: dict[str, str] = {}
    for table, name in names.items():
        other = first.setdefault(name.lower(), table)
        if other != table:
            raise same_name_error(other, table, f"the view {name}", remedy)
    return names


def same_name_error(one: str, other: str, what: str, remedy: str) -> TableNameError:
    """Return the error of two tables that need the same place in an output.

    Args:
        one, other: their full names.
        what: the place, for people.
        remedy: besides leaving one of them out.
    """
    return TableNameError(
        f"tables {one!r} and {other!r} would both have {what}: one would overwrite the other.",
        f"Leave one of them out with filter.exclude_tables, or rename it. {remedy}".strip(),
    )
