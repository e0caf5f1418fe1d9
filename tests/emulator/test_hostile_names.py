"""Names with every mark that means something in SQL, read in each way in which tables are read."""

import csv
import io
import json
from collections.abc import Iterator
from functools import partial

import pytest
from google.api_core.exceptions import GoogleAPICallError
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.printing import in_one_line
from slackwater.reader.change_stream import Dialect
from slackwater.reader.database.key_range_read import ReadLimits, read_key_range
from slackwater.reader.database.snapshot_read import select, snapshot, snapshot_part
from slackwater.reader.database.watched_tables import Table, watched_tables
from slackwater.reader.transport.quoting import identifier
from slackwater.testing.emulator import Emulator
from slackwater.testing.emulator_database import update_ddl
from tests.support import hostile_names
from tests.support.changing import ChangingDatabase
from tests.support.command_line import slackwater
from tests.support.emulators import database_on


@pytest.fixture(scope="module", params=list(Dialect), ids=str)
def database(
    request: pytest.FixtureRequest, emulator: Emulator, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ChangingDatabase]:
    folder = str(tmp_path_factory.mktemp("state"))
    made = hostile_names.create(partial(database_on, emulator), Dialect(request.param), folder)
    yield made
    made.close()


def tables(database: ChangingDatabase) -> dict[str, Table]:
    watched = watched_tables(database.clock, database.dialect)
    return {t.name: t for t in watched if hostile_names.KEY in t.key}


def row(dialect: Dialect, table: str) -> dict[str, str]:
    return {name: str(value) for name, value in hostile_names.values(dialect, table, 1).items()}


def test_every_table_is_read_whole_by_its_name(database: ChangingDatabase) -> None:
    by_name, dialect = tables(database), database.dialect
    assert set(by_name) == set(hostile_names.tables(dialect))
    at_ns = database.clock.strong_read_timestamp_ns()

    def read(name: str) -> None:
        (record,) = snapshot(database.clock, dialect, by_name[name], at_ns)
        (mod,) = record.mods
        assert json.loads(str(mod.keys)) | json.loads(str(mod.new_values)) == row(dialect, name)
        limits = ReadLimits(10, 1_000_000, 10)
        (by_key,) = read_key_range(database.clock, by_name[name], None, at_ns, limits).rows
        assert by_key == row(dialect, name)
        sql = select(dialect, by_name[name])
        parts, tokens = database.clock.partitioned_read(sql, at_ns)
        batches = [
            batch
            for token in tokens
            for batch in snapshot_part(
                database.clock, dialect, by_name[name], at_ns, read=parts, token=token
            )
        ]
        assert [batch.num_rows for batch in batches] == [1]

    assert list(hostile_names.failing(list(by_name), read)) == []


def test_changes_come_under_the_names_of_tables_and_columns(database: ChangingDatabase) -> None:
    dialect = database.dialect
    changes = {change.table: {**change.keys, **change.new} for change in database.read()}
    assert changes == {name: row(dialect, name) for name in hostile_names.tables(dialect)}


def test_tail_writes_the_row_of_each_table(database: ChangingDatabase) -> None:
    stream, dialect = database.stream, database.dialect
    named = ["--project", stream.project, "--instance", stream.instance]
    named += ["--database", stream.database, "--change-stream", stream.change_stream]

    def tail(line_format: str) -> str:
        done = slackwater("tail", *named, "--initial-scan-only", "--format", line_format)
        assert done.returncode == 0, done.stderr
        return done.stdout

    names = hostile_names.tables(dialect)
    expected = {name: hostile_names.values(dialect, name, 1) for name in names}
    lines = [json.loads(line) for line in tail("json").splitlines()]
    assert {line["table"]: line["value"]["after"] for line in lines} == expected
    cells = list(csv.DictReader(io.StringIO(tail("csv"))))
    assert {line["table"] for line in cells} == set(map(in_one_line, expected))


def test_no_table_has_a_dot_and_no_two_names_differ_in_case_only(
    database: ChangingDatabase,
) -> None:
    """So a full name has one dot at most, and twins follow each other in time."""
    dialect = database.dialect
    name = hostile_names.quoted(dialect, "x.y")
    for statement in (
        hostile_names.create_table(dialect, "A B"),
        f"CREATE SCHEMA {hostile_names.quoted(dialect, hostile_names.SCHEMA.upper())}",
        hostile_names.create_table(dialect, "other", "c", "C"),
        hostile_names.create_table(dialect, "other").replace("other", "x.y"),
        f"CREATE SCHEMA {name}",
    ):
        with pytest.raises(GoogleAPICallError):
            update_ddl(database.stream, [statement])


@settings(max_examples=60, deadline=None)
@given(
    st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), min_size=1, max_size=20)
    # The emulator takes what begins with this sign for a name of its own, and does not show it.
    .filter(lambda name: not name.startswith("$"))
)
def test_any_quoted_name_is_read_as_that_name(database: ChangingDatabase, name: str) -> None:
    is_limited = database.dialect is Dialect.POSTGRESQL
    short = name.encode()[:60].decode(errors="ignore") if is_limited else name
    sql = f"SELECT 1 AS {identifier(database.dialect, short)}"
    with database.client.snapshot() as snapshot_of_now:
        result = snapshot_of_now.execute_sql(sql)
        list(result)
        (field,) = result.fields
    assert field.name == short
