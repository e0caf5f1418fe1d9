"""The versions of all mirrors at one time: `slackwater as-of`."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from slackwater.commands.options import CutFormat
from slackwater.commands.spark import spark_of
from slackwater.config.settings import Settings
from slackwater.config.sinks import make_sink
from slackwater.errors import NoTableError, SettingsError
from slackwater.pipeline.recovery import LAST
from slackwater.pipeline.signals import termination_signals
from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import stop_spark
from slackwater.printing import show
from slackwater.spark_sink.errors import AsOfTimeError
from slackwater.spark_sink.sinks.mirrors import Mirrors, MirrorSettings
from slackwater.spark_sink.table_names import view_names
from slackwater.spark_sink.tables.cut import Cut
from slackwater.timestamp import datetime_to_rfc3339, ns_to_datetime, parse_rfc3339

_NO_ROWS: Final = "no rows yet"
_CHOOSE: Final = "Or choose with --table"


# Returns the versions at a time; None for the latest.
_CutAt = Callable[[datetime | None], Cut]


def as_of(settings: Settings, at: str, names: Sequence[str]) -> Cut:
    """Return the versions of all mirrors at the newest low watermark at or before a time.

    It writes nothing, and needs neither Spanner nor the metadata store. The pipeline may run
    meanwhile.

    Args:
        settings: the pipeline's.
        at: the time in RFC 3339, or "last".
        names: globs of full table names; without any, all tables.

    Raises:
        SettingsError: the pipeline does not write mirrors, or the time is not valid.
        NoTableError: no mirror has such a name.
        AsOfTimeError: the mirrors do not go back to that time.
    """
    parsed = None if at == LAST else _parsed(at)
    with _mirrors_of(settings, names) as cut_at:
        return cut_at(parsed)


def follow(
    settings: Settings,
    at: str,
    names: Sequence[str],
    file: Path,
    cut_format: CutFormat,
    every_s: float,
) -> None:
    """Keep a file with the latest versions of all mirrors, until a signal ends it.

    The file changes as a whole. Until all mirrors state a low watermark there is none.

    Args:
        settings, at, names: see as_of(); the time is "last".
        file: the file's path.
        cut_format: what it has.
        every_s: seconds from one look at the mirrors to the next.

    Raises:
        SettingsError: see as_of(); the time is another one, or the file can't be written.
        NoTableError: see as_of().
    """
    if at != LAST:
        raise SettingsError(f"--follow goes with the time {LAST} only.")
    written: Cut | None = None
    with termination_signals() as stopped, _mirrors_of(settings, names) as cut_at:
        stopped.listen()
        while not stopped.is_set():
            begun_s = time.monotonic()
            try:
                cut = cut_at(None)
            except AsOfTimeError as error:
                # Mirrors that are new, or read again, lack rows for a time.
                show(f"waiting: {error.message}", to_errors=True)
            else:
                if cut != written:
                    _write(file, text_of(cut, cut_format))
                    written = cut
            stopped.wait(max(0.0, begun_s + every_s - time.monotonic()))


def _write(file: Path, text: str) -> None:
    unfinished = file.with_name(f".{file.name}.unfinished")
    try:
        unfinished.write_text(f"{text}\n", encoding="utf-8")
        os.replace(unfinished, file)
    except OSError as error:
        raise SettingsError(
            f"--follow: {file} can't be written: {error.strerror}.", "Name another file"
        ) from error


@contextmanager
def _mirrors_of(settings: Settings, names: Sequence[str]) -> Iterator[_CutAt]:
    """Start Spark, and yield what returns the versions of mirrors; see as_of()."""
    sink = settings.sink
    if not isinstance(sink, MirrorSettings):
        raise SettingsError(
            f"pipeline {settings.pipeline!r} has sink.kind {sink.kind}: only mirrors have a version"
            " as of a time.",
        )
    mirrors = make_sink(settings)
    assert isinstance(mirrors, Mirrors)  # noqa: S101 - which MirrorSettings make
    find_java()
    spark = spark_of([settings])

    def cut_at(at: datetime | None) -> Cut:
        cut = mirrors.as_of(spark, at, names)
        if names and not cut.tables:
            raise NoTableError(f"{sink.path} has no mirror named {', '.join(names)}.")
        return cut

    try:
        yield cut_at
    finally:
        stop_spark(spark)


def text_of(cut: Cut, cut_format: CutFormat) -> str:
    """Return the versions as text for people, as statements, or as JSON."""
    if cut_format is CutFormat.JSON:
        return json.dumps(_json_fields(cut), indent=2)
    if cut_format is CutFormat.SQL:
        return "\n".join(_statements(cut))
    width = max((len(table.table) for table in cut.tables), default=0)
    return "\n".join(
        [
            f"low watermark {datetime_to_rfc3339(cut.low_watermark)}",
            *(
                f"{table.table:{width}}  {_NO_ROWS if table.version is None else table.version}"
                for table in cut.tables
            ),
        ]
    )


def _parsed(time: str) -> datetime:
    try:
        return ns_to_datetime(parse_rfc3339(time))
    except ValueError as error:
        raise SettingsError(f"TIME: {error}.", f"Use an RFC 3339 time, or {LAST}") from error


def _json_fields(cut: Cut) -> dict[str, Any]:
    return {
        "low_watermark": datetime_to_rfc3339(cut.low_watermark),
        "tables": [
            {
                "table": table.table,
                "name": table.name,
                # As a text: ids of Iceberg snapshots are too large for JavaScript and jq.
                "version": None if table.version is None else str(table.version),
            }
            for table in cut.tables
        ],
    }


def _statements(cut: Cut) -> Iterator[str]:
    yield f"-- All mirrors at low watermark {datetime_to_rfc3339(cut.low_watermark)}"
    settings = {key: value for table in cut.tables for key, value in table.settings.items()}
    for key, value in settings.items():
        yield f"SET {key}={value};"
    views = view_names((table.table for table in cut.tables), _CHOOSE)
    for table in cut.tables:
        if table.version is None:
            yield f"-- {_NO_ROWS}:"
        yield f"{table.view_statement} {table.quoted(views[table.table])} AS"
        version = "WHERE false" if table.version is None else table.clause.format(table.version)
        yield f"  SELECT * FROM {table.name} {version};"  # noqa: S608 - the name is quoted
