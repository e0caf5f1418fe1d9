"""Looks at what an epoch's records do not show, before its mirrors change: the schema's past.

A dropped table or column leaves no change record, and neither does an option by which the change
stream leaves changes out. So the information schema is read as of the epoch's end, and as of some
times since its start.
"""

from __future__ import annotations

import time

import structlog

from slackwater.pipeline.source import SourceHandle, refuse_omissions
from slackwater.reader.database.change_stream_info import read_change_stream_info
from slackwater.reader.database.schema_at import (
    VERSIONS_KEPT_NS,
    SchemaAt,
    recreated,
    schema_at,
    times_to_look_at,
)
from slackwater.reader.database.watched_tables import watches_all
from slackwater.reader.errors import ReaderError
from slackwater.spark_sink.sink import CurrentRows, Former
from slackwater.timestamp import format_rfc3339, ns_to_datetime

_log = structlog.get_logger("slackwater.pipeline.epochs.schema_watch")


class SchemaWatch:
    """Tells a sink of current rows which tables and columns of an epoch are not the former ones.

    Args:
        source: the change stream.
        sink: is told.
    """

    def __init__(self, source: SourceHandle, sink: CurrentRows) -> None:
        self._source = source
        self._sink = sink
        self._last: SchemaAt | None = None
        self._has_warned = False

    def look(self, start_ns: int, end_ns: int) -> None:
        """Look at an epoch that is about to be published.

        Args:
            start_ns, end_ns: its cut, both in the past.

        Raises:
            UnsupportedStreamError: the change stream leaves changes out now.
            ReaderError: Spanner can't be read.
        """
        info = read_change_stream_info(self._source.connection)
        refuse_omissions(self._source.options.change_stream.change_stream, info, has_run=True)
        # With a role the information schema shows what was granted to it at that time: a table that
        # it does not show may be there.
        if self._source.options.change_stream.database_role:
            self._warn("the information schema shows a database role only what it may read")
            return
        times = times_to_look_at(start_ns, end_ns)
        schemas = [schema for at_ns in times if (schema := self._schema_at(at_ns)) is not None]
        made = recreated(schemas)
        is_complete = not made.tables or watches_all(self._source.connection, info.dialect)
        self._sink.forget_former(
            Former(
                {table: ns_to_datetime(at_ns) for table, at_ns in made.tables.items()},
                {column: ns_to_datetime(at_ns) for column, at_ns in made.columns.items()},
                is_complete=is_complete,
            )
        )
        self._last = schemas[-1] if schemas else None

    def published(self, end_ns: int) -> None:
        """Do nothing: the sink was told before."""

    def _schema_at(self, at_ns: int) -> SchemaAt | None:
        if self._last is not None and self._last.at_ns == at_ns:
            return self._last
        try:
            return schema_at(self._source.connection, self._source.description.dialect, at_ns)
        except ReaderError:
            if time.time_ns() - at_ns < VERSIONS_KEPT_NS:
                raise
        self._warn(f"Spanner no longer keeps the versions of {format_rfc3339(at_ns)}")
        return None

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "can't see whether tables or columns were dropped and created again", reason=reason
            )
