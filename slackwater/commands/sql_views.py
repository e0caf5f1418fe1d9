"""The statements that rebuild tables from a changelog: `slackwater sql view`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from slackwater.config.filters import filter_of, tables_to_read
from slackwater.config.settings import Settings
from slackwater.errors import NoTableError, SettingsError
from slackwater.pipeline.source import capture_type, source_options
from slackwater.reader.database.change_stream_info import read_change_stream_info
from slackwater.reader.database.watched_tables import tables
from slackwater.reader.transport.connection import Connection
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.formats import BIGQUERY
from slackwater.spark_sink.output.epoch_groups import current_epochs
from slackwater.spark_sink.sinks.changelog import ChangelogSettings
from slackwater.spark_sink.sinks.envelope_settings import EnvelopeSettings
from slackwater.spark_sink.sql.quoting import identifier
from slackwater.spark_sink.sql.rebuild_view import (
    WHOLE_ROW_CAPTURE_TYPES,
    create_view,
)
from slackwater.spark_sink.table_names import view_names


def views(settings: Settings, names: Sequence[str]) -> Iterator[str]:
    """Yield a CREATE VIEW statement for each table; nothing is written anywhere.

    Args:
        settings: the pipeline's.
        names: globs of full table names; without any, all tables that the pipeline reads.

    Raises:
        SettingsError: the pipeline does not write a changelog of records, or not of all changes.
        NoTableError: no table has such a name.
        TableNameError: two of the pipeline's tables would share a view.
        ReaderError: Spanner failed.
    """
    sink = settings.sink
    if not isinstance(sink, ChangelogSettings) or sink.envelope != "record":
        envelope = f" with envelope {sink.envelope}" if isinstance(sink, EnvelopeSettings) else ""
        raise SettingsError(
            f"pipeline {settings.pipeline!r} has sink.kind {sink.kind}{envelope}: views can be made"
            " from changelogs of records only."
        )
    if sink.format == BIGQUERY:
        raise SettingsError(
            f"pipeline {settings.pipeline!r} has sink.format {BIGQUERY}: the views are Spark's,"
            " which does not read the table."
        )
    if settings.filter.when_changed:
        raise SettingsError(
            f"pipeline {settings.pipeline!r} has filter.when_changed, which leaves changes out: a"
            " view over the others would not be its table."
        )
    options = source_options(settings)
    with closing(Connection(options.change_stream)) as connection:
        description = read_change_stream_info(connection)
        in_database = tables(connection, description.dialect)
    read = tables_to_read(in_database, filter_of(settings))
    chosen = tables_to_read(read, RecordFilter(tuple(names)))
    if not chosen:
        raise NoTableError(
            f"no table is named {', '.join(names)}." if names else "the pipeline reads no table.",
            f"The database has: {', '.join(table.name for table in in_database) or 'no tables'}",
        )
    # Also of those that are not chosen: their views may have been made before.
    names_of_views = view_names(table.name for table in read)
    changes = f"{sink.format}.{identifier(sink.path)}"
    if sink.compacts_epochs:
        changes = current_epochs(changes)
    for table in chosen:
        yield create_view(
            table.name,
            names_of_views[table.name],
            table.columns,
            table.key,
            changes,
            is_whole_row=capture_type(description) in WHOLE_ROW_CAPTURE_TYPES,
        )
