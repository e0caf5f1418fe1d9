"""The record filter: it chooses the data change records that a pipeline writes.

It decides the same for Python's rows and for Arrow's. It is applied after the audit: records that
are left out were read and counted like all others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from slackwater.spark_sink.filters.change_filter import ChangeFilter
from slackwater.spark_sink.filters.column_filter import ColumnFilter
from slackwater.spark_sink.filters.globs import joined, matching

if TYPE_CHECKING:
    from pyarrow import BooleanArray, RecordBatch


class ModType(StrEnum):
    """The kinds of change that a data change record makes."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True)
class RecordFilter:
    """A filter of records and of their columns; an empty list leaves nothing out.

    Attributes:
        tables, exclude_tables: globs of full table names, with * and ?.
        mod_types: the kinds of change that are kept.
        transaction_tags, exclude_transaction_tags: globs of tags; records of transactions without
            a tag have an empty one.
        system_transactions: False leaves out Spanner's own changes, such as those of a row
            deletion policy.
        when_changed: globs of columns, one of which a record has to change; see ChangeFilter.
        columns, exclude_columns: globs of columns; see ColumnFilter.

    Raises:
        ValueError: a glob of columns lacks the dot.
    """

    tables: tuple[str, ...] = ()
    exclude_tables: tuple[str, ...] = ()
    mod_types: tuple[ModType, ...] = ()
    transaction_tags: tuple[str, ...] = ()
    exclude_transaction_tags: tuple[str, ...] = ()
    system_transactions: bool = True
    when_changed: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    exclude_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Report a wrong glob now, and not when the first record arrives.
        ColumnFilter(self.columns, self.exclude_columns)
        ChangeFilter(self.when_changed)

    @cached_property
    def column_filter(self) -> ColumnFilter:
        """The filter of the columns of the records that are kept."""
        return ColumnFilter(self.columns, self.exclude_columns)

    @property
    def keeps_all(self) -> bool:
        """Whether no record is left out."""
        return replace(self, columns=(), exclude_columns=()) == RecordFilter()

    def keeps(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row of the output's contract is kept.

        Raises:
            UnknownChangesError, ValueError: as ChangeFilter.keeps().
        """
        is_kept = (self.system_transactions or not row["is_system_transaction"]) and all(
            _is_kept(row[column], pattern, wanted) for column, pattern, wanted in self._patterns
        )
        return is_kept and (not self.when_changed or self._change_filter.keeps(row))

    def apply_to_batch(self, records: RecordBatch) -> RecordBatch:
        """Return the records of a batch that are kept, without the columns that are left out.

        Raises:
            UnknownChangesError, ValueError: as ChangeFilter.keeps() and ColumnFilter.
        """
        if not self.keeps_all:
            records = records.filter(self.mask(records))
        return self.column_filter.apply_to_batch(records)

    def mask(self, records: RecordBatch) -> BooleanArray:
        """Return for each record of a batch whether it is kept; errors are those of keeps()."""
        import pyarrow as pa
        import pyarrow.compute as pc

        mask = pa.repeat(pa.scalar(True), records.num_rows)
        for column, pattern, wanted in self._patterns:
            matches = matching(records[column], pattern)
            mask = pc.and_(mask, matches if wanted else pc.invert(matches))
        if not self.system_transactions:
            mask = pc.and_(mask, pc.invert(records["is_system_transaction"]))
        return self._change_filter.mask(records, mask) if self.when_changed else mask

    def keeps_table(self, table: str) -> bool:
        """Return whether records of a table may be kept, by its full name."""
        of_tables = RecordFilter(self.tables, self.exclude_tables)
        return of_tables.keeps({"table_name": table}) and (
            not self.when_changed or self._change_filter.keeps_table(table)
        )

    @cached_property
    def _change_filter(self) -> ChangeFilter:
        return ChangeFilter(self.when_changed)

    @cached_property
    def _patterns(self) -> Sequence[tuple[str, str, bool]]:
        """The column, a regular expression of its whole text, and whether it has to match."""
        globs = (
            ("table_name", self.tables, True),
            ("table_name", self.exclude_tables, False),
            ("mod_type", self.mod_types, True),
            ("transaction_tag", self.transaction_tags, True),
            ("transaction_tag", self.exclude_transaction_tags, False),
        )
        return [
            (column, joined(patterns), wanted) for column, patterns, wanted in globs if patterns
        ]


def _is_kept(text: str, pattern: str, is_to_match: bool) -> bool:
    return (re.fullmatch(pattern, text, re.DOTALL) is not None) is is_to_match
