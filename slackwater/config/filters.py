"""Decides which tables and columns a pipeline reads, from the filter in its settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from slackwater.config.settings import Settings
from slackwater.reader.database.watched_tables import Table
from slackwater.spark_sink.filters.record_filter import RecordFilter


def filter_of(settings: Settings) -> RecordFilter:
    """Return the filter that the settings describe."""
    return RecordFilter(**settings.filter.model_dump())


def tables_to_read(tables: Iterable[Table], record_filter: RecordFilter) -> list[Table]:
    """Return the tables that pass a filter, each with the columns that pass it.

    Key columns always pass. The filter's mod types and transactions don't matter here. A table
    without any column left has no rows to read, and is left out.
    """
    of_tables = RecordFilter(record_filter.tables, record_filter.exclude_tables)
    narrowed = (
        _with_columns_to_read(table, record_filter)
        for table in tables
        if of_tables.keeps({"table_name": table.name})
    )
    return [table for table in narrowed if table.columns]


def _with_columns_to_read(table: Table, record_filter: RecordFilter) -> Table:
    columns = {
        name: kind
        for name, kind in table.columns.items()
        if name in table.key or record_filter.column_filter.keeps(table.name, name)
    }
    return replace(table, columns=columns)
