"""The comparison of mirrors with their tables at one low watermark: `slackwater verify`."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.progress import Progress

from slackwater.commands.chosen_tables import chosen_tables
from slackwater.commands.rescan import repair as request_repair
from slackwater.commands.spark import spark_of
from slackwater.config.filters import filter_of, tables_to_read
from slackwater.config.settings import Settings
from slackwater.errors import SettingsError
from slackwater.pipeline.source import SourceHandle, connect
from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import register_source, stop_spark
from slackwater.printing import show
from slackwater.reader.database.snapshot_read import select
from slackwater.reader.database.watched_tables import Table, watched_tables
from slackwater.scheduler.spark.scan_options import ScanOptions
from slackwater.scheduler.spark.scan_reader import tables_to_json
from slackwater.scheduler.spark.scan_source import FORMAT, SpannerScanDataSource
from slackwater.spark_sink.comparison import RANGES, Comparison, compare
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.sinks.mirrors import MirrorSettings
from slackwater.spark_sink.sql.columns import columns_from_schema, mirror_columns
from slackwater.spark_sink.sql.latest_changes import whole_rows
from slackwater.spark_sink.table_names import plain_name
from slackwater.spark_sink.tables.mirror_table import (
    conformed,
    read_mirror,
    without_nulls_in_arrays,
)
from slackwater.spark_sink.tables.table_store import TableStore
from slackwater.state.models import Scan, ScanPart
from slackwater.timestamp import HALF_MICROSECOND_NS, format_rfc3339, parse_rfc3339


@dataclass(frozen=True, slots=True)
class Verification:
    """The result for one mirror.

    Attributes:
        table: the full name in Spanner.
        low_watermark: the time as of which both were read; None if the mirror states none.
        comparison: None if there is no mirror.
    """

    table: str
    low_watermark: str | None
    comparison: Comparison | None

    @property
    def is_equal(self) -> bool:
        """True if the mirror equals its table."""
        return self.comparison is not None and self.comparison.is_equal

    def json_fields(self) -> dict[str, Any]:
        """Return the result as JSON fields."""
        return {**asdict(self), "is_equal": self.is_equal}

    def text(self) -> str:
        """Return the result for people, in one line or more."""
        comparison = self.comparison
        if comparison is None:
            return f"no mirror {self.table}: it does not exist, or states no low watermark yet"
        if comparison.is_equal:
            return f"equal     {self.table}: {comparison.rows} rows at {self.low_watermark}"
        lines = [
            f"different {self.table}: of {comparison.rows} rows, {comparison.missing} missing,"
            f" {comparison.unexpected} unexpected, {comparison.different} different, in"
            f" {comparison.ranges} of {RANGES} key ranges, at {self.low_watermark}",
            *(f"          {example.kind} {example.key}" for example in comparison.examples),
        ]
        return "\n".join(lines)


def print_results(settings: Settings, names: Sequence[str], *, as_json: bool, repair: bool) -> bool:
    """Print the result for each mirror; return whether all are equal.

    Args:
        settings, names: see verify().
        as_json: print JSON.
        repair: request rescans of those that differ.

    Raises:
        SettingsError, NoTableError, ReaderError, SinkError, StateError: see verify().
    """
    different: list[str] = []
    for result in verify(settings, names):
        different += [] if result.is_equal else [result.table]
        show(json.dumps(result.json_fields()) if as_json else result.text())
    if different and repair:
        for line in request_repair(settings, different):
            show(line, to_errors=True)
    return not different


def verify(settings: Settings, names: Sequence[str]) -> Iterator[Verification]:
    """Compare each mirror with its table; change neither. The pipeline may run meanwhile.

    Args:
        settings: the pipeline's.
        names: globs of full table names; without any, all tables that the pipeline reads.

    Raises:
        SettingsError: the pipeline does not write mirrors.
        NoTableError: the change stream watches no table with such a name.
        ReaderError: Spanner failed; or the database's version retention period has passed.
    """
    with mirror_source(settings, names) as source:
        register_source(source.spark, SpannerScanDataSource)
        is_shown = sys.stderr.isatty()
        with Progress(console=Console(stderr=True), transient=True, disable=not is_shown) as bar:
            for table in bar.track(source.chosen, description="tables"):
                yield _verify(source, settings, table)


@dataclass(frozen=True, slots=True)
class MirrorSource:
    """Both sides of a comparison: a pipeline's mirrors, and Spanner.

    Attributes:
        spark: a session.
        handle: the pipeline's change stream.
        chosen: the full names of the tables to compare.
        tables: where the mirrors are.
    """

    spark: SparkSession
    handle: SourceHandle
    chosen: tuple[str, ...]
    tables: TableStore
    _sink: MirrorSettings
    _filter: RecordFilter

    def mirror(self, table: str) -> tuple[DataFrame, int] | None:
        """Return a mirror's rows at the low watermark that it states, and that; None if none."""
        path = f"{self._sink.path.rstrip('/')}/{plain_name(table)}"
        stated = read_mirror(
            self.spark,
            path,
            self.tables,
            keeps_deleted=self._sink.deletes == "mark",
        )
        # Whole microseconds, like commit timestamps.
        return None if stated is None else (stated[0], parse_rfc3339(stated[1]))

    def table(self, name: str, at_ns: int) -> Table | None:
        """Return a table as it was at a time; None if the pipeline did not read it then."""
        dialect = self.handle.description.dialect
        then = tables_to_read(watched_tables(self.handle.connection, dialect, at_ns), self._filter)
        return next((table for table in then if table.name == name), None)


@contextmanager
def mirror_source(settings: Settings, names: Sequence[str]) -> Iterator[MirrorSource]:
    """Connect to Spanner and start Spark, for the time of the context; arguments as for verify().

    Raises:
        SettingsError: the pipeline does not write mirrors.
        NoTableError: the change stream watches no table with such a name.
        ReaderError: Spanner can't be reached.
    """
    if not isinstance(settings.sink, MirrorSettings):
        raise SettingsError(
            f"pipeline {settings.pipeline!r} has sink.kind {settings.sink.kind}: only mirrors can"
            " be verified.",
        )
    find_java()
    handle = connect(settings)
    with closing(handle.connection):
        chosen = tuple(table.name for table in chosen_tables(settings, handle, names))
        spark = spark_of([settings])
        try:
            yield MirrorSource(
                spark,
                handle,
                chosen,
                settings.sink.tables(settings.pipeline),
                settings.sink,
                filter_of(settings),
            )
        finally:
            stop_spark(spark)


def _verify(source: MirrorSource, settings: Settings, name: str) -> Verification:
    stated = source.mirror(name)
    if stated is None:
        return Verification(name, None, None)
    mirror, at_ns = stated
    # The table had other columns then, or did not exist.
    table = source.table(name, at_ns)
    if table is None:
        return Verification(name, None, None)
    expected = _rows(source.spark, settings, source.handle, table, at_ns)
    if not source.tables.has_nulls_in_arrays:
        expected = without_nulls_in_arrays(expected)
    columns = mirror_columns(columns_from_schema(table.columns, table.key))
    key = [column.name for column in columns if column.is_key]
    return Verification(
        name,
        format_rfc3339(at_ns),
        compare(expected, conformed(mirror, expected.schema), key),
    )


def _rows(
    spark: SparkSession, settings: Settings, source: SourceHandle, table: Table, at_ns: int
) -> DataFrame:
    """Return the rows of a table in Spanner as of a time, in the types of its mirror."""
    connection, dialect = source.connection, source.description.dialect
    read, tokens = connection.partitioned_read(select(dialect, table), at_ns)
    parts = [ScanPart(number, 0, table.name, token) for number, token in enumerate(tokens)]
    scan = Scan(
        settings.pipeline,
        at_ns + HALF_MICROSECOND_NS,
        read.session,
        read.transaction_id,
        tables_to_json([table]),
    )
    change_stream, data_boost = source.options.change_stream, settings.spanner().data_boost
    options = ScanOptions(change_stream, dialect, scan, parts, data_boost)
    rows = spark.read.format(FORMAT).options(**options.hand_over()).load()
    columns = mirror_columns(columns_from_schema(table.columns, table.key))
    return whole_rows(rows, table.name, columns).select("row.*")
