"""Filters: which data change records a pipeline keeps.

The same for Spark's rows and for Python's. They come after the audit: what is left out was read and
counted all the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column


class ModType(StrEnum):
    """What a data change record does to its rows."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True)
class Filter:
    """What is kept; a list that is empty leaves nothing out.

    Attributes:
        tables, exclude_tables: globs of full table names, with * and ?.
        mod_types: the kinds of change.
        transaction_tags, exclude_transaction_tags: globs of tags; records of transactions without
            a tag have an empty one.
        system_transactions: False leaves out what Spanner changed itself, as by a row deletion
            policy.
    """

    tables: tuple[str, ...] = ()
    exclude_tables: tuple[str, ...] = ()
    mod_types: tuple[ModType, ...] = ()
    transaction_tags: tuple[str, ...] = ()
    exclude_transaction_tags: tuple[str, ...] = ()
    system_transactions: bool = True

    @property
    def keeps_all(self) -> bool:
        """True where nothing is left out."""
        return self == Filter()

    def keeps(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of the output's contract is kept."""
        return (self.system_transactions or not row["is_system_transaction"]) and all(
            (re.fullmatch(pattern, row[column], re.DOTALL) is not None) is wanted
            for column, pattern, wanted in self._patterns
        )

    def condition(self) -> Column:
        """The same of Spark's rows."""
        from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

        found = F.lit(True)
        for column, pattern, wanted in self._patterns:
            matches = F.col(column).rlike(rf"(?s)\A(?:{pattern})\z")
            found = found & (matches if wanted else ~matches)
        return found if self.system_transactions else found & ~F.col("is_system_transaction")

    @cached_property
    def _patterns(self) -> Sequence[tuple[str, str, bool]]:
        """Column, regular expression of its whole text, and whether it has to match."""
        globs = (
            ("table_name", self.tables, True),
            ("table_name", self.exclude_tables, False),
            ("mod_type", self.mod_types, True),
            ("transaction_tag", self.transaction_tags, True),
            ("transaction_tag", self.exclude_transaction_tags, False),
        )
        return [
            (column, "|".join(map(glob_pattern, given)), wanted)
            for column, given, wanted in globs
            if given
        ]


def glob_pattern(glob: str) -> str:
    """A regular expression that Python, Java and Spark read alike: * is any text, ? any character.

    fnmatch's would not do: it needs what Java spells otherwise.
    """
    special = {"*": ".*", "?": "."}
    return "".join(special.get(c, c if c.isalnum() or c == "_" else f"\\{c}") for c in glob)
