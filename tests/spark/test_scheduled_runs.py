"""`slackwater run --until-caught-up`, again and again, also finishes what is read again."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from slackwater.config.settings import Settings
from slackwater.demo.service import Service
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.state.rescan_models import NEW_TABLE, OTHER_TABLE, REQUESTED, Rescan, RescanState
from slackwater.state.rescans import rescans
from slackwater.testing.emulator_database import update_ddl
from slackwater.timestamp import format_rfc3339
from tests.proofs.mirrors import KINDS, Kind, mirror_settings
from tests.proofs.rescans import NEW, Pipeline, ddl, insert_many
from tests.support import mixed_load
from tests.support.changing import renamed, spell
from tests.support.command_line import slackwater
from tests.support.emulators import NewDatabase
from tests.support.mixed_load import SINGERS

# More than a run reads with the epochs that it takes to catch up, or to end.
ROWS, ROWS_A_CHUNK = 1_000, 200
PARTITION_ALIVE_S = 20


@contextmanager
def ended_after_a_chunk(pipeline: Pipeline) -> Iterator[None]:
    """End what this process runs, with a signal, as soon as some of a table has been read again.

    `python -m tests.proofs.rescans` kills it.
    """
    is_over = threading.Event()

    def end() -> None:
        pipeline.wait("a chunk", lambda listed: listed[0].chunks or is_over.is_set())
        if not is_over.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    ending = threading.Thread(target=end)
    ending.start()
    try:
        yield
    finally:
        is_over.set()
        ending.join()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("commands_here")
@pytest.mark.parametrize("kind", KINDS[:2], ids=str)
def test_scheduled_runs_finish_a_rescan_and_a_new_table(
    kind: Kind, new_database: NewDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rescanner = "slackwater.pipeline.epochs.rescanner"
    monkeypatch.setattr(f"{rescanner}.FIRST_ROWS", ROWS_A_CHUNK)
    monkeypatch.setattr(f"{rescanner}.next_rows", lambda rows, seconds: rows)
    dialect, capture, deletes, table_format = kind
    stream = new_database(dialect, ddl(dialect, capture), mixed_load.CHANGE_STREAM)
    insert_many(stream, ROWS)
    start_ns = Connection(stream).strong_read_timestamp_ns()
    values = mirror_settings(stream, tmp_path, start_ns, deletes, table_format)
    values["source"] |= {"initial_scan": "no", "new_tables": "scan"}
    pipeline = Pipeline(Service(values, tmp_path, os.environ), values["state"]["url"])
    config = str(pipeline.service.config)

    def run() -> dict[str, Rescan]:
        done = slackwater("run", "-c", config, "--until-caught-up")
        assert done.returncode == 0, done.stderr[-3_000:]
        return {one.table: one for one in pipeline.read(lambda s: rescans(s, "orders"))}

    assert run() == {}
    assert slackwater("rescan", "-c", config, "--table", SINGERS).returncode == 0
    with ended_after_a_chunk(pipeline):
        singers = run()[SINGERS]
    assert singers.chunks
    assert singers.state is RescanState.RUNNING
    singers = run()[SINGERS]
    assert (singers.reason, singers.state, singers.records) == (REQUESTED, RescanState.DONE, ROWS)

    quote = '"' if dialect is Dialect.POSTGRESQL else ""
    update_ddl(
        stream, [f"ALTER CHANGE STREAM {quote}{mixed_load.CHANGE_STREAM}{quote} SET FOR ALL"]
    )
    notes = run()[NEW]
    assert (notes.reason, notes.state, notes.records) == (NEW_TABLE, RescanState.DONE, ROWS)
    # As long as nobody looks at the statements, this may be another table.
    there = [spell(dialect, one) for one in renamed(f"{SINGERS} Other", f"Other {SINGERS}")]
    update_ddl(stream, there)
    singers = run()[SINGERS]
    assert (singers.reason, singers.state, singers.records) == (OTHER_TABLE, RescanState.DONE, ROWS)
    verified = slackwater("verify", "-c", config, "--table", SINGERS, "--table", NEW)
    assert verified.returncode == 0, verified.stdout
    # Nothing is left to do, and a run ends when it has caught up.
    assert run() == {SINGERS: singers, NEW: notes}


@pytest.mark.long
@pytest.mark.usefixtures("commands_here")
def test_a_pipeline_that_ends_for_good_says_that_a_rescan_is_not_finished(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database()
    connection = Connection(stream)
    values = mirror_settings(stream, tmp_path, connection.strong_read_timestamp_ns())
    values["source"] |= {
        "initial_scan": "no",
        "end": format_rfc3339(connection.strong_read_timestamp_ns()),
    }
    config = tmp_path / "slackwater.yaml"
    config.write_text(yaml.safe_dump(Settings.model_validate(values) and values))
    assert slackwater("run", "-c", str(config)).returncode == 0
    assert slackwater("rescan", "-c", str(config), "--table", "*").returncode == 0
    for arguments in ((), ("--until-caught-up",)):
        done = slackwater("run", "-c", str(config), *arguments)
        assert done.returncode == 2
        assert "source.end" in done.stderr.rpartition("slackwater: ")[2]
    assert slackwater("rescan", "-c", str(config), "--table", "*", "--stop").returncode == 0
    assert slackwater("run", "-c", str(config)).returncode == 0
