"""Quoting of the names of tables, columns and functions in SQL, in both dialects.

The characters of names, as in the emulator: in both dialects almost any, but neither a table nor a
schema has a dot, and no two names of a database differ only in case. A column may have dots.
"""

import re
from typing import Final

from slackwater.reader.change_stream import Dialect

# Quoted names have the escape sequences of texts ("Lexical structure" in the GoogleSQL reference).
_ESCAPED: Final = re.compile(r"[\\`\x00-\x1f]")


def identifier(dialect: Dialect, name: str) -> str:
    """Quote the name of a column, a function or a change stream."""
    if dialect is Dialect.POSTGRESQL:
        return '"' + name.replace('"', '""') + '"'
    return "`" + _ESCAPED.sub(lambda mark: f"\\x{ord(mark[0]):02x}", name) + "`"


def table_identifier(dialect: Dialect, full_name: str) -> str:
    """Quote the full name of a table: its schema, if that is not the default one, a dot, and it."""
    return ".".join(identifier(dialect, part) for part in full_name.split("."))
