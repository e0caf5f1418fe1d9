"""Globs of names: * is any text, ? any character, and every other character is literal."""

from __future__ import annotations


def glob_pattern(glob: str) -> str:
    """Return a regular expression that means the same in Python and in Java, and so in Spark.

    fnmatch.translate() would not do: Java does not know its syntax.
    """
    special = {"*": ".*", "?": "."}
    return "".join(special.get(c, c if c.isalnum() or c == "_" else f"\\{c}") for c in glob)
