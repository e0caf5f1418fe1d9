"""The source that the settings describe: its options, its change stream, its start and end."""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import structlog

from slackwater.column_types import is_of_a_new_type
from slackwater.config.filters import (
    WrongGlob,
    filter_of,
    globs_without_match,
    tables_to_read,
)
from slackwater.config.settings import Settings
from slackwater.errors import SettingsError
from slackwater.reader.change_stream import Dialect
from slackwater.reader.database.change_stream_info import (
    ChangeStreamInfo,
    read_change_stream_info,
    retention_text,
)
from slackwater.reader.database.watched_tables import Table, tables, watched_tables
from slackwater.reader.errors import ReaderError, StartTooOldError, UnsupportedStreamError
from slackwater.reader.schema import SCHEMA
from slackwater.reader.transport.connection import Connection
from slackwater.scheduler.options import SPANNER_FORMAT, SourceOptions, StreamOptions
from slackwater.scheduler.read_options import NOW
from slackwater.scheduler.source_settings import options_of
from slackwater.scheduler.spanner_source import SpannerSource
from slackwater.scheduler.start_position import check_start
from slackwater.spark_sink.filters.change_filter import require_shown_changes
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.sinks.managed_tables import ManagedTableSettings
from slackwater.spark_sink.sinks.message_settings import MessageSettings
from slackwater.spark_sink.sql.columns import columns_from_schema
from slackwater.spark_sink.sql.rebuild_view import DEFAULT_VALUE_CAPTURE_TYPE
from slackwater.spark_sink.sql.table_shape import TableShape
from slackwater.state.errors import StateError
from slackwater.state.models import Scan, ScanPart
from slackwater.state.store import Store
from slackwater.timestamp import (
    datetime_to_ns,
    parse_rfc3339,
)

_log = structlog.get_logger("slackwater.pipeline.source")


def source_options(
    settings: Settings, environ: Mapping[str, str] = os.environ
) -> SourceOptions[Any]:
    """Return the source's options from the settings; the store's URL is not sealed."""
    return options_of(
        settings.source,
        settings.epoch,
        environ,
        pipeline=settings.pipeline,
        state_url=settings.state.url,
        keep_ms=settings.state.keep,
        traces=settings.trace.endpoint is not None,
        records_epochs=True,
    )


@dataclass(frozen=True, slots=True)
class SourceHandle:
    """A change stream of Spanner's that was looked up and can be read; see PipelineSource."""

    format: ClassVar = SPANNER_FORMAT
    schema: ClassVar = SCHEMA
    has_tables: ClassVar = True
    is_cut_by_time: ClassVar = True

    connection: Connection
    description: ChangeStreamInfo
    options: StreamOptions

    def changes(self) -> SpannerSource:
        """Return the change stream as the scheduler's source of records."""
        return SpannerSource(self.connection, self.options.heartbeat_ms, info=self.description)

    @property
    def retention_ns(self) -> int | None:
        """The time for which changes can be read; None if it is not known."""
        return self.description.retention_ns

    def clock_ns(self) -> int:
        """Read Spanner's clock."""
        return self.connection.strong_read_timestamp_ns()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def check(self, settings: Settings) -> None:
        """Check what the change stream shows; see check_omissions() and check_shown_changes()."""
        check_omissions(settings, self)
        check_shown_changes(settings, self)
        dialect, record_filter = self.description.dialect, filter_of(settings)
        for wrong in unmatched_globs(self.connection, dialect, record_filter):
            _log.warning(wrong.message, pipeline=settings.pipeline, hint=wrong.hint)

    def check_new(self, settings: Settings) -> StartTooOldError | None:
        """Check that a new pipeline can start; see check_new()."""
        return check_new(settings, self)

    def with_options(self, settings: Settings) -> "SourceHandle":
        """Return the same with the options of other settings."""
        return replace(self, options=source_options(settings))

    def text(self, settings: Settings) -> str:
        """Return what was looked up, for people."""
        if settings.sink.needs_all_changes:
            check_omissions(settings, self)
        omitted = ", ".join(self.description.omissions)
        return (
            f"{self.options.change_stream.path}, {self.description.dialect}, kept"
            f" {retention_text(self.retention_ns)}"
            f"{omitted and f', leaves changes out: {omitted}'}"
        )


def read_shapes(settings: Settings, source: SourceHandle, at: datetime) -> dict[str, TableShape]:
    """Return the shape of each table as of a time.

    With strict it has the columns that are watched and pass the filter, and no other tables.

    If Spanner no longer keeps that time's version of the schema, it is the present one.

    Raises:
        ReaderError: Spanner can't be read.
    """
    connection, dialect = source.connection, source.description.dialect
    is_strict = isinstance(settings.sink, MessageSettings) and settings.sink.is_strict
    read = watched_tables if is_strict else tables
    try:
        schema = read(connection, dialect, datetime_to_ns(at))
    except ReaderError as error:
        _log.info("the present schema is read", as_of=str(at), reason=error.message)
        schema = read(connection, dialect)
    if is_strict:
        schema = tables_to_read(schema, filter_of(settings))
    return {table.name: TableShape(table.key, table.columns, table.nullable) for table in schema}


def connect(settings: Settings) -> SourceHandle:
    """Look the change stream of Spanner's up; nothing is written anywhere.

    Raises:
        ReaderError: the change stream does not exist, may not be read or can't be reached.
        SettingsError: the pipeline reads Bigtable.
    """
    settings.spanner()
    options = source_options(settings)
    connection = Connection(options.change_stream)
    return SourceHandle(connection, read_change_stream_info(connection), options)


def columns_of_new_types(source: SourceHandle) -> list[dict[str, str]]:
    """Return the watched columns whose values stay texts: their types are new to Slackwater.

    Each has the fields table, column and type.

    Raises:
        ReaderError: Spanner can't be read.
    """
    return of_new_types(watched_tables(source.connection, source.description.dialect))


def of_new_types(tables: Iterable[Table]) -> list[dict[str, str]]:
    """Return such columns of some tables."""
    return [
        {"table": table.name, "column": column, "type": kind}
        for table in tables
        for column, kind in table.columns.items()
        if is_of_a_new_type(kind)
    ]


def capture_type(info: ChangeStreamInfo) -> str:
    """Return the value capture type of a change stream."""
    return info.options.get("value_capture_type", DEFAULT_VALUE_CAPTURE_TYPE)


def unmatched_globs(
    connection: Connection, dialect: Dialect, record_filter: RecordFilter
) -> list[WrongGlob]:
    """Return a filter's globs that match nothing that the change stream watches now.

    It may have watched it before, or may begin to.

    Raises:
        ReaderError: Spanner can't be read.
    """
    if record_filter == RecordFilter():
        return []
    return globs_without_match(watched_tables(connection, dialect), record_filter)


def check_shown_changes(settings: Settings, source: SourceHandle) -> None:
    """Check that the change stream shows the changed columns, for filter.when_changed.

    Raises:
        UnknownChangesError: it does not.
    """
    if settings.filter.when_changed:
        require_shown_changes(capture_type(source.description))


def check_new(settings: Settings, source: SourceHandle) -> StartTooOldError | None:
    """Check that a new pipeline can start at its start.

    Returns:
        That the start is too old, if the pipeline may have begun: then it is not the next start.

    Raises:
        StartTooOldError, StartInFutureError: it can't.
        SettingsError: it is to end before its initial scan.
        PartialRowError: the change stream does not capture the rows that the sink needs.
        ColumnNameError, TableNameError: the output can't have a table or column of that name.
    """
    settings.sink.check_capture_type(capture_type(source.description))
    if isinstance(settings.sink, ManagedTableSettings | MessageSettings):
        watched = watched_tables(source.connection, source.description.dialect)
        settings.sink.check_tables(
            {
                table.name: columns_from_schema(table.columns, table.key)
                for table in tables_to_read(watched, filter_of(settings))
            }
        )
    too_old = None
    try:
        check_start(source.options.start, source.changes())
    except StartTooOldError as error:
        if not may_have_begun(settings):
            raise
        too_old = error
    end = settings.source.end
    if settings.initial_scan != "no" and settings.source.start == NOW and end is not None:
        clock_ns = source.connection.strong_read_timestamp_ns()
        if parse_rfc3339(end) <= clock_ns:
            raise SettingsError(
                f"source.end {end} is in the past, and the initial scan reads the rows of now.",
                "Leave out source.end, or set source.start to an earlier time",
            )
    return too_old


def may_have_begun(settings: Settings) -> bool:
    """Return False if store and output are new, and no disk has a checkpoint."""
    path = settings.sink.checkpoint.removeprefix("file://")
    if not is_new(settings) or "://" in path or Path(path).exists():
        return True
    place = settings.sink.make_place()
    with place.translating():
        return bool(place.names())


def check_omissions(settings: Settings, source: SourceHandle) -> None:
    """Warn of a change stream that leaves changes out; refuse it for a sink that needs them all.

    Raises:
        UnsupportedStreamError: the sink needs all changes.
    """
    name = source.options.change_stream.change_stream
    if settings.sink.needs_all_changes:
        refuse_omissions(name, source.description, has_run=False)
    elif source.description.omissions:
        _log.warning(
            "the change stream leaves changes out",
            change_stream=name,
            options=source.description.omissions,
        )


def refuse_omissions(name: str, info: ChangeStreamInfo, *, has_run: bool) -> None:
    """Refuse a change stream that leaves changes out.

    Args:
        name: the stream's.
        info: its properties.
        has_run: changes may have been left out since they were last looked at.

    Raises:
        UnsupportedStreamError: it does.
    """
    if not info.omissions:
        return
    options = " and ".join(f"{option} = true" for option in info.omissions)
    missing = " Changes since then may be missing: to have them," if has_run else " Or"
    raise UnsupportedStreamError(
        f"change stream {name!r} has {options}, and a mirror without those changes would not be its"
        " table.",
        f"Alter the stream: set {', '.join(info.omissions)} to false.{missing} mirror the tables"
        " from another stream, under another pipeline name, path and checkpoint",
    )


def end_after_scan(
    until_ns: int | None, scan_and_parts: tuple[Scan, Sequence[ScanPart]] | None
) -> int | None:
    """Return the pipeline's last low watermark, which is never before its initial scan.

    With until_caught_up Spanner's clock is read before the scan chooses its time. Everything up to
    there has been caught up with when the scan is over.
    """
    if until_ns is None or scan_and_parts is None:
        return until_ns
    return max(until_ns, scan_and_parts[0].at_ns)


def is_new(settings: Settings) -> bool:
    """Return True if the store has no sign that the pipeline has begun; do not create a store."""
    try:
        store = Store.open(settings.state.url, migrate=False)
    except StateError:
        return True
    with closing(store):
        pipeline = store.pipeline(settings.pipeline)
        return pipeline is None or pipeline.planned_watermark_ns is None
