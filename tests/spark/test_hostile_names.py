"""Tables and columns whose names have every mark, through each kind of sink with real Spark."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from slackwater.reader.change_stream import Dialect
from slackwater.spark_sink.comparison import compare
from slackwater.spark_sink.errors import ColumnNameError, TableNameError
from slackwater.spark_sink.kafka.topics import KafkaTopics
from slackwater.spark_sink.sinks import managed_tables
from slackwater.spark_sink.sinks.mirrors import Mirrors
from slackwater.spark_sink.sinks.typed_changelogs import TypedChangelogs
from slackwater.spark_sink.table_names import plain_name
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.table_format import TableFormat
from slackwater.testing.emulator_database import update_ddl
from tests.support import hostile_names
from tests.support.command_line import rounds_of_verify, slackwater
from tests.support.emulators import NewDatabase
from tests.support.epoch_rows import Mods, Record, make_sink, on_disk, record, write
from tests.support.hostile_names import EVERY_MARK, IN_SCHEMA, KEY, OF_COLUMNS, REFUSED_COLUMN
from tests.support.kafka_broker import kafka_broker as kafka_broker
from tests.support.kafka_broker import read_topics
from tests.support.mirror_epochs import Epochs
from tests.support.mirror_looks import current
from tests.support.services import settings

TABLES = (EVERY_MARK, f"`\n{IN_SCHEMA}", OF_COLUMNS)
POSTGRESQL = Dialect.POSTGRESQL


def values(table: str, number: int) -> dict[str, Any]:
    row = hostile_names.values(POSTGRESQL, table, number)
    return {**row, KEY: str(number)}


def changes(at: int) -> list[Record]:
    """Return the insert of a row into each table."""
    made = []
    for table in TABLES:
        row = values(table, at)
        types = {KEY: "INT64", **{name: "STRING" for name in row if name != KEY}}
        mods: Mods = [({KEY: row.pop(KEY)}, row, {})]
        made.append(record("INSERT", mods, types, at=at, table=table, key=KEY))
    return made


def rows(folder: Path, table: str) -> list[Mapping[str, Any]]:
    """Return the rows of a table in the order of its key, by a reader that is not Spark."""
    return sorted(current(folder / plain_name(table)).rows, key=lambda row: int(row[KEY]))


def expected(table: str, *numbers: int) -> list[Mapping[str, Any]]:
    return [{**values(table, number), KEY: number} for number in numbers]


def change(epochs: Epochs, kind: str, table: str, number: int, **new: Any) -> None:
    """Add a change of a row to an epoch."""
    row = {**values(table, number), **new}
    epochs.table, epochs.types = table, dict.fromkeys(row, "STRING") | {KEY: "INT64"}
    epochs.change(kind, row.pop(KEY), **({} if kind == "DELETE" else row))


@pytest.mark.parametrize(
    "records_max",
    [pytest.param(20_000, id="driver"), pytest.param(0, id="spark", marks=pytest.mark.long)],
)
def test_mirrors_have_the_rows_of_any_table(
    session: SparkSession,
    table_format: TableFormat,
    records_max: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(managed_tables, "_SMALL_RECORDS_MAX", records_max)
    sink = Mirrors(on_disk(tmp_path), "orders", table_format)
    epochs = Epochs(session, sink, {})
    for table in TABLES:
        for number in (1, 2, 3):
            change(epochs, "INSERT", table, number)
    epochs.write()
    last = {table: hostile_names.columns(POSTGRESQL, table)[-1] for table in TABLES}
    for table in TABLES:
        change(epochs, "UPDATE", table, 2, **{last[table]: "changed"})
        change(epochs, "DELETE", table, 3)
    epochs.write()
    for table in TABLES:
        one, two = expected(table, 1, 2)
        assert rows(tmp_path, table) == [one, {**two, last[table]: "changed"}]
    sink._maintain(session, str(tmp_path / plain_name(OF_COLUMNS)))
    assert len(rows(tmp_path, OF_COLUMNS)) == 2
    assert {cut.table for cut in sink.as_of(session, None).tables} == set(TABLES)
    assert [cut.table for cut in sink.as_of(session, None, [OF_COLUMNS]).tables] == [OF_COLUMNS]


def test_typed_changelogs_have_the_changes_of_any_table(
    session: SparkSession, table_format: TableFormat, tmp_path: Path
) -> None:
    sink = TypedChangelogs(on_disk(tmp_path), "orders", table_format)
    write(session, sink, 1, *changes(1))
    for table in TABLES:
        after = [row["after"] for row in current(tmp_path / plain_name(table)).rows]
        assert after == expected(table, 1)
    assert sink.position(session).begun is None


@pytest.mark.parametrize("file_format", ["parquet", "json", "orc", "delta"])
def test_changelogs_in_folders_by_table_have_them_all(
    session: SparkSession, file_format: str, tmp_path: Path
) -> None:
    sink = make_sink(tmp_path / "out", format=file_format, partition_by="table_name")
    sink.position(session)
    write(session, sink, 1, *changes(1))
    read = session.read.format(file_format).load(str(tmp_path / "out"))
    records = {row["table_name"]: row for row in read.collect()}
    assert set(records) == set(TABLES)
    for table, row in records.items():
        (mod,) = row["mods"]
        assert json.loads(mod["keys"]) | json.loads(mod["new_values"]) == values(table, 1)


def test_a_table_is_not_given_what_belongs_to_another_one(
    session: SparkSession, table_format: TableFormat, tmp_path: Path
) -> None:
    """As where a file system or a catalog takes orders for Orders."""
    former = Mirrors(on_disk(tmp_path), "orders", table_format)
    epochs = Epochs(session, former, {"Id": "INT64", "A": "STRING"})
    epochs.table = "Orders"
    epochs.change("INSERT", "1", A="a")
    epochs.write()
    (tmp_path / "orders").symlink_to(tmp_path / "Orders")
    epochs.table = "orders"
    epochs.change("INSERT", "2", A="b")
    for _ in range(2):
        with pytest.raises(
            TableNameError, match="'Orders' and 'orders' would both have"
        ) as refused:
            epochs.write()
    assert refused.value.user_error
    assert str(tmp_path) in refused.value.message
    assert [row["Id"] for row in current(tmp_path / "Orders").rows] == [1]
    # The epoch is not lost: with the place free, it is written.
    (tmp_path / "orders").unlink()
    epochs.write()
    assert [row["Id"] for row in current(tmp_path / "orders").rows] == [2]


def test_a_column_that_a_table_can_not_have_is_named(session: SparkSession, tmp_path: Path) -> None:
    epochs = Epochs(
        session,
        Mirrors(on_disk(tmp_path), "orders", Delta()),
        {"Id": "INT64", REFUSED_COLUMN: "STRING"},
    )
    epochs.change("INSERT", "1", **{REFUSED_COLUMN: "a"})
    with pytest.raises(ColumnNameError, match=f"column T.'{REFUSED_COLUMN}'"):
        epochs.write()


def test_spark_names_topics_as_the_driver_does(session: SparkSession) -> None:
    tables = [*hostile_names.tables(POSTGRESQL), "a_b", "a.b", "日本", "🐟", "+", "a%2Db", "~*_-."]
    names = session.createDataFrame([(table,) for table in tables], "table_name string")
    topic = KafkaTopics("db.{table}", None, None).of_changes()
    made = {row["table_name"]: row["topic"] for row in names.withColumn("topic", topic).collect()}
    assert made == {table: f"db.{plain_name(table)}" for table in tables}


def test_tables_are_compared_by_columns_of_any_name(session: SparkSession) -> None:
    columns = [KEY, *hostile_names.columns(POSTGRESQL, OF_COLUMNS)]
    one = session.range(3).select(*(F.col("id").alias(name) for name in columns))
    other = one.where("`k.y` < 2")
    assert compare(one, one, [KEY]).is_equal
    assert compare(one, other, [KEY]).missing == 1


@pytest.mark.long
@pytest.mark.usefixtures("commands_here")
@pytest.mark.parametrize("dialect", list(Dialect), ids=str)
@pytest.mark.parametrize(
    "sink",
    [
        {"kind": "mirror"},
        {"kind": "mirror", "format": "iceberg"},
        {"kind": "changelogs"},
        {"kind": "changelog", "partition_by": "table_name"},
    ],
    ids=lambda sink: "-".join(sink.values()),
)
def test_a_pipeline_lands_every_table(
    dialect: Dialect,
    sink: dict[str, str],
    new_database: NewDatabase,
    session: SparkSession,
    tmp_path: Path,
) -> None:
    """An initial scan, changes, a table that is new, and each command that names tables."""
    first = (EVERY_MARK, IN_SCHEMA, OF_COLUMNS)
    database = hostile_names.create(new_database, dialect, str(tmp_path), first)
    sections = settings(database.stream, tmp_path, "now")
    sections["sink"] |= {"path": str(tmp_path / "out"), **sink}
    sections["source"]["initial_scan"] = "yes"
    # These are those of every changing database.
    sections["filter"] = {"exclude_tables": ["T", "U"]}
    file = tmp_path / "slackwater.yaml"
    file.write_text(yaml.safe_dump(sections))

    def command(*words: str) -> str:
        done = slackwater(*words, "-c", str(file))
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    assert "wrong" not in command("check")
    command("run", "--until-caught-up")
    new = 'new "1"/x'
    update_ddl(database.stream, [hostile_names.create_table(dialect, new, "v")])
    tables = [*first, new]
    hostile_names.write(database, 2, tables)
    command("run", "--until-caught-up")
    if sink["kind"] == "changelog":
        rows_by_table = views_of(session, command("sql", "view"))
    else:
        rows_by_table = {
            table: current(tmp_path / "out" / plain_name(table)).rows for table in tables
        }
    for table in tables:
        there = [row.get("after") or row for row in rows_by_table[table]]
        numbers = (2,) if table == new else (1, 2)
        if sink["kind"] == "changelogs" and table == new:
            # As a change, and as a row that the table had when it was read.
            numbers = (2, 2)
        written = [hostile_names.values(dialect, table, number) for number in numbers]
        assert sorted(there, key=lambda row: int(row[KEY])) == written
    if sink["kind"] == "mirror":
        command("verify")
        made = command("as-of", "last", "--format", "sql")
        assert made.count("CREATE OR REPLACE") == len(tables)
        command("rescan", "--table", new)
        command("run", "--until-caught-up")
        command("verify")
        rounds = rounds_of_verify(file, len(tables))
        different = sorted((one["table"], one["different"]) for one in rounds)
        assert different == sorted((table, 0) for table in tables)
    assert command("status").startswith("orders: ")
    database.close()


@pytest.mark.long
@pytest.mark.usefixtures("commands_here")
@pytest.mark.parametrize("dialect", list(Dialect), ids=str)
def test_a_pipeline_sends_every_table(
    dialect: Dialect,
    new_database: NewDatabase,
    kafka_broker: str,
    tmp_path: Path,
) -> None:
    """Into a topic for each table, and by kind spark."""
    database = hostile_names.create(new_database, dialect, str(tmp_path))
    sections = settings(database.stream, tmp_path, "now")
    sections["source"]["initial_scan"] = "yes"
    sections["filter"] = {"exclude_tables": ["T", "U"]}
    kinds: dict[str, dict[str, Any]] = {
        "kafka": {
            "envelope": "record",
            "topic": f"{dialect.value}.{{table}}",
            "options": {"kafka.bootstrap.servers": kafka_broker},
        },
        "spark": {"format": "json", "options": {"path": str(tmp_path / "by spark")}},
    }
    for kind, of_kind in kinds.items():
        sections["pipeline"] = f"{kind}-{dialect.value.lower()}"
        sections["sink"] = {
            "kind": kind,
            "path": str(tmp_path / kind),
            "checkpoint": str(tmp_path / f"{kind}-checkpoint"),
            **of_kind,
        }
        (tmp_path / f"{kind}.yaml").write_text(yaml.safe_dump(sections))
        done = slackwater("run", "--until-caught-up", "-c", str(tmp_path / f"{kind}.yaml"))
        assert done.returncode == 0, done.stderr + done.stdout
    database.close()
    tables = hostile_names.tables(dialect)
    sent = {
        topic: [json.loads(message.value() or b"")["table_name"] for message in messages]
        for (topic, _), messages in read_topics(kafka_broker, f"{dialect.value}.").items()
        if messages
    }
    assert sent == {f"{dialect.value}.{plain_name(table)}": [table] for table in tables}
    files = (tmp_path / "by spark").glob("*.json")
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert sorted(json.loads(line)["table_name"] for line in lines) == sorted(tables)


def views_of(session: SparkSession, statements: str) -> dict[str, list[dict[str, Any]]]:
    """Make the views, and return the rows of each by its table."""
    rows_by_table = {}
    for statement in statements.split(";\n\n"):
        if statement.strip():
            session.sql(statement.strip().removesuffix(";"))
            (view,) = re.findall(r"VIEW `(\w+)`", statement)
            (table,) = re.findall(r"table_name = ('(?:[^'\\]|\\.)*')", statement, re.DOTALL)
            ((name,),) = session.sql(f"SELECT {table}").collect()
            rows_by_table[name] = [row.asDict() for row in session.table(view).collect()]
            session.sql(f"DROP VIEW {view}")
    return rows_by_table
