"""A filter keeps the same records whether Spark or Python applies it, and loses no count."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from slackwater.demo.load import CHANGE_STREAM, Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.schema import ddl
from slackwater.reader.transport.connection import Connection
from slackwater.spark_sink.filters.column_filter import ColumnFilter
from slackwater.spark_sink.filters.record_filter import ModType, RecordFilter
from slackwater.testing.compare import read_changelog
from slackwater.testing.emulator_database import update_ddl
from slackwater.timestamp import format_rfc3339
from slackwater.worker_errors import decode
from tests.emulators import NewDatabase
from tests.epochs import EpochLoop
from tests.services import settings
from tests.sinks import Pipelines
from tests.spark.test_initial_scan import verify

TABLES = (
    "Orders",
    "orders",
    "sales.Orders",
    "sales_Orders",
    "Or\nders",
    "Orders2",
    "Großkunden",
    "",
)
TAGS = ("", "batch", "app=a,job=b", "batch\nnight", "(x|y)", "a.b")
FILTERS = [
    RecordFilter(),
    RecordFilter(tables=("Orders",)),
    RecordFilter(tables=("sales.*", "Or?ers*")),
    RecordFilter(tables=("*ß*",)),
    RecordFilter(tables=("sales.Orders|Orders",)),
    RecordFilter(exclude_tables=("*Orders", "")),
    RecordFilter(tables=("*s*",), exclude_tables=("sales.*",)),
    RecordFilter(mod_types=(ModType.INSERT, ModType.DELETE)),
    RecordFilter(transaction_tags=("batch*", "(x|y)")),
    RecordFilter(exclude_transaction_tags=("a?b", "")),
    RecordFilter(system_transactions=False),
    RecordFilter(("*",), (), (ModType.UPDATE,), ("*a*",), ("batch",), system_transactions=False),
]

NO_TRANSACTION = {"transaction_tag": "", "is_system_transaction": False}
START = datetime(2026, 1, 31, 9, tzinfo=UTC)
COLUMNS = ("Item", "Amount", "Tags", "Note")
LEFT_OUT = ["Orders.Details", "*.Receipt", "Customers.Balance", "*.Tags", "Customers.Changed"]


def test_spark_and_python_keep_the_same_records(session: SparkSession) -> None:
    names = ("table_name", "mod_type", "transaction_tag", "is_system_transaction")
    rows = [
        dict(zip(names, row, strict=True))
        for row in itertools.product(TABLES, [str(m) for m in ModType], TAGS, (True, False))
    ]
    frame = session.createDataFrame([tuple(row.values()) for row in rows], list(names))
    kept_of = [len(of_filter) for of_filter in agreed(frame, rows, FILTERS)]
    assert kept_of[0] == len(rows)
    # A glob has no alternatives.
    assert kept_of[4] == 0
    assert all(0 < count < len(rows) for count in kept_of[1:4] + kept_of[5:])


def test_spark_and_python_leave_out_the_same_columns(session: SparkSession) -> None:
    values = '{"Item": "a, \\"b\\"", "Amount":1.50,"Tags":["x",null],"Note":null}'
    rows = [
        (
            START,
            "t",
            f"{number:08d}",
            True,
            table,
            [(name, "{}", name == "Id", at) for at, name in enumerate(("Id", *COLUMNS))],
            [("{}", values, "{}"), ("{}", "{}", values)],
            *("UPDATE", "NEW_VALUES", 1, 1, "", False, "p", START),
        )
        for number, table in enumerate(TABLES)
    ]
    frame = session.createDataFrame(rows, ddl())
    column_filter = ColumnFilter(("*.Item", "Or*.?*", "*ß*.Note"), ("*.Tags", "sales.*.Amount"))
    cut = column_filter.apply_to_frame(frame)
    assert cut.schema.simpleString() == frame.schema.simpleString()
    filtered = [row.asDict(recursive=True) for row in cut.orderBy("record_sequence").collect()]
    whole = [row.asDict(recursive=True) for row in frame.orderBy("record_sequence").collect()]
    assert filtered == [column_filter.apply_to_row(row) for row in whole]
    new_values = {row["table_name"]: row["mods"][0]["new_values"] for row in filtered}
    assert new_values["Orders"] == '{"Item": "a, \\"b\\"","Amount":1.50,"Note":null}'
    assert new_values["sales.Orders"] == '{"Item": "a, \\"b\\""}'
    assert ColumnFilter().apply_to_frame(frame) is frame


def test_spark_and_python_keep_the_same_changes(session: SparkSession) -> None:
    texts = ("{}", '{"Item": {"Tags": 1}}', '{"Not\\u0065" : null,"x":1}', "")
    captures = ("OLD_AND_NEW_VALUES", "NEW_VALUES", "NEW_ROW_AND_OLD_VALUES", "NEW_ROW")
    shown = [
        [table, kind, capture, [("{}", new, old) for new, old in mods]]
        for table in TABLES
        for kind in ModType
        for capture in captures[: 3 if kind is ModType.UPDATE else 4]
        for mods in ([(a, b), (b, b)] for a, b in itertools.product(texts, repeat=2))
    ]
    schema = "table_name string, mod_type string, value_capture_type string, mods"
    schema += " array<struct<keys string, new_values string, old_values string>>"
    frame = session.createDataFrame(shown, schema)
    rows = [row.asDict(recursive=True) | NO_TRANSACTION for row in frame.collect()]
    globs = (("*Orders.Note",), ("Orders.*", "*ß*.It?m"), ("*.Tags",))
    filters = [RecordFilter(when_changed=of_filter) for of_filter in globs]
    updates = [
        len([row for row in of_filter if row["mod_type"] == "UPDATE"])
        for of_filter in agreed(frame, rows, filters)
    ]
    assert updates[0] > 0
    assert updates[1] > 0
    assert updates[2] == 0
    require_refusals(session, schema)


def agreed(
    frame: DataFrame, rows: Sequence[dict[str, Any]], filters: Sequence[RecordFilter]
) -> list[list[dict[str, Any]]]:
    """Return for each filter the rows that it keeps, by Spark, by Python and by Arrow."""
    conditions = [record_filter.condition() for record_filter in filters]
    of_spark = [list(row) for row in frame.select(*conditions).collect()]
    of_python = [[record_filter.keeps(row) for record_filter in filters] for row in rows]
    assert of_spark == of_python
    records = pa.RecordBatch.from_pylist(rows)
    for record_filter, decided in zip(filters, zip(*of_python, strict=True), strict=True):
        assert record_filter.mask(records).to_pylist() == list(decided)
    return [list(itertools.compress(rows, column)) for column in zip(*of_python, strict=True)]


def require_refusals(session: SparkSession, schema: str) -> None:
    """Updates that do not tell what they changed fail Spark's job, unless they are filtered out."""
    mods = [("{}", '{"Note": 1}', "{}")]
    frame = session.createDataFrame([("Orders", "UPDATE", "NEW_ROW", mods)], schema)
    record_filter = RecordFilter(when_changed=("Orders.Note",))
    with pytest.raises(PySparkException) as caught:
        frame.where(record_filter.condition()).collect()
    record = decode(str(caught.value))
    assert record is not None
    assert (record.error_class, record.user_error) == ("UnknownChangesError", True)
    other = replace(record_filter, exclude_tables=("Or*",))
    assert frame.where(other.condition()).collect() == []
    mods = [("{}", "[]", "{}")]
    wrong = session.createDataFrame([("Orders", "UPDATE", "NEW_VALUES", mods)], schema)
    with pytest.raises(PySparkException, match="not a JSON object"):
        wrong.where(record_filter.condition()).collect()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_pipelines_write_what_their_filters_keep_and_audit_all(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database()
    connection = Connection(stream)
    load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=4)
    # Some rows are there before, and scanned.
    load.run(transactions_per_second=20, seconds=1)
    start_ns = connection.strong_read_timestamp_ns()
    load.run(transactions_per_second=20, seconds=3)
    end_ns = connection.strong_read_timestamp_ns()
    service = pipelines(stream, tmp_path, start_ns, end_ns)
    service.start()
    assert service.wait(200) == 0, service.log.read_text()[-2_000:]
    output = read_changelog(tmp_path / "changes").to_pylist()
    loop = EpochLoop(stream, f"sqlite:///{tmp_path / 'other.db'}", start_ns=start_ns)
    everything = pa.concat_tables(loop.epochs(end_ns)).to_pylist()
    loop.close()
    others = [row for row in everything if row["table_name"] != "Customers"]
    expected = [row for row in others if row["mod_type"] != "DELETE"]
    assert sorted(map(said, output)) == sorted(map(said, expected))
    assert 0 < len(expected) < len(others) < len(everything)
    assert {row["mod_type"] for row in everything} == {"INSERT", "UPDATE", "DELETE"}
    names = {column["name"] for row in output for column in row["column_types"]}
    assert names == {"CustomerId", "OrderId", "Item", "PaymentId", "Amount"}
    require_mirrors_without_columns(service, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_pipeline_stops_when_its_stream_no_longer_tells_what_changed(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database()
    pipeline_settings = settings(stream, tmp_path, "now")
    pipeline_settings["filter"] = {"when_changed": ["Customers.Name"]}
    service = Service(pipeline_settings, tmp_path, os.environ)
    service.start()
    load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=5)
    connection = Connection(stream)
    service.wait_for_watermark(connection.strong_read_timestamp_ns(), seconds_max=250)
    load.run(transactions_per_second=20, seconds=2)
    service.wait_for_watermark(connection.strong_read_timestamp_ns(), seconds_max=120)
    options = "SET OPTIONS (value_capture_type = 'NEW_ROW')"
    update_ddl(stream, [f"ALTER CHANGE STREAM {CHANGE_STREAM} {options}"])
    load.run(transactions_per_second=20, seconds=2)
    assert service.wait(250) == 2, service.log.read_text()[-2_000:]
    said = service.log.read_text()
    assert "filter.when_changed needs to know which columns an update changed" in said
    # The next start says so at once.
    service.start()
    assert service.wait(250) == 2
    output = read_changelog(tmp_path / "changes").to_pylist()
    assert {row["table_name"] for row in output} == {"Customers"}
    assert {row["mod_type"] for row in output} >= {"INSERT", "UPDATE"}
    assert {row["value_capture_type"] for row in output} == {"OLD_AND_NEW_VALUES"}


def pipelines(stream: ChangeStream, folder: Path, start_ns: int, end_ns: int) -> Pipelines:
    """Make a changelog and mirrors in one process, with column filters."""
    pipelines_settings = settings(stream, folder, format_rfc3339(start_ns))
    pipelines_settings["source"]["end"] = format_rfc3339(end_ns)
    pipelines_settings["filter"] = {"exclude_columns": LEFT_OUT}
    del pipelines_settings["pipeline"]
    of_records = {"exclude_tables": ["Cust*"], "mod_types": ["INSERT", "UPDATE"]}
    sink = {
        "kind": "mirror",
        "path": str(folder / "mirrors"),
        "checkpoint": str(folder / "mirrors-checkpoint"),
    }
    pipelines_settings["pipelines"] = {
        "changes": {"sink": pipelines_settings.pop("sink"), "filter": of_records},
        "mirrors": {"sink": sink},
    }
    return Pipelines(pipelines_settings, pipelines_settings["pipelines"], folder)


def require_mirrors_without_columns(service: Pipelines, folder: Path) -> None:
    """They have the columns that are kept, from the scan on, and are their tables in those."""
    tables = {"Customers": "CustomerId Name", "Orders": "CustomerId OrderId Item"}
    for table, names in {**tables, "Payments": "PaymentId Amount"}.items():
        mirror = deltalake.DeltaTable(folder / "mirrors" / table)
        assert [field.name for field in mirror.schema().fields] == names.split()
    done = verify(service, "--pipeline", "mirrors", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 3
    assert all(line["is_equal"] and line["comparison"]["rows"] > 10 for line in lines)


def said(row: dict[str, Any]) -> tuple[str, ...]:
    """Return a record's content without left out columns, computed without the filter."""
    left_out = {name.partition(".")[2] for name in LEFT_OUT}
    mods = [
        {
            part: {name: value for name, value in json.loads(text).items() if name not in left_out}
            for part, text in mod.items()
        }
        for mod in row["mods"]
    ]
    names = [c["name"] for c in row["column_types"] if c["name"] not in left_out]
    return row["server_transaction_id"], row["record_sequence"], repr(names), repr(mods)
