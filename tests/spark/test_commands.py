"""The commands around a pipeline: run until caught up, check, status, partitions."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from slackwater.demo.load import Load
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.timestamp import format_rfc3339, parse_rfc3339
from tests.proofs.sinks import from_json
from tests.support.command_line import slackwater
from tests.support.emulators import NewDatabase
from tests.support.services import settings


def low_watermark_ns(line: str) -> int:
    """The low watermark that a line of the log about an epoch states."""
    fields = dict(field.split("=", 1) for field in line.split() if "=" in field)
    return parse_rfc3339(fields["low_watermark"])


@pytest.mark.usefixtures("commands_here")
def test_a_pipeline_runs_until_caught_up_and_shows_where_it_stands(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database()
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=11)
    written = load.run(transactions_per_second=20, seconds=3)
    values = settings(stream, tmp_path, format_rfc3339(start_ns))
    values["epoch"] = {"trigger": "0s", "max_span": "2s"}
    values["sink"]["format"] = "json"
    config = tmp_path / "slackwater.yaml"
    config.write_text(yaml.safe_dump(values))
    called_ns = connection.strong_read_timestamp_ns()

    done = slackwater("run", "-c", str(config), "--until-caught-up")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "event=epoch" in line]
    watermarks = [start_ns, *(low_watermark_ns(line) for line in lines)]
    spans = [after - before for before, after in pairwise(watermarks)]
    assert len(spans) >= 2
    assert max(spans) <= 2_000_000_000, "max_span did not bound the epochs"
    for name in ("low_watermark=", "lag_seconds=", "records=", "transactions=", "partitions="):
        assert name in lines[0]
    rows = from_json(tmp_path / "changes")
    assert len(set(rows.column("server_transaction_id").to_pylist())) == written.transactions

    shown = slackwater("status", "-c", str(config), "--json")
    status = json.loads(shown.stdout)
    assert parse_rfc3339(status["low_watermark"]) >= called_ns
    assert status["transactions"] == written.transactions
    assert status["records"] == rows.num_rows
    assert status["lag_seconds"] > 0
    assert status["partitions"]["running"] >= 1
    assert "low watermark" in slackwater("status", "-c", str(config)).stdout

    listed = json.loads(slackwater("partitions", "-c", str(config), "--format", "json").stdout)
    assert {p["state"] for p in listed} >= {"running", "finished"}
    tokens = {p["token"] for p in listed}
    assert any(set(p["parents"]) & tokens for p in listed)
    dot = slackwater("partitions", "-c", str(config), "--format", "dot").stdout
    assert dot.startswith("digraph lineage {")
    assert dot.count("->") == sum(len(set(p["parents"]) & tokens) for p in listed)
    assert "running" in slackwater("partitions", "-c", str(config)).stdout

    checked = slackwater("check", "-c", str(config))
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count("ok ") == 7

    again = slackwater("run", "-c", str(config), "--until-caught-up")
    assert again.returncode == 0, again.stderr
    more = from_json(tmp_path / "changes")
    assert more.num_rows == rows.num_rows
