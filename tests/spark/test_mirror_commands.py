"""The commands that look at mirrors and set them right, as pages and messages write them."""

import json
import os
import signal
import threading
from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from slackwater.demo.load import Load
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.timestamp import datetime_to_rfc3339
from tests.support.command_line import output_of, slackwater
from tests.support.emulators import NewDatabase
from tests.support.epoch_rows import PIPELINE, inserts, low_watermark, make_sink, write
from tests.support.services import settings
from tests.support.waiting import wait_until

PARTITION_ALIVE_S = 20


@pytest.mark.usefixtures("commands_here")
def test_a_mirror_that_differs_is_found_repaired_and_read_as_of_a_time(
    new_database: NewDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = new_database()
    Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=3).run(transactions_per_second=20, seconds=1)
    values = settings(stream, tmp_path, "now")
    values["sink"] = {"kind": "mirror", "path": "mirrors", "checkpoint": "checkpoint"}
    monkeypatch.chdir(tmp_path)
    Path("slackwater.yaml").write_text(yaml.safe_dump(values))

    def command(*words: str) -> str:
        return output_of(slackwater(*words))

    command("run", "--until-caught-up")
    cut = json.loads(command("as-of", "last", "--format", "json"))
    assert {table["table"] for table in cut["tables"]} == {"Customers", "Orders", "Payments"}
    assert "Orders" in command("as-of", "last")
    assert f"delta.`{tmp_path}/mirrors/Orders` VERSION AS OF" in command(
        "as-of", "last", "--format", "sql"
    )

    # Another program has removed a row.
    payments = DeltaTable(tmp_path / "mirrors" / "Payments")
    first = payments.to_pyarrow_table(columns=["PaymentId"]).column(0)[0].as_py()
    payments.delete(f"PaymentId = '{first}'")
    found = slackwater("verify", "--table", "Payments", "--repair")
    assert found.returncode == 1, found.stderr
    assert "rescan of Payments requested for when it runs again" in found.stderr
    command("run", "--until-caught-up")
    assert json.loads(command("verify", "--table", "Payments", "--json"))["is_equal"]

    assert "rescan of Orders requested" in command("rescan", "--table", "Orders")
    assert "rescan of Orders stopped" in command("rescan", "--table", "Orders", "--stop")
    assert command("status").startswith("orders: Is not running")


def require_cut(file: Path, epoch: int) -> None:
    """Wait until a file has the versions of an epoch, and require its rows in each of them."""
    stated = datetime_to_rfc3339(low_watermark(epoch))
    wait_until(lambda: file.exists() and json.loads(file.read_text())["low_watermark"] == stated)
    tables = json.loads(file.read_text())["tables"]
    assert [table["table"] for table in tables] == ["A", "B"]
    for table in tables:
        path = table["name"].removeprefix("delta.").strip("`")
        rows = DeltaTable(path, version=int(table["version"])).to_pyarrow_table(columns=["Id"])
        assert sorted(rows.column(0).to_pylist()) == list(range(1, epoch + 1)), table


@pytest.mark.usefixtures("commands_here", "emulator")
def test_a_file_follows_the_versions_of_all_mirrors(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = settings(
        ChangeStream("test-project", "test-instance", "shop", "Stream"), tmp_path, "now"
    )
    path = tmp_path / "mirrors"
    values |= {"pipeline": PIPELINE}
    values["sink"] = {"kind": "mirror", "path": str(path), "checkpoint": f"{path}-checkpoint"}
    monkeypatch.chdir(tmp_path)
    Path("slackwater.yaml").write_text(yaml.safe_dump(values))

    def write_and_look() -> None:
        try:
            sink = make_sink(path, kind="mirror")
            sink.position(session)
            for epoch in (1, 2, 3):
                rows = (inserts(epoch, at=epoch * 1_000_000 - 1, table=table) for table in "AB")
                write(session, sink, epoch, *rows)
                require_cut(Path("cut.json"), epoch)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    writing = threading.Thread(target=write_and_look)
    writing.start()
    done = slackwater("as-of", "last", "--follow", "cut.json", "--format", "json", "--every", "1s")
    writing.join()
    output_of(done)
