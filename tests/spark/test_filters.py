"""What a filter leaves out is not written, and it loses no count."""

import json
import os
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from slackwater.demo.load import CHANGE_STREAM, Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.output.file_writer import FileWriter
from slackwater.spark_sink.output.preparation import Preparation
from slackwater.spark_sink.output.task_writer import TaskWriter, handed_on
from slackwater.testing.compare import read_changelog
from slackwater.testing.emulator_database import update_ddl
from slackwater.timestamp import format_rfc3339
from slackwater.worker_errors import decode
from tests.proofs.sinks import Pipelines
from tests.spark.test_initial_scan import verify
from tests.support.emulators import NewDatabase
from tests.support.epoch_rows import frame, record
from tests.support.epochs import EpochLoop
from tests.support.services import settings

LEFT_OUT = ["Orders.Details", "*.Receipt", "Customers.Balance", "*.Tags", "Customers.Changed"]


def test_a_task_s_refusal_reaches_the_driver_whole(session: SparkSession, tmp_path: Path) -> None:
    update = record(
        "UPDATE",
        [({"Id": "1"}, {"Name": "n"}, {})],
        {"Id": "INT64", "Name": "STRING"},
        at=1,
        capture="NEW_ROW",
    )
    preparation = Preparation(RecordFilter(when_changed=("*.Name",)))
    files = FileWriter(str(tmp_path), {}, "part-", "parquet")
    with pytest.raises(PySparkException) as caught:
        handed_on(frame(session, [update]), TaskWriter(files, preparation))
    refusal = decode(str(caught.value))
    assert refusal is not None
    assert (refusal.error_class, refusal.user_error) == ("UnknownChangesError", True)


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
