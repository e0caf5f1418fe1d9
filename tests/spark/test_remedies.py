"""What failed pipelines print as their remedies is run as it is printed, beside their process.

A JVM that dies meanwhile is started anew.

Of one pipeline alone, tests/spark/test_page.py runs what its page shows.
"""

import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slackwater.demo.load import CHANGE_STREAM, Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.state.models import DesiredState
from slackwater.testing.compare import compare, read_changelog
from slackwater.testing.emulator_database import update_ddl
from slackwater.timestamp import format_rfc3339, parse_rfc3339
from tests.support.command_line import slackwater
from tests.support.emulators import NewDatabase
from tests.support.running_processes import jvm_below
from tests.support.services import settings
from tests.support.truths import truth_of

SECONDS_MAX = 240
PARTITION_ALIVE_S = 20
NAMES = ("orders", "payments")


class Pipelines:
    """A process that stays, with two pipelines, and the commands of its operator."""

    def __init__(self, stream: ChangeStream, folder: Path) -> None:
        self.folder = folder
        self.connection = Connection(stream)
        self.start_ns = self.connection.strong_read_timestamp_ns()
        values = settings(stream, folder, format_rfc3339(self.start_ns))
        values["http"] = {"listen": "127.0.0.1:0"}
        del values["pipeline"], values["sink"]
        # Folders of their own are in the section of each.
        values["pipelines"] = {
            name: {
                "sink": {
                    "path": str(folder / name / "changes"),
                    "checkpoint": str(folder / name / "checkpoint"),
                }
            }
            for name in NAMES
        }
        self.service = Service(values, folder, os.environ)

    def command(self, command: str) -> str:
        """Run a command line of the program's."""
        program, *arguments = shlex.split(command)
        assert program == "slackwater"
        done = slackwater(*arguments)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def status(self, name: str) -> dict[str, Any]:
        named = f"-c {self.service.config} --pipeline {name}"
        shown: dict[str, Any] = json.loads(self.command(f"slackwater status {named} --json"))
        return shown

    def wait(self, is_so: Callable[[dict[str, Any]], bool], name: str) -> dict[str, Any]:
        until = time.monotonic() + SECONDS_MAX
        while True:
            try:
                if is_so(status := self.status(name)):
                    return status
            except AssertionError as error:
                # It has not made its store yet.
                status = {"error": str(error)}
            assert not self.service.has_ended(), self.service.log.read_text()[-3_000:]
            assert time.monotonic() < until, f"{status}\n{self.service.log.read_text()[-3_000:]}"
            time.sleep(0.5)

    def remedy(self, name: str) -> str:
        """Wait until a pipeline waits for its operator; return the command that it prints."""
        failed = self.wait(lambda s: s["wanted"] == DesiredState.AWAITING_OPERATOR, name)
        # The reason says one thing, not its opposite as well.
        assert failed["reason"].count("Nothing is lost") == 0
        commands: list[str] = re.findall(r"`(slackwater [^`]*)`", failed["reason"])
        [command] = commands
        assert f"--pipeline {name}" in command
        return command

    def wait_for_watermark(self, name: str, watermark_ns: int) -> None:
        def has_reached(status: dict[str, Any]) -> bool:
            return parse_rfc3339(status["low_watermark"] or "1970-01-01T00:00:00Z") >= watermark_ns

        self.wait(has_reached, name)


@pytest.mark.long
@pytest.mark.usefixtures("commands_here")
def test_the_remedies_of_a_failed_pipeline_work_beside_its_process(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database()
    pipelines = Pipelines(stream, tmp_path)
    load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=21)
    load.run(transactions_per_second=20, seconds=1)
    service = pipelines.service
    pipelines.command(f"slackwater run -c {service.config} --until-caught-up")
    for name in NAMES:
        shutil.rmtree(tmp_path / name / "checkpoint")
    load.run(transactions_per_second=20, seconds=1)
    service.start()
    try:
        for name in NAMES:
            command = pipelines.remedy(name)
            assert command.endswith("--from-watermark last")
            assert pipelines.command(command) == f"{name}: goes on\n"
        require_another_jvm(pipelines, stream, load)
        for name in NAMES:
            paused = pipelines.command(f"slackwater pause -c {service.config} --pipeline {name}")
            [command] = re.findall(r"`(slackwater [^`]*)`", paused)
            assert pipelines.command(command) == f"{name}: goes on\n"
        require_skipped_records(pipelines, stream, load)
        for name in NAMES:
            stopped = pipelines.command(f"slackwater stop -c {service.config} --pipeline {name}")
            assert stopped.startswith(f"{name}: has stopped")
        assert service.wait(SECONDS_MAX) == 0
    finally:
        service.kill()


def require_another_jvm(pipelines: Pipelines, stream: ChangeStream, load: Load) -> None:
    """Kill Spark's JVM; all pipelines go on in another, and nothing is lost or doubled."""
    service = pipelines.service
    for is_another in (False, True):
        written_ns = pipelines.connection.strong_read_timestamp_ns()
        for name in NAMES:
            pipelines.wait_for_watermark(name, written_ns)
        if not is_another:
            jvm_below(service.pid).kill()
            load.run(transactions_per_second=20, seconds=1)
    truth = truth_of(stream, pipelines.start_ns, written_ns)
    for name in NAMES:
        comparison = compare(read_changelog(pipelines.folder / name / "changes"), truth.records)
        assert (comparison.missing, comparison.doubled) == ([], [])
    assert "Spark's JVM has ended, with status -9" in service.log.read_text()


def require_skipped_records(pipelines: Pipelines, stream: ChangeStream, load: Load) -> None:
    """Drop the stream, make it again, and go on as the pipelines say."""
    connection = pipelines.connection
    update_ddl(stream, [f"DROP CHANGE STREAM {CHANGE_STREAM}"])
    update_ddl(stream, [f"CREATE CHANGE STREAM {CHANGE_STREAM} FOR ALL"])
    made_ns = connection.strong_read_timestamp_ns()
    load.run(transactions_per_second=20, seconds=1)
    for name in NAMES:
        command = pipelines.remedy(name)
        assert command.endswith("--skip-to earliest")
        before = read_changelog(pipelines.folder / name / "changes").num_rows
        assert pipelines.command(command) == f"{name}: goes on\n"
        written_ns = connection.strong_read_timestamp_ns()
        pipelines.wait_for_watermark(name, written_ns)
        [gap] = pipelines.status(name)["gaps"]
        assert gap["after"] < gap["through"]
        output = read_changelog(pipelines.folder / name / "changes")
        truth = truth_of(stream, made_ns, written_ns, Dialect.GOOGLE_STANDARD_SQL)
        comparison = compare(output, truth.records)
        assert (comparison.missing, comparison.doubled) == ([], [])
        assert len(comparison.unexpected) == before
        # Once done, it is not done again: a later failure is another one.
        refused = slackwater(*shlex.split(command)[1:])
        assert refused.returncode == 2
        assert "does not wait for an operator" in refused.stderr
