"""The views over a changelog that show tables, or Datastream's columns: `slackwater sql view`."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from slackwater.commands.chosen_tables import chosen_of
from slackwater.config.settings import Settings
from slackwater.errors import SettingsError
from slackwater.pipeline.source import capture_type, connect
from slackwater.reader.database.watched_tables import Table, watched_tables
from slackwater.spark_sink.envelopes.event import WITH_OLD_VALUES
from slackwater.spark_sink.formats import BIGQUERY
from slackwater.spark_sink.output.application import application_of
from slackwater.spark_sink.output.bigquery.address import parse_address
from slackwater.spark_sink.output.epoch_groups import current_epochs
from slackwater.spark_sink.sinks.changelog import ChangelogSettings
from slackwater.spark_sink.sinks.envelope_settings import EnvelopeSettings
from slackwater.spark_sink.sinks.typed_changelogs import TypedChangelogSettings
from slackwater.spark_sink.sql.quoting import identifier
from slackwater.spark_sink.sql.rebuild_view import (
    WHOLE_ROW_CAPTURE_TYPES,
    create_view,
)
from slackwater.spark_sink.table_names import plain_name, view_names
from slackwater.spark_sink.tables.in_bigquery.changelog_views import datastream_view


def views(settings: Settings, names: Sequence[str]) -> Iterator[str]:
    """Yield a CREATE VIEW statement for each table; nothing is written anywhere.

    Args:
        settings: the pipeline's.
        names: globs of full table names; without any, all tables that the pipeline reads.

    Raises:
        SettingsError: no view can be made of what the pipeline writes.
        NoTableError: no table has such a name.
        TableNameError: two of the pipeline's tables would share a view.
        ReaderError: Spanner failed.
    """
    sink = settings.sink
    if isinstance(sink, TypedChangelogSettings) and sink.format == BIGQUERY:
        yield from _datastream_views(settings, names)
        return
    if not isinstance(sink, ChangelogSettings) or sink.envelope != "record":
        envelope = f" with envelope {sink.envelope}" if isinstance(sink, EnvelopeSettings) else ""
        raise SettingsError(
            f"pipeline {settings.pipeline!r} has sink.kind {sink.kind}{envelope}: views can be made"
            " from changelogs of records, and from typed changelogs in BigQuery."
        )
    if sink.format == BIGQUERY:
        raise SettingsError(
            f"pipeline {settings.pipeline!r} has sink.format {BIGQUERY}: the views are Spark's,"
            " which does not read the table.",
            "sink.kind changelogs has views in BigQuery",
        )
    if settings.filter.when_changed:
        raise SettingsError(
            f"pipeline {settings.pipeline!r} has filter.when_changed, which leaves changes out: a"
            " view over the others would not be its table."
        )
    of_pipeline = _tables_of(settings, names)
    # Also of those that are not chosen: their views may have been made before.
    names_of_views = view_names(table.name for table in of_pipeline.read)
    changes = f"{sink.format}.{identifier(sink.path)}"
    if sink.compacts_epochs:
        changes = current_epochs(changes)
    for table in of_pipeline.chosen:
        yield create_view(
            table.name,
            names_of_views[table.name],
            table.columns,
            table.key,
            changes,
            is_whole_row=of_pipeline.capture_type in WHOLE_ROW_CAPTURE_TYPES,
        )


def _datastream_views(settings: Settings, names: Sequence[str]) -> Iterator[str]:
    of_pipeline = _tables_of(settings, names)
    if of_pipeline.capture_type not in WHOLE_ROW_CAPTURE_TYPES:
        raise SettingsError(
            f"pipeline {settings.pipeline!r} reads changes of value capture type"
            f" {of_pipeline.capture_type}, which have parts of rows, and Datastream's columns are"
            " of whole rows.",
            "Let the change stream capture them (value_capture_type = 'NEW_ROW_AND_OLD_VALUES')",
        )
    for table in of_pipeline.chosen:
        yield datastream_view(
            parse_address(f"{settings.sink.path.rstrip('/')}/{plain_name(table.name)}"),
            application_of(settings.pipeline),
            table.columns,
            table.key,
            has_old_values=of_pipeline.capture_type == WITH_OLD_VALUES,
        )


@dataclass(frozen=True, slots=True)
class _Tables:
    """The tables of a pipeline.

    Attributes:
        read: those that it reads.
        chosen: those of them with the names that were asked for.
        capture_type: the change stream's value capture type.
    """

    read: Sequence[Table]
    chosen: Sequence[Table]
    capture_type: str


def _tables_of(settings: Settings, names: Sequence[str]) -> _Tables:
    source = connect(settings)
    with closing(source.connection):
        watched = watched_tables(source.connection, source.description.dialect)
    read, chosen = (chosen_of(watched, settings, globs) for globs in ((), names))
    return _Tables(read, chosen, capture_type(source.description))
