"""`slackwater sql view`: the statements that make tables of a changelog."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from slackwater.config.filters import tables_to_read
from slackwater.config.settings import Settings
from slackwater.errors import NoTableError, SettingsError
from slackwater.pipeline.source import source_options
from slackwater.reader.database.change_stream_info import read_change_stream_info
from slackwater.reader.database.watched_tables import tables
from slackwater.reader.transport.connection import Connection
from slackwater.scheduler.options import parse_options
from slackwater.spark_sink.envelopes.envelope import Envelope
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.sql.rebuild_view import (
    DEFAULT_VALUE_CAPTURE_TYPE,
    WHOLE_ROW_CAPTURE_TYPES,
    create_view,
)


def views(settings: Settings, names: Sequence[str]) -> Iterator[str]:
    """A statement for each table of the database, or for those that are asked for.

    Args:
        settings: the pipeline's; nothing is written anywhere.
        names: globs of full table names; all that the pipeline keeps where there are none.

    Raises:
        SettingsError: the pipeline keeps no changelog of records.
        NoTableError: no table has such a name, or none has a primary key.
        ReaderError: what Spanner failed with.
    """
    sink = settings.sink
    if sink.kind != "changelog" or sink.envelope is not Envelope.RECORD:
        raise SettingsError(
            f"pipeline {settings.pipeline!r} has sink.kind {sink.kind} with envelope"
            f" {sink.envelope}: views are made of changelogs of records alone."
        )
    options = parse_options(source_options(settings), os.environ)
    connection = Connection(options.change_stream)
    try:
        description = read_change_stream_info(connection)
        known = tables(connection, description.dialect)
    finally:
        connection.close()
    given = settings.filter
    kept = RecordFilter(
        tables=tuple(names) or given.tables,
        columns=given.columns,
        exclude_columns=given.exclude_columns,
    )
    found = [table for table in tables_to_read(known, kept) if table.key]
    if not found:
        raise NoTableError(
            f"no table with a primary key is named {', '.join(kept.tables) or 'at all'}.",
            f"The database has: {', '.join(table.name for table in known) or 'none'}",
        )
    capture = description.options.get("value_capture_type", DEFAULT_VALUE_CAPTURE_TYPE)
    changes = f"{sink.format}.`{sink.path}`"
    for table in found:
        yield create_view(
            table.name,
            table.columns,
            table.key,
            changes,
            is_whole_row=capture in WHOLE_ROW_CAPTURE_TYPES,
        )
