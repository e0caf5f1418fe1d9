"""The initial scan and the changes after it are the table: no gap, and nothing twice."""

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.dataset as ds
import pytest
import yaml

from slackwater.demo.service import Service
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.state.errors import StateError
from slackwater.state.scans import read_scan
from slackwater.state.store import Store
from slackwater.testing.emulator_database import update_ddl
from tests.proofs.mirrors import mirror_settings
from tests.support import mixed_load
from tests.support.command_line import PROGRAM, rounds_of_verify, slackwater
from tests.support.emulators import NewDatabase
from tests.support.mirror_looks import ADDED, Looker
from tests.support.mixed_load import MixedLoad
from tests.support.services import settings
from tests.support.table_rows import comparable, spanner_rows

VERIFY = (*PROGRAM, "verify", "-c")


def wait_for_first_chunk(url: str, service: Service) -> None:
    """Return as soon as some of a scan is in the output."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        time.sleep(0.02)
        try:
            store = Store.open(url, migrate=False)
        except StateError:
            # Not made yet.
            continue
        stored_scan = read_scan(store, "orders")
        store.close()
        if stored_scan and any(part.is_done for part in stored_scan[1]):
            assert not stored_scan[0].is_done, "the scan was over before it could be killed"
            return
    raise AssertionError(service.log.read_text()[-2_000:])


def require_verified(service: Service, mirror: Path) -> None:
    """`slackwater verify` proves the mirrors, but for the one that somebody has changed."""
    table = deltalake.DeltaTable(mirror)
    assert mixed_load.GENERATED not in {field.name for field in table.schema().fields}
    assert "generated columns are left out" in service.log.read_text()
    fifth = sorted(table.to_pyarrow_table(columns=["Id"]).column(0).to_pylist())[4]
    table.delete(f'"Id" <= {fifth}')
    done = verify(service, "--json")
    by_table = {line["table"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 1
    assert set(by_table) == set(mixed_load.TABLES)
    changed = by_table.pop(mirror.name)
    assert all(line["is_equal"] and line["comparison"]["rows"] > 10 for line in by_table.values())
    comparison = changed["comparison"]
    assert not changed["is_equal"]
    assert comparison["missing"] >= 5
    assert comparison["unexpected"] == comparison["different"] == 0
    assert all(json.loads(example["key"])["Id"] <= fifth for example in comparison["examples"])


def require_verified_continuously(service: Service, mirror: Path) -> None:
    """`slackwater verify --continuous` finds the same until it is stopped, and status says so."""
    # Each table twice.
    rounds = rounds_of_verify(service.config, 2 * len(mixed_load.TABLES))
    assert {one["table"] for one in rounds} == set(mixed_load.TABLES)
    assert all((one["different"] >= 5) == (one["table"] == mirror.name) for one in rounds)
    assert all(one["different"] == 0 for one in rounds if one["table"] != mirror.name)
    status = slackwater("status", "-c", str(service.config), "--json")
    verification = json.loads(status.stdout)["verification"]
    assert verification["different"] == [mirror.name]
    assert verification["proved_equal_up_to"] is None


def verify(service: Service, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*VERIFY, str(service.config), *options],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_mirror_from_a_scan_and_changes_is_the_table_through_a_kill(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    dialect = Dialect.POSTGRESQL
    schema = mixed_load.ddl(dialect, "OLD_AND_NEW_VALUES")
    stream = new_database(dialect, schema, mixed_load.CHANGE_STREAM)
    load = MixedLoad(stream, dialect, seed=9)
    while load.changes < 300:
        load.transaction()
    pipeline_settings = mirror_settings(stream, tmp_path, 0, "apply")
    # One task at once: a chunk is half of the parts that the emulator makes.
    pipeline_settings["spark"]["master"] = "local[1,4]"
    del pipeline_settings["source"]["start"]
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            load.transaction()
            time.sleep(0.05)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    service = Service(pipeline_settings, tmp_path, os.environ)
    service.start()
    looker = Looker(tmp_path / "mirrors", stream, dialect)
    connection = Connection(stream)
    try:
        wait_for_first_chunk(pipeline_settings["state"]["url"], service)
        service.kill()
        service.start()
        looker.look()
        is_over.set()
        writer.join()
        update_ddl(stream, [f'ALTER TABLE "{mixed_load.SINGERS}" ADD COLUMN "{ADDED}" bigint'])
        service.wait_for_watermark(connection.strong_read_timestamp_ns(), seconds_max=120)
        assert service.drain() == 0, service.log.read_text()[-2_000:]
    finally:
        is_over.set()
        service.kill()
        connection.close()
    looker.look_at_the_end()
    # What was a column at the mirrors' low watermark is compared, also if it is gone now.
    update_ddl(stream, [f'ALTER TABLE "{mixed_load.SINGERS}" DROP COLUMN "Marks"'])
    require_verified(service, tmp_path / "mirrors" / mixed_load.ALBUMS)
    require_verified_continuously(service, tmp_path / "mirrors" / mixed_load.ALBUMS)
    assert service.log.read_text().count("initial scan is complete") == 1


@pytest.mark.usefixtures("commands_here")
def test_a_scan_only_writes_the_rows_of_its_time_and_ends(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    dialect = Dialect.GOOGLE_STANDARD_SQL
    stream = new_database(dialect, mixed_load.ddl(dialect, "NEW_ROW"), mixed_load.CHANGE_STREAM)
    load = MixedLoad(stream, dialect, seed=10)
    while load.changes < 200:
        load.transaction()
    pipeline_settings = settings(stream, tmp_path, "now")
    pipeline_settings["source"]["initial_scan"] = "only"
    pipeline_settings["filter"] = {"exclude_tables": [mixed_load.FLAGS], "mod_types": ["DELETE"]}
    config = tmp_path / "slackwater.yaml"
    config.write_text(yaml.safe_dump(pipeline_settings))
    for _ in range(2):
        # Asked again, it has nothing to do.
        done = slackwater("run", "-c", str(config))
        assert done.returncode == 0, done.stderr
    changes = tmp_path / "changes"
    output = ds.dataset(changes, format="parquet", partitioning="hive").to_table().to_pylist()
    (file,) = {file.suffix for file in changes.glob("epoch=*/*")}
    assert file == ".parquet", "the tasks that read write by themselves: Spark adds checksums"
    (line,) = next((changes / "_watermarks").glob("*.json")).read_text().splitlines()
    assert json.loads(line)["records"] == len(output) > 20
    assert {(row["server_transaction_id"], row["mod_type"]) for row in output} == {("", "INSERT")}
    for table in mixed_load.TABLES:
        rows = [key_and_row(row) for row in output if row["table_name"] == table]
        expected = [] if table == mixed_load.FLAGS else spanner_rows(stream, dialect, table)
        names = ("Id", "Title")
        keys = [{n: str(row[n]) for n in names if n in row} for row in expected]
        assert sorted(map(repr, rows)) == sorted(map(repr, keys)), table


@pytest.mark.long
def test_a_scan_that_is_caught_up_with_ends_after_the_scan(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    """The clock that the run is to reach is read before the scan chooses its time."""
    dialect = Dialect.GOOGLE_STANDARD_SQL
    stream = new_database(dialect, mixed_load.ddl(dialect, "NEW_ROW"), mixed_load.CHANGE_STREAM)
    load = MixedLoad(stream, dialect, seed=11)
    while load.changes < 100:
        load.transaction()
    pipeline_settings = settings(stream, tmp_path, "now")
    pipeline_settings["source"]["initial_scan"] = "yes"
    service = Service(pipeline_settings, tmp_path, os.environ)
    for _ in range(2):
        service.start("--until-caught-up")
        assert service.wait(120) == 0, service.log.read_text()[-2_000:]
    output = ds.dataset(tmp_path / "changes", format="parquet", partitioning="hive").to_table()
    rows = sum(len(spanner_rows(stream, dialect, table)) for table in mixed_load.TABLES)
    assert output.num_rows == rows > 20


def key_and_row(row: dict[str, Any]) -> dict[str, Any]:
    (mod,) = row["mods"]
    key: dict[str, Any] = comparable(json.loads(mod["keys"]))
    return key
