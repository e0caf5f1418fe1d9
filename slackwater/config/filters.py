"""The tables and columns that a pipeline reads, by the filter in its settings."""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from slackwater.config.settings import Settings
from slackwater.reader.database.watched_tables import Table
from slackwater.spark_sink.filters.globs import glob_pattern
from slackwater.spark_sink.filters.record_filter import RecordFilter


@dataclass(frozen=True, slots=True)
class WrongGlob:
    """A glob that matches nothing.

    Attributes:
        setting: the name of its list in the filter.
        glob: the glob.
        near: the name of a table or column that is spelled almost like it; None without one.
        watched: the names of the tables that the change stream watches.
    """

    setting: str
    glob: str
    near: str | None
    watched: Sequence[str]

    @property
    def message(self) -> str:
        """The problem, for people."""
        kind = "table" if "tables" in self.setting else "column"
        if self.setting == "when_changed":
            kind = "column outside the primary key"
        return (
            f"filter.{self.setting}: {self.glob!r} matches no {kind} that the change stream"
            " watches."
        )

    @property
    def hint(self) -> str:
        """The proposal, for people."""
        if self.near:
            return f"Did you mean {self.near!r}?"
        return f"It watches {', '.join(self.watched) or 'no table'}"


def filter_of(settings: Settings) -> RecordFilter:
    """Return the filter that the settings describe."""
    return RecordFilter(**settings.filter.model_dump())


def tables_to_read(tables: Iterable[Table], record_filter: RecordFilter) -> list[Table]:
    """Return the tables that pass a filter, each with the columns that pass it.

    Key columns always pass. The filter's mod types and transactions don't matter here. A table
    without any column left has no rows to read, and is left out.
    """
    narrowed = (
        _with_columns_to_read(table, record_filter)
        for table in tables
        if record_filter.keeps_table(table.name)
    )
    return [table for table in narrowed if table.columns]


def _with_columns_to_read(table: Table, record_filter: RecordFilter) -> Table:
    columns = {
        name: kind
        for name, kind in table.columns.items()
        if name in table.key or record_filter.column_filter.keeps(table.name, name)
    }
    return replace(table, columns=columns)


def globs_without_match(tables: Sequence[Table], record_filter: RecordFilter) -> list[WrongGlob]:
    """Return the filter's globs that match no table or column that a stream watches.

    Args:
        tables: those that the change stream watches, with their columns.
        record_filter: the filter.
    """
    names = [table.name for table in tables]
    columns = [f"{table.name}.{column}" for table in tables for column in table.columns]
    # No update changes a primary key.
    changing = [
        f"{table.name}.{column}"
        for table in tables
        for column in table.columns
        if column not in table.key
    ]
    globs = (
        ("tables", record_filter.tables, names),
        ("exclude_tables", record_filter.exclude_tables, names),
        ("when_changed", record_filter.when_changed, changing),
        ("columns", record_filter.columns, columns),
        ("exclude_columns", record_filter.exclude_columns, columns),
    )
    return [
        WrongGlob(setting, glob, _near(glob, existing), names)
        for setting, of_setting, existing in globs
        for glob in of_setting
        if not any(re.fullmatch(glob_pattern(glob), name, re.DOTALL) for name in existing)
    ]


def _near(glob: str, existing: Sequence[str]) -> str | None:
    """Return the name that differs in the case of its letters only, or in little else."""
    in_other_case = [name for name in existing if name.casefold() == glob.casefold()]
    near = in_other_case or difflib.get_close_matches(glob, existing, n=1)
    return near[0] if near else None
