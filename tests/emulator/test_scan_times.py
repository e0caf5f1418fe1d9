"""An initial scan reads the tables and columns of its own time, whatever was created since."""

import json
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slackwater.config.settings import Settings
from slackwater.pipeline.initial_scan import InitialScan
from slackwater.pipeline.pipeline_source import with_start_fixed, with_tables
from slackwater.pipeline.source import connect
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.scheduler.spark.scan_reader import tables_from_json
from slackwater.state.models import Scan
from slackwater.testing.emulator_database import update_ddl
from slackwater.timestamp import floor_to_us, format_rfc3339
from tests.support.changing import spell, table
from tests.support.command_line import slackwater
from tests.support.emulators import NewDatabase
from tests.support.services import settings as settings_of

T_WAS = {"Id", "A", "B"}


def database_of(new_database: NewDatabase, dialect: Dialect) -> ChangeStream:
    return new_database(dialect, [table(dialect, "`T`"), "CREATE CHANGE STREAM s FOR ALL"], "s")


def clock_ns(stream: ChangeStream) -> int:
    with closing(Connection(stream)) as connection:
        return connection.strong_read_timestamp_ns()


def add_table_and_column(stream: ChangeStream, dialect: Dialect) -> None:
    more = [table(dialect, "`U`"), "ALTER TABLE `T` ADD COLUMN `C` STRING(10)"]
    update_ddl(stream, [spell(dialect, text) for text in more])


def scan_settings(stream: ChangeStream, folder: Path, start: str) -> Settings:
    values = settings_of(stream, folder, start)
    values["source"]["initial_scan"] = "yes"
    return Settings.model_validate(values)


def cut(settings: Settings) -> list[Scan]:
    """Return the scans that two starts of a process begin, which fail before they are recorded."""
    settings, looked_up = with_start_fixed(settings, connect(settings), 0.0)
    source = with_tables(looked_up)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
    unused: Any = SimpleNamespace(lifecycle=None)
    with closing(source.connection):
        scan = InitialScan(spark, settings, source, unused, unused, unused, unused, unused)
        return [scan._cut()[0] for _ in range(2)]


@pytest.mark.parametrize("dialect", list(Dialect), ids=str)
def test_tables_and_columns_that_were_added_since_the_start_are_not_read(
    dialect: Dialect, new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = database_of(new_database, dialect)
    start_ns = clock_ns(stream)
    add_table_and_column(stream, dialect)
    scan, _ = cut(scan_settings(stream, tmp_path, format_rfc3339(floor_to_us(start_ns))))
    # A microsecond earlier, a stream that was created just then would watch nothing.
    assert floor_to_us(scan.at_ns) == floor_to_us(start_ns)
    tables = tables_from_json(scan.tables)
    assert {name: set(one.columns) for name, one in tables.items()} == {"T": T_WAS}
    options = ("--initial-scan-only", "--format", "json", "--envelope", "row")
    named = ("--project", "--instance", "--database", "--change-stream")
    values = (stream.project, stream.instance, stream.database, stream.change_stream)
    source = [word for pair in zip(named, values, strict=True) for word in pair]
    done = slackwater("tail", *source, "--cursor", str(start_ns), *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line)["value"] for line in done.stdout.splitlines()] == []


def test_a_scan_of_now_that_has_not_begun_takes_a_later_time_when_it_is_resumed(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    """An operator may resume it when Spanner no longer has the versions of its first time."""
    stream = database_of(new_database, Dialect.GOOGLE_STANDARD_SQL)
    first, second = cut(scan_settings(stream, tmp_path, "now"))
    assert second.at_ns > first.at_ns
