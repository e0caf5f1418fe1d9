"""The views over a changelog are the tables, by value."""

import json
import random
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.sql import SparkSession

from slackwater.demo.load import Load, ddl
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.spark_sink.sql.rebuild_view import create_view
from slackwater.timestamp import format_rfc3339
from tests.support.command_line import slackwater
from tests.support.emulators import NewDatabase
from tests.support.epoch_rows import record, table_of
from tests.support.epochs import EpochLoop
from tests.support.services import settings
from tests.support.table_rows import comparable, spanner_rows

TABLES = ("Customers", "Orders", "Payments")
JSON_COLUMN, NUMERIC_COLUMN = "Details", "Balance"


def captured(dialect: Dialect, capture: str) -> list[str]:
    """The demo's schema with a value capture type."""
    *others, stream = ddl(dialect)
    word = "WITH" if dialect is Dialect.POSTGRESQL else "OPTIONS"
    return [*others, f"{stream} {word} (value_capture_type = '{capture}')"]


def rows_in_view(session: SparkSession, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = session.table(table).toArrow().to_pylist()
    for row in rows:
        for name, value in row.items():
            if name == JSON_COLUMN and value is not None:
                value = json.loads(value, parse_float=Decimal)
            if name == NUMERIC_COLUMN and value is not None:
                value = Decimal(value)
            row[name] = comparable(value)
    return rows


@pytest.mark.parametrize(
    ("dialect", "capture"),
    [
        (Dialect.GOOGLE_STANDARD_SQL, "NEW_ROW"),
        (Dialect.POSTGRESQL, "OLD_AND_NEW_VALUES"),
    ],
)
def test_views_over_the_changelog_are_the_tables_by_value(
    dialect: Dialect,
    capture: str,
    new_database: NewDatabase,
    session: SparkSession,
    tmp_path: Path,
) -> None:
    stream = new_database(dialect, captured(dialect, capture))
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    Load(stream, dialect, seed=12).run(transactions_per_second=60, seconds=4)
    end_ns = connection.strong_read_timestamp_ns()
    loop = EpochLoop(stream, f"sqlite:///{tmp_path / 'state.db'}", start_ns=start_ns)
    changes = pa.concat_tables(loop.epochs(end_ns))
    loop.close()
    (tmp_path / "changes").mkdir()
    pq.write_table(changes, tmp_path / "changes" / "part.parquet")
    config = tmp_path / "slackwater.yaml"
    config.write_text(yaml.safe_dump(settings(stream, tmp_path, format_rfc3339(start_ns))))
    done = slackwater("sql", "view", "-c", str(config))
    statements = [text for text in done.stdout.split(";\n") if text.strip()]
    assert len(statements) == len(TABLES)
    assert ("ROW_NUMBER" in done.stdout) == (capture == "NEW_ROW")
    deleted = 0
    for statement in statements:
        session.sql(statement)
    for table in TABLES:
        expected = spanner_rows(stream, dialect, table)
        rows = rows_in_view(session, table)
        assert sorted(rows, key=repr) == sorted(expected, key=repr), table
        assert len(expected) > 10
        of_table = [row for row in changes.to_pylist() if row["table_name"] == table]
        deleted += sum(row["mod_type"] == "DELETE" for row in of_table)
        assert table != "Customers" or any(row["mod_type"] == "UPDATE" for row in of_table)
    assert deleted > 10


def test_a_table_that_is_not_there_is_named(new_database: NewDatabase, tmp_path: Path) -> None:
    config = tmp_path / "slackwater.yaml"
    config.write_text(yaml.safe_dump(settings(new_database(), tmp_path, "now")))
    done = slackwater("sql", "view", "-c", str(config), "--table", "X")
    assert done.returncode == 2
    assert "watches no table named X" in done.stderr
    assert "Customers, Orders, Payments" in done.stderr


def test_views_of_one_name_are_refused(new_database: NewDatabase, tmp_path: Path) -> None:
    tables = ("sales.Orders", "Sales_Orders")
    statements = [f"CREATE TABLE {name} (Id INT64) PRIMARY KEY (Id)" for name in tables]
    stream = new_database(
        statements=["CREATE SCHEMA sales", *statements, "CREATE CHANGE STREAM S FOR ALL"],
        change_stream="S",
    )
    config = tmp_path / "slackwater.yaml"
    sections = settings(stream, tmp_path, "now")
    config.write_text(yaml.safe_dump(sections))
    # One after the other would be the same: the second view would replace the first.
    for chosen in ((), ("--table", tables[0]), ("--table", tables[1])):
        done = slackwater("sql", "view", "-c", str(config), *chosen)
        assert (done.returncode, done.stdout) == (2, "")
        assert all(repr(name) in done.stderr for name in tables)
        assert "filter.exclude_tables" in done.stderr
    config.write_text(yaml.safe_dump(sections | {"filter": {"exclude_tables": [tables[1]]}}))
    done = slackwater("sql", "view", "-c", str(config))
    assert done.stdout.count("CREATE OR REPLACE VIEW") == 1


# The JSON texts of values that are one and the same; a scan has others than change records.
SPELLINGS: Mapping[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    "Zed": ("INT64", (('"1"',), ('"-2"',))),
    "alpha": ("FLOAT64", (("1e22", "1e+22"), ("0.5", "5e-1"), ('"NaN"',), ("null",))),
    "At": (
        "TIMESTAMP",
        (
            ('"0900-01-01T00:00:00Z"', '"900-01-01T00:00:00Z"'),
            ('"2026-01-31T09:00:00.5Z"', '"2026-01-31T09:00:00.500000Z"'),
            ('"2026-01-31T09:00:00.500000001Z"',),
        ),
    ),
    "Day": ("DATE", (('"0009-01-01"', '"9-01-01"'), ("null",))),
    "It's": ("STRING(MAX)", (('"\\u00fc"', '"\u00fc"'), ('""',))),
    "Bytes": ("BYTES(MAX)", (('"AAH/"',), ('""',))),
}


@pytest.mark.parametrize("capture", ["NEW_ROW", "OLD_AND_NEW_VALUES"])
def test_a_key_is_the_same_however_its_text_is_written(
    capture: str, session: SparkSession, tmp_path: Path
) -> None:
    choose = random.Random(12)
    columns = {name: kind for name, (kind, _) in SPELLINGS.items()} | {"V": "INT64"}
    keys = [tuple(choose.choice(spelled) for _, spelled in SPELLINGS.values()) for _ in range(20)]
    rows: dict[Any, int] = {}
    records = []
    for number in range(200):
        key = choose.choice(keys)
        texts = [(name, choose.choice(same)) for name, same in zip(SPELLINGS, key, strict=True)]
        choose.shuffle(texts)
        kind = choose.choice(("UPDATE", "DELETE")) if key in rows else "INSERT"
        rows[key] = number
        if kind == "DELETE":
            del rows[key]
        of_keys = ",".join(f"{json.dumps(name)}:{text}" for name, text in texts)
        new = "{}" if kind == "DELETE" else f'{{"V":"{number}"}}'
        *before, _, mod_type, _, a, b, c, d, e, f = record(kind, [], columns, at=number)
        records.append(
            (*before, [(f"{{{of_keys}}}", new, "{}")], mod_type, capture, a, b, c, d, e, f)
        )
    pq.write_table(table_of(records), tmp_path / "part.parquet")
    session.sql(
        create_view(
            "sales.Orders",
            "sales_Orders",
            columns,
            list(SPELLINGS),
            f"parquet.`{tmp_path}`",
            is_whole_row=capture == "NEW_ROW",
        )
    )
    assert sorted(row.V for row in session.table("sales_Orders").collect()) == sorted(rows.values())
    assert len(rows) > 5
