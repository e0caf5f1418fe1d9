"""The commands that look at mirrors and set them right, as pages and messages write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable

from slackwater.demo.load import Load
from slackwater.reader.change_stream import Dialect
from tests.support.command_line import output_of, slackwater
from tests.support.emulators import NewDatabase
from tests.support.services import settings


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
