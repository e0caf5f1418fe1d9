"""The options of `slackwater tail`, which are a changefeed's, and the tail that they describe."""

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, get_args

import pyarrow as pa

from slackwater.config.filters import tables_to_read
from slackwater.config.load import file_or_default, load_settings
from slackwater.config.settings import Settings
from slackwater.config.source_values import source_values
from slackwater.errors import TailOptionError
from slackwater.pipeline.source import capture_type, unmatched_globs
from slackwater.printing import show
from slackwater.reader.bigtable.table import BigtableTable
from slackwater.reader.change_stream import Dialect
from slackwater.reader.database.snapshot_read import snapshot
from slackwater.reader.database.watched_tables import watched_tables
from slackwater.reader.decode.arrow import data_columns, to_record_batch
from slackwater.reader.errors import StartInFutureError, StartTooOldError
from slackwater.reader.query_outcome import earliest_start_ns
from slackwater.reader.schema import SCHEMA
from slackwater.reader.transport.connection import Connection
from slackwater.scheduler.notebook_options import checked
from slackwater.scheduler.options import SourceOptions, StreamOptions
from slackwater.scheduler.planner import Planner
from slackwater.scheduler.read_options import AuditMode
from slackwater.scheduler.source_settings import (
    KEEP_MS,
    BigtableSettings,
    BoundedSettings,
    ReadingSettings,
    StreamSettings,
    options_of,
)
from slackwater.scheduler.spanner_source import SpannerSource
from slackwater.scheduler.tasks.task import read_task
from slackwater.spark_sink.envelopes.changefeed import ENRICHED, SOURCE, EnrichedProperty
from slackwater.spark_sink.envelopes.envelope import Envelope, EnvelopeOptions, Origin
from slackwater.spark_sink.envelopes.registry import envelopes, with_changefeed_options
from slackwater.spark_sink.filters.change_filter import require_shown_changes
from slackwater.spark_sink.filters.column_filter import ColumnFilter
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.state.store import Store
from slackwater.tail.line_format import LineFormat, LineFormatter
from slackwater.tail.tail import Tail, TailedEpochs
from slackwater.tail.terminal import Write, write_until_ended
from slackwater.timestamp import (
    NANOSECONDS_PER_MICROSECOND,
    floor_to_us,
    format_rfc3339,
    parse_duration_ms,
    parse_rfc3339,
)

NAMES: Final = ("project", "instance", "database", "change_stream")
# CockroachDB's own form: nanoseconds, and a logical counter after the point.
_DECIMAL: Final = re.compile(r"(\d{15,20})(?:\.\d+)?")
_COLUMN_FLAGS: Final = {
    "columns": "--column",
    "exclude_columns": "--exclude-column",
    "when_changed": "--when-changed",
}
_PIPELINE: Final = "tail"
_ENVELOPE: Final = "wrapped"
_ORDER: Final = [
    (name, "ascending") for name in ("commit_timestamp", "server_transaction_id", "record_sequence")
]
_OF_SPANNER: Final = (
    *("updated", "mvcc_timestamp", "enriched_properties", "encode_json_value_null_as_object"),
    *("initial_scan", "initial_scan_only"),
)
# CockroachDB's name for a changefeed that a client reads.
_SINK: Final = "sinkless buffer"
# Rows of an initial scan that become one batch.
_SCAN_BATCH_ROWS: Final = 1_000
# An epoch is held in memory until it is in order.
_EPOCH_SETTINGS: Final[Mapping[str, int]] = {"target_records": 100_000, "target_time": 5_000}


@dataclass(frozen=True, slots=True)
class ChangefeedOptions:
    """The options of a changefeed, as the command line has them.

    Attributes:
        config: a settings file, whose source and filter apply; None for DEFAULT_FILE, unless the
            options name the change stream.
        pipeline: the pipeline of the file, if it has several.
        source_values: keys of the section source; they override the file's.
        filter_fields: fields of a Filter; they override the file's.
        line_format, envelope, updated, mvcc_timestamp: the form of changes.
        cursor: write changes committed after this time; None for now.
        end_time: write changes committed up to this time, and end; None for never.
        initial_scan: write the rows as of the cursor first.
        initial_scan_only: write these rows, and nothing else.
        resolved: the least time between resolved lines; None to write none.
        enriched_properties: what the envelope enriched adds, separated by commas.
        encode_json_value_null_as_object: see EnvelopeOptions.
    """

    source_values: Mapping[str, str]
    filter_fields: Mapping[str, Any]
    line_format: LineFormat
    envelope: str
    updated: bool
    mvcc_timestamp: bool
    initial_scan: bool
    initial_scan_only: bool
    config: Path | None = None
    pipeline: str | None = None
    cursor: str | None = None
    end_time: str | None = None
    resolved: str | None = None
    enriched_properties: str | None = None
    encode_json_value_null_as_object: bool = False


def from_command_line(values: Mapping[str, Any]) -> ChangefeedOptions:
    """Return the options, from the parameters of the command by their names.

    Raises:
        SettingsError: a --source is not KEY=VALUE.
    """
    fields = {field.name for field in dataclasses.fields(RecordFilter)}
    return ChangefeedOptions(
        source_values={
            **source_values(values.get("source", ())),
            **{name: values[name] for name in NAMES if name in values},
        },
        filter_fields={name: value for name, value in values.items() if name in fields},
        **{
            name: value for name, value in values.items() if name not in {*NAMES, *fields, "source"}
        },
    )


def tail(options: ChangefeedOptions) -> None:
    """Write changes to standard output until the end_time, a signal or a closed pipe.

    Raises:
        TailOptionError, SettingsError, OptionError: an option is wrong; the message names it.
        UnknownChangesError: the change stream does not show the columns that the filter needs.
        MissingExtraError: Bigtable's client is not installed.
        ReaderError, SchedulerError, StateError: the source or the store failed.
    """
    _require_compatible(options)
    settings = _settings(options)
    model = _model(settings, options)
    record_filter = _record_filter(settings, options.filter_fields)
    resolved_ms = None if options.resolved is None else _duration_ms(options.resolved)
    if model is BigtableSettings:
        _require_plain(options, names_table=settings is None)

    def work(write: Write, folder: Path) -> None:
        source = _source_options(model, settings, options, folder)
        with closing(Store.open(source.state_url, migrate=True)) as store:
            if model is BigtableSettings:
                _tail_table(source, store, options.line_format, resolved_ms, write)
            else:
                _tail_stream(source, store, options, record_filter, resolved_ms, write)

    try:
        write_until_ended(work)
    except (StartTooOldError, StartInFutureError) as error:
        # Its hint is for pipelines, which have other ways to begin.
        earliest_ns = earliest_start_ns(error.message)
        time = f", {format_rfc3339(earliest_ns)} or later" if earliest_ns is not None else ""
        raise TailOptionError(
            error.message, f"Use another --cursor{time}; without one it starts now"
        ) from error


def _tail_stream(
    source: StreamOptions,
    store: Store,
    options: ChangefeedOptions,
    record_filter: RecordFilter,
    resolved_ms: int | None,
    write: Write,
) -> None:
    formatter = LineFormatter(
        options.line_format, _envelope(options, source), record_filter, resolved_ms
    )
    with closing(Connection(source.change_stream)) as connection:
        changes = SpannerSource(connection, source.heartbeat_ms)
        if record_filter.when_changed:
            require_shown_changes(capture_type(changes.info()))
        for wrong in unmatched_globs(connection, changes.dialect, record_filter):
            show(f"{wrong.message} {wrong.hint}", to_errors=True)
        scan = partial(_scan, connection, changes.dialect, record_filter)
        Tail(
            source,
            TailedEpochs(
                Planner(source, changes, store),
                partial(read_task, store=store, source=changes, options=source.read),
                SCHEMA,
                _ORDER,
            ),
            store,
            formatter,
            write,
            scan=scan if options.initial_scan or options.initial_scan_only else None,
            is_scan_only=options.initial_scan_only,
        ).run()


def _tail_table(
    source: SourceOptions[BigtableTable],
    store: Store,
    line_format: LineFormat,
    resolved_ms: int | None,
    write: Write,
) -> None:
    # With an extra that not everybody has.
    from slackwater.tail.bigtable import TableLines, epochs_of

    table = source.change_stream
    envelope = envelopes()[_ENVELOPE](
        EnvelopeOptions(Origin(_PIPELINE, table.project, table.instance))
    )
    formatter = TableLines(line_format, envelope, RecordFilter(), resolved_ms, table.table)
    with epochs_of(source, store) as epochs:
        Tail(source, epochs, store, formatter, write).run()


def _model(settings: Settings | None, options: ChangefeedOptions) -> type[BoundedSettings]:
    """Return the source: the file's, or without one a table's if names and --table are given."""
    if settings is not None:
        is_of_bigtable = isinstance(settings.source, BigtableSettings)
    else:
        names = set(NAMES) & options.source_values.keys()
        tables = options.filter_fields.get("tables", ())
        is_of_bigtable = names == set(NAMES[:2]) and len(tables) == 1
    return BigtableSettings if is_of_bigtable else StreamSettings


def _require_plain(options: ChangefeedOptions, *, names_table: bool) -> None:
    """Check that there are no options that are Spanner's alone.

    Raises:
        TailOptionError: names them.
    """
    filters = options.filter_fields.keys() - ({"tables"} if names_table else set())
    wrong = [name for name in _OF_SPANNER if getattr(options, name)] + sorted(filters)
    if wrong or options.envelope != _ENVELOPE:
        what = ", ".join(wrong or ["envelope"]).replace("_", " ")
        raise TailOptionError(f"options for Spanner's changes, not for Bigtable's: {what}.")


def _settings(options: ChangefeedOptions) -> Settings | None:
    """Return the settings of a file, if there is one that is to be used."""
    is_named = set(NAMES) <= options.source_values.keys()
    path = options.config if is_named else file_or_default(options.config)
    return None if path is None else load_settings(path, pipeline=options.pipeline)


def _require_compatible(options: ChangefeedOptions) -> None:
    """Check options that exclude each other.

    Raises:
        TailOptionError: names the options.
    """
    if options.envelope not in envelopes():
        raise TailOptionError(
            f"--envelope {options.envelope} is not one of {', '.join(envelopes())}."
        )
    if _has_timestamps(options) and options.envelope not in with_changefeed_options():
        raise TailOptionError(
            f"--updated and --mvcc-timestamp can't be used with --envelope {options.envelope}.",
            f"Use them with {' or '.join(with_changefeed_options())}; the other envelopes have the"
            " commit timestamp already, or have no place for it",
        )
    _require_changefeed_options(options)
    if options.initial_scan_only and options.end_time is not None:
        raise TailOptionError(
            "--end-time can't be used with --initial-scan-only, which ends by itself."
        )


def _require_changefeed_options(options: ChangefeedOptions) -> None:
    """Check the options that not all envelopes of CockroachDB's changefeeds take.

    Raises:
        TailOptionError: names the options.
    """
    is_enriched = options.envelope == ENRICHED
    properties = _enriched_properties(options.enriched_properties)
    if properties and not is_enriched:
        raise TailOptionError(
            f"--enriched-properties can't be used with --envelope {options.envelope}."
        )
    if is_enriched and _has_timestamps(options) and SOURCE not in properties:
        raise TailOptionError(
            "--updated and --mvcc-timestamp are fields of source in the envelope enriched.",
            f"Use them with --enriched-properties {SOURCE}",
        )
    names = with_changefeed_options()
    if options.encode_json_value_null_as_object and options.envelope not in names:
        raise TailOptionError(
            f"--encode-json-value-null-as-object can't be used with --envelope {options.envelope}.",
            f"Use it with {' or '.join(names)}",
        )


def _has_timestamps(options: ChangefeedOptions) -> bool:
    return options.updated or options.mvcc_timestamp


def _enriched_properties(text: str | None) -> tuple[EnrichedProperty, ...]:
    names = [] if text is None else [name.strip() for name in text.split(",")]
    properties = tuple(name for name in get_args(EnrichedProperty) if name in names)
    if len(properties) != len(set(names)):
        raise TailOptionError(f"--enriched-properties: {text!r} is not source, schema or both.")
    return properties


def _envelope(options: ChangefeedOptions, source: StreamOptions) -> Envelope:
    stream = source.change_stream
    origin = Origin(
        _PIPELINE, stream.project, stream.instance, stream.database, stream.change_stream
    )
    envelope_options = EnvelopeOptions(
        origin,
        options.updated,
        options.mvcc_timestamp,
        enriched_properties=_enriched_properties(options.enriched_properties),
        sink=_SINK,
        encode_json_value_null_as_object=options.encode_json_value_null_as_object,
    )
    return envelopes()[options.envelope](envelope_options)


def _record_filter(settings: Settings | None, filter_fields: Mapping[str, Any]) -> RecordFilter:
    in_file = {} if settings is None else settings.filter.model_dump()
    # The file's own fields were checked when it was loaded.
    for field, flag in _COLUMN_FLAGS.items():
        try:
            ColumnFilter(filter_fields.get(field, ()))
        except ValueError as error:
            raise TailOptionError(f"{flag}: {error}.") from error
    return RecordFilter(**{**in_file, **filter_fields})


def _scan(
    connection: Connection, dialect: Dialect, record_filter: RecordFilter, at_ns: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all watched tables that pass the filter, as of a time."""
    for table in tables_to_read(watched_tables(connection, dialect, at_ns), record_filter):
        rows = snapshot(connection, dialect, table, at_ns)
        while chunk := list(islice(rows, _SCAN_BATCH_ROWS)):
            data = data_columns(chunk)
            yield to_record_batch(data, [("", len(chunk))], low_watermark_ns=at_ns)


def _source_options(
    model: type[BoundedSettings],
    settings: Settings | None,
    options: ChangefeedOptions,
    folder: Path,
) -> SourceOptions[Any]:
    """Return the source's options: the stream, the bounds and the store.

    Raises:
        OptionError: a name or a time is not valid.
        TailOptionError: the change stream is not named completely, or a time is not valid.
    """
    stream = checked(model, _stream(model, settings, options))
    reading: ReadingSettings = ReadingSettings() if settings is None else settings.epoch
    reading = reading.model_copy(update={**_EPOCH_SETTINGS, "audit": AuditMode.STOP})
    return options_of(
        stream,
        reading,
        os.environ,
        pipeline=_PIPELINE,
        state_url=f"sqlite:///{folder / 'state.db'}",
        keep_ms=KEEP_MS if settings is None else settings.state.keep,
        traces=False,
        records_epochs=True,
    )


def _stream(
    model: type[BoundedSettings], settings: Settings | None, options: ChangefeedOptions
) -> dict[str, Any]:
    """Return the change stream, the options of its queries, and the bounds."""
    merged: dict[str, Any] = {}
    if settings is not None:
        names = model.model_fields.keys() - {"start", "end"}
        merged = settings.source.model_dump(include=set(names))
    elif model is BigtableSettings:
        [merged["table"]] = options.filter_fields["tables"]
    merged |= options.source_values
    missing = [name for name in NAMES if name in model.model_fields and name not in merged]
    if missing:
        flags = [f"--{name.replace('_', '-')}" for name in missing]
        raise TailOptionError(
            f"missing: {', '.join(flags)}.",
            "Name the change stream with a settings file, -c FILE, or with "
            + " ".join(f"{flag} NAME" for flag in flags),
        )
    return {**merged, **_start_and_end(options)}


def _start_and_end(options: ChangefeedOptions) -> dict[str, str]:
    limits = {}
    if options.cursor is not None:
        # Changes committed at the cursor itself have been written before.
        after_ns = floor_to_us(_time_ns("--cursor", options.cursor)) + NANOSECONDS_PER_MICROSECOND
        limits["start"] = format_rfc3339(after_ns)
    if options.end_time is not None:
        limits["end"] = format_rfc3339(_time_ns("--end-time", options.end_time))
    return limits


def _time_ns(option: str, text: str) -> int:
    if match := _DECIMAL.fullmatch(text):
        return int(match.group(1))
    try:
        return parse_rfc3339(text)
    except ValueError as error:
        raise TailOptionError(
            f"{option}: {error}.", "Nanoseconds since the Unix epoch are accepted, too"
        ) from error


def _duration_ms(text: str) -> int:
    try:
        return parse_duration_ms(0 if text == "0" else text)
    except ValueError as error:
        raise TailOptionError(f"--resolved: {error}.") from error
