"""Globs of names: * is any text, ? any character, and every other character is literal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow import BooleanArray, StringArray


def glob_pattern(glob: str) -> str:
    """Return a regular expression, for re.DOTALL.

    fnmatch.translate() would not do: brackets are special there.
    """
    special = {"*": ".*", "?": "."}
    return "".join(special.get(c, re.escape(c)) for c in glob)


def joined(globs: Sequence[str]) -> str:
    """Return a regular expression that matches every text that one of the globs matches."""
    return "|".join(map(glob_pattern, globs))


def matching(texts: StringArray, pattern: str) -> BooleanArray:
    """Return which of many texts a regular expression matches whole, as re.fullmatch with DOTALL.

    It is applied once to each different text: columns of names have few.
    """
    import pyarrow as pa

    encoded = texts.dictionary_encode()
    compiled = re.compile(pattern, re.DOTALL)
    matches = [compiled.fullmatch(text) is not None for text in encoded.dictionary.to_pylist()]
    return pa.array(matches, pa.bool_()).take(encoded.indices)


def table_globs(column_glob: str) -> Iterator[str]:
    """Yield globs of the tables that may have a column which a glob matches.

    The glob is one of full column names: a table's full name, which has one dot at most, a dot and
    a name that may have more. A dot, * or ? of the glob matches the dot between them.
    """
    for place, mark in enumerate(column_glob):
        if column_glob.count(".", 0, place) > 1:
            return
        if mark == "*":
            yield column_glob[: place + 1]
        elif mark in ".?" and 0 < place < len(column_glob) - 1:
            yield column_glob[:place]
