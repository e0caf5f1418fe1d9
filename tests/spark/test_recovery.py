"""Recovery of a lost metadata store, a lost checkpoint and lost records."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from slackwater.demo.load import CHANGE_STREAM, Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.testing.compare import compare, cut_violations, read_changelog
from slackwater.testing.emulator_database import update_ddl
from slackwater.testing.plain_client import Truth
from slackwater.timestamp import format_rfc3339
from tests.support.emulators import NewDatabase
from tests.support.services import settings
from tests.support.truths import require_equal, truth_of


class Runs:
    """`slackwater run --until-caught-up`, again and again, on one pipeline with a load between."""

    def __init__(self, stream: ChangeStream, folder: Path) -> None:
        self.stream = stream
        self.folder = folder
        self.connection = Connection(stream)
        self.load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=6)
        self.start_ns = self.connection.strong_read_timestamp_ns()
        self.settings = settings(stream, folder, format_rfc3339(self.start_ns))
        self.config = folder / "slackwater.yaml"

    def write(self) -> None:
        self.load.run(transactions_per_second=40, seconds=2)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Exit code and log."""
        done = self.slackwater("run", "--until-caught-up", *arguments)
        message = done.stderr.rpartition("slackwater: ")[2]
        # Of a run that ends well, Spark's runner of the source may tell that it was stopped.
        assert done.returncode == 0 or "Traceback" not in message, message[-3_000:]
        return done.returncode, done.stderr

    def slackwater(self, command: str, *arguments: str) -> Any:
        self.config.write_text(yaml.safe_dump(self.settings))
        return subprocess.run(
            [
                *(sys.executable, "-m", "slackwater.cli", command),
                *("-c", str(self.config), *arguments),
            ],
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.slackwater("status", "--json").stdout)
        return status

    def truth(self, start_ns: int) -> Truth:
        return truth_of(self.stream, start_ns, self.connection.strong_read_timestamp_ns())

    def require_equal(self) -> None:
        output = read_changelog(self.folder / "changes")
        require_equal(output, self.truth(self.start_ns))


@pytest.fixture
def runs(new_database: NewDatabase, tmp_path: Path) -> Runs:
    made = Runs(new_database(), tmp_path)
    made.write()
    code, log = made.run()
    assert code == 0, log
    made.write()
    return made


@pytest.mark.long
def test_a_lost_metadata_store_is_created_again_from_the_checkpoint_and_reported(
    runs: Runs,
) -> None:
    for path in runs.folder.glob("state.db*"):
        path.unlink()
    code, log = runs.run()
    assert code == 0, log
    assert "the metadata store has nothing about this pipeline" in log
    runs.require_equal()


@pytest.mark.long
def test_a_lost_checkpoint_is_refused_and_replaced_from_the_last_watermark(runs: Runs) -> None:
    shutil.rmtree(runs.folder / "checkpoint")
    code, log = runs.run()
    assert code == 2
    assert "--from-watermark last" in log
    # A pipeline that died before it noted its last epoch: the output knows better than the store.
    engine = sa.create_engine(runs.settings["state"]["url"])
    with engine.begin() as connection:
        connection.execute(
            sa.text("UPDATE pipelines SET low_watermark_ns = low_watermark_ns - 1000000000")
        )
    engine.dispose()
    code, log = runs.run("--from-watermark", "2026-01-01T00:00:00Z")
    assert code == 2
    assert "would write records twice" in log
    code, log = runs.run("--from-watermark", "last")
    assert code == 0, log
    runs.require_equal()
    code, log = runs.run("--from-watermark", "last")
    assert code == 2
    assert "is not lost" in log


@pytest.mark.long
def test_records_lost_for_good_stop_the_pipeline_until_the_gap_is_accepted(runs: Runs) -> None:
    """Recreate the stream: earlier records are as lost as those that the retention has dropped."""
    code, log = runs.run("--skip-to", "earliest")
    assert code == 2
    assert "nothing need be skipped" in log
    update_ddl(runs.stream, [f"DROP CHANGE STREAM {CHANGE_STREAM}"])
    update_ddl(runs.stream, [f"CREATE CHANGE STREAM {CHANGE_STREAM} FOR ALL"])
    made_ns = runs.connection.strong_read_timestamp_ns()
    runs.write()
    before = read_changelog(runs.folder / "changes").num_rows
    code, log = runs.run()
    assert code == 2, log
    assert f"`slackwater run -c {runs.config} --skip-to earliest`" in log
    status = runs.status()
    assert status["state"] == "failed permanently"
    assert "--skip-to earliest" in status["reason"]
    assert status["gaps"] == []

    code, log = runs.run("--skip-to", "earliest")
    assert code == 0, log
    (gap,) = runs.status()["gaps"]
    assert gap["after"] < gap["through"]
    code, log = runs.run()
    assert code == 0, log
    output = read_changelog(runs.folder / "changes")
    truth = runs.truth(made_ns)
    comparison = compare(output, truth.records)
    assert comparison.missing == []
    assert comparison.doubled == []
    assert len(comparison.unexpected) == before
    assert cut_violations(output) == []


@pytest.mark.long
def test_a_second_run_that_does_not_wait_says_who_owns_the_pipeline(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    runs = Runs(new_database(), tmp_path)
    service = Service(runs.settings, runs.folder / "service", os.environ)
    service.start()
    service.wait_for_watermark(runs.start_ns, seconds_max=60)
    runs.settings["lease"] = {"when_taken": "exit"}
    code, log = runs.run()
    assert code == 2
    assert f"is run by {os.uname().nodename} pid {service.pid}" in log
    assert service.drain() == 0
    assert runs.status()["owner"] is None
