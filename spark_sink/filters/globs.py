"""Globs of names: * is any text, ? any character, and everything else stands for itself."""

from __future__ import annotations


def glob_pattern(glob: str) -> str:
    """A regular expression that Python, Java and Spark read alike.

    fnmatch's would not do: it needs what Java spells otherwise.
    """
    special = {"*": ".*", "?": "."}
    return "".join(special.get(c, c if c.isalnum() or c == "_" else f"\\{c}") for c in glob)
