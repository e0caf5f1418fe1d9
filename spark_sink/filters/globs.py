"""Globs of names: * is any text, ? any character, and every other character is literal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column


def glob_pattern(glob: str) -> str:
    """Return a regular expression that means the same in Python and in Java, and so in Spark.

    fnmatch.translate() would not do: Java does not know its syntax.
    """
    special = {"*": ".*", "?": "."}
    return "".join(special.get(c, c if c.isalnum() or c == "_" else f"\\{c}") for c in glob)


def joined(globs: Sequence[str]) -> str:
    """Return a regular expression that matches what one of the globs matches."""
    return "|".join(map(glob_pattern, globs))


def is_match(text: Column, pattern: str) -> Column:
    """Return whether a regular expression matches all of a text, as re.fullmatch with DOTALL."""
    return text.rlike(rf"(?s)\A(?:{pattern})\z")


def table_globs(column_glob: str) -> Iterator[str]:
    """Yield globs of the tables that may have a column which a glob matches.

    The glob is one of full column names: a table's full name, a dot and a name without a dot. The
    dot between them is matched by the glob's last dot, or by a * or ? behind that.
    """
    last_dot = column_glob.rfind(".")
    for place, mark in enumerate(column_glob):
        if place < last_dot:
            continue
        if mark == "*":
            yield column_glob[: place + 1]
        elif mark in ".?" and place + 1 < len(column_glob):
            yield column_glob[:place]
