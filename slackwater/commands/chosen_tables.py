"""The tables that a command is about, by the globs that its user gave."""

from collections.abc import Sequence

from slackwater.config.filters import filter_of, tables_to_read
from slackwater.config.settings import Settings
from slackwater.errors import NoTableError
from slackwater.pipeline.source import SourceHandle
from slackwater.reader.database.watched_tables import Table, watched_tables
from slackwater.spark_sink.filters.record_filter import RecordFilter


def chosen_tables(settings: Settings, source: SourceHandle, names: Sequence[str]) -> list[Table]:
    """Return the tables that a pipeline reads and whose names match.

    Args:
        settings: the pipeline's.
        source: its change stream.
        names: globs of full table names; without any, all tables that the pipeline reads.

    Raises:
        NoTableError: the change stream watches no table with such a name.
        ReaderError: Spanner failed.
    """
    watched = watched_tables(source.connection, source.description.dialect)
    return chosen_of(watched, settings, names)


def chosen_of(watched: Sequence[Table], settings: Settings, names: Sequence[str]) -> list[Table]:
    """Return the same of the tables that the change stream watches.

    Raises:
        NoTableError: as chosen_tables().
    """
    by_settings = tables_to_read(watched, filter_of(settings))
    by_name = tables_to_read(by_settings, RecordFilter(tuple(names)))
    if not by_name:
        raise NoTableError(
            f"the change stream watches no table named {', '.join(names)}."
            if names
            else "the change stream watches no table that the filter lets through.",
            f"It watches: {', '.join(table.name for table in watched) or 'no tables'}",
        )
    return by_name
