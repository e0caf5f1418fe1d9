"""The tables and columns that a pipeline reads, by the filter in its settings."""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from slackwater.config.settings import FilterSettings, Settings
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
    """

    setting: str
    glob: str
    near: str | None


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


def globs_without_match(tables: Sequence[Table], settings: FilterSettings) -> list[WrongGlob]:
    """Return the filter's globs that match no table or column that a stream watches.

    Args:
        tables: those that the change stream watches, with their columns.
        settings: the filter.
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
        ("tables", settings.tables, names),
        ("exclude_tables", settings.exclude_tables, names),
        ("when_changed", settings.when_changed, changing),
        ("columns", settings.columns, columns),
        ("exclude_columns", settings.exclude_columns, columns),
    )
    return [
        WrongGlob(setting, glob, next(iter(difflib.get_close_matches(glob, existing, n=1)), None))
        for setting, of_setting, existing in globs
        for glob in of_setting
        if not any(re.fullmatch(glob_pattern(glob), name, re.DOTALL) for name in existing)
    ]
