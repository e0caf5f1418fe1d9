"""The views over a changelog are the tables, by value."""

from __future__ import annotations

import json
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
from slackwater.timestamp import format_rfc3339
from tests.command_line import slackwater
from tests.emulators import NewDatabase
from tests.epochs import EpochLoop
from tests.services import settings
from tests.table_rows import comparable, spanner_rows

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
    assert "no table with a primary key is named X" in done.stderr
    assert "Customers, Orders, Payments" in done.stderr
