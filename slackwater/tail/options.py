"""From the options of `slackwater tail` to a tail that runs: what a changefeed's options mean."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from slackwater.config.filters import tables_to_read
from slackwater.config.load import load_settings
from slackwater.config.setting_types import parse_duration_ms
from slackwater.config.settings import Settings
from slackwater.errors import TailOptionError
from slackwater.reader.change_stream import Dialect
from slackwater.reader.database.snapshot_read import snapshot
from slackwater.reader.database.watched_tables import watched_tables
from slackwater.reader.decode.arrow import data_columns, to_record_batch
from slackwater.reader.transport.connection import Connection
from slackwater.scheduler.options import parse_options
from slackwater.scheduler.planner import Planner
from slackwater.scheduler.tasks.partition_reader import SpannerPartitions
from slackwater.spark_sink.envelopes.envelope import (
    WITH_TIMESTAMP_OPTIONS,
    Envelope,
    EnvelopeOptions,
)
from slackwater.spark_sink.envelopes.message import Origin
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.state.store import Store
from slackwater.tail.line_format import LineFormat, LineWriter
from slackwater.tail.tail import Tail
from slackwater.tail.terminal import Terminal
from slackwater.timestamp import (
    NANOSECONDS_PER_MICROSECOND,
    floor_to_us,
    format_rfc3339,
    parse_rfc3339,
)

NAMES: Final = ("project", "instance", "database", "change_stream")
# CockroachDB's own form: nanoseconds, and a logical counter behind the point.
_DECIMAL: Final = re.compile(r"(\d{15,20})(?:\.\d+)?")
_PIPELINE: Final = "tail"
# Rows of an initial scan at once.
_ROWS: Final = 1_000
# An epoch is in memory until it is in order.
_RECORDS_AN_EPOCH: Final = 100_000
_SECONDS_AN_EPOCH: Final = 5


@dataclass(frozen=True, slots=True)
class ChangefeedOptions:
    """The options of a changefeed, as the command line gives them.

    Attributes:
        config: a settings file, whose section source says what is read.
        names: those of NAMES that are given, in the place of the file's.
        kept: fields of a filter that are given, in the place of the file's.
        form, envelope, updated, mvcc_timestamp: how changes are written.
        cursor: write what was committed after this time; None for now.
        end_time: write what was committed up to this time, and end; None for never.
        initial_scan: the rows as they stand at the cursor come first.
        initial_scan_only: and nothing else.
        resolved: the least time between resolved lines; None for none of them.
    """

    config: Path | None
    names: Mapping[str, str]
    kept: Mapping[str, Any]
    form: LineFormat
    envelope: Envelope
    updated: bool
    mvcc_timestamp: bool
    cursor: str | None
    end_time: str | None
    initial_scan: bool
    initial_scan_only: bool
    resolved: str | None


def tail(given: ChangefeedOptions) -> None:
    """Write changes to standard output until the end_time, a signal or a closed pipe.

    Raises:
        TailOptionError, SettingsError, OptionError: an option is wrong; the message names it.
        ReaderError, SchedulerError, StateError: what Spanner or the store failed with.
    """
    if given.envelope not in WITH_TIMESTAMP_OPTIONS and (given.updated or given.mvcc_timestamp):
        raise TailOptionError(
            f"--updated and --mvcc-timestamp do not go with --envelope {given.envelope}.",
            f"They go with {' and '.join(WITH_TIMESTAMP_OPTIONS)}; the others have the commit"
            " timestamp, or none",
        )
    if given.initial_scan_only and given.end_time is not None:
        raise TailOptionError("--initial-scan-only ends by itself: leave --end-time out.")
    settings = None if given.config is None else load_settings(given.config)
    kept = _kept(settings, given.kept)
    resolved_ms = None if given.resolved is None else _duration_ms(given.resolved)
    with (
        Terminal() as terminal,
        tempfile.TemporaryDirectory(prefix="slackwater-tail-") as folder,
    ):
        options = parse_options(
            {
                **_source(settings, given.names),
                "pipeline": _PIPELINE,
                "state_url": f"sqlite:///{Path(folder) / 'state.db'}",
                "tasks": "1",
                "max_span_seconds": "86400",
                "target_records": str(_RECORDS_AN_EPOCH),
                "target_seconds": str(_SECONDS_AN_EPOCH),
                **_cut(given),
            },
            os.environ,
        )
        stream = options.change_stream
        connection = Connection(stream)
        store = Store.open(options.state_url, migrate=True)
        planner = Planner(options, connection, store)
        partitions = SpannerPartitions(
            connection, planner.description().dialect, options.heartbeat_ms
        )
        origin = Origin(
            _PIPELINE, stream.project, stream.instance, stream.database, stream.change_stream
        )
        envelope_options = EnvelopeOptions(
            given.envelope, origin, given.updated, given.mvcc_timestamp
        )
        lines = LineWriter(given.form, envelope_options, kept, resolved_ms)
        scan = partial(_scan, connection, planner.description().dialect, kept)
        try:
            Tail(
                options,
                planner,
                store,
                partitions,
                lines,
                terminal.write,
                scan=scan if given.initial_scan or given.initial_scan_only else None,
                is_scan_only=given.initial_scan_only,
            ).run()
        finally:
            store.close()
            connection.close()


def _kept(settings: Settings | None, given: Mapping[str, Any]) -> RecordFilter:
    in_file = {} if settings is None else settings.filter.model_dump()
    try:
        return RecordFilter(**{**in_file, **given})
    except ValueError as error:
        # The file's were looked at already.
        raise TailOptionError(f"--column or --exclude-column: {error}.") from error


def _scan(
    connection: Connection, dialect: Dialect, kept: RecordFilter, at_ns: int
) -> Iterator[pa.RecordBatch]:
    """The rows of all tables that are watched and kept, as they stand at a time."""
    for table in tables_to_read(watched_tables(connection, dialect), kept):
        rows = snapshot(connection, dialect, table, at_ns)
        while some := list(islice(rows, _ROWS)):
            data = data_columns(some)
            yield to_record_batch(data, [("", len(some))], low_watermark_ns=at_ns)


def _source(settings: Settings | None, names: Mapping[str, str]) -> dict[str, str]:
    """Spanner's names, and how its queries are sent."""
    found: dict[str, str] = {}
    if settings is not None:
        from slackwater.pipeline.source import source_options

        options = source_options(settings)
        found = {
            name: value for name, value in options.items() if name not in ("start", "end", "audit")
        }
    found |= names
    missing = [name for name in NAMES if name not in found]
    if missing:
        raise TailOptionError(
            f"what shall be read? {', '.join(missing)} is not given.",
            "Give a settings file with -c FILE, or "
            + " ".join(f"--{name.replace('_', '-')} NAME" for name in missing),
        )
    return found


def _cut(given: ChangefeedOptions) -> dict[str, str]:
    """Where the source starts and ends."""
    found = {}
    if given.cursor is not None:
        # What was committed at the cursor itself has been seen.
        after_ns = floor_to_us(_time_ns("--cursor", given.cursor)) + NANOSECONDS_PER_MICROSECOND
        found["start"] = format_rfc3339(after_ns)
    if given.end_time is not None:
        found["end"] = format_rfc3339(_time_ns("--end-time", given.end_time))
    return found


def _time_ns(option: str, text: str) -> int:
    if match := _DECIMAL.fullmatch(text):
        return int(match.group(1))
    try:
        return parse_rfc3339(text)
    except ValueError as error:
        raise TailOptionError(
            f"{option}: {error}.", "Nanoseconds since the Unix epoch will do, too"
        ) from error


def _duration_ms(text: str) -> int:
    try:
        return parse_duration_ms(0 if text == "0" else text)
    except ValueError as error:
        raise TailOptionError(f"--resolved: {error}.") from error
