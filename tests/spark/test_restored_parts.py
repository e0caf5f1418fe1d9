"""Restored or lost parts of a real pipeline: each row of the table in docs/reliability.md."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from slackwater.demo.load import Load
from slackwater.errors import PartsDisagreeError
from slackwater.reader.change_stream import Dialect
from slackwater.state.store import Store
from slackwater.testing.emulator import Emulator
from tests.emulators import database_on
from tests.restores import Part, Restorable, copy_store, go_on, restore_store, session

WENT_ON, REFUSED = "went on", "refused, remedy carried out"
STORE, CHECKPOINT, OUTPUT = Part


@pytest.fixture(scope="module")
def spark(emulator: Emulator) -> Iterator[SparkSession]:
    del emulator
    with session() as started:
        yield started


class Restored:
    """A pipeline that has caught up, and a copy of all its parts from before its last epochs."""

    def __init__(self, pipeline: Restorable, copies: Path) -> None:
        self.pipeline = pipeline
        self._copies = copies
        self._load = Load(pipeline.stream, Dialect.GOOGLE_STANDARD_SQL, seed=7)
        self._count = 0

    def write(self) -> None:
        for _ in range(20):
            self._load.transaction()

    @property
    def copy(self) -> Path:
        return self._copies / str(self._count)

    def go_ahead(self) -> None:
        """Copy all parts, then commit further epochs."""
        self._count += 1
        self.pipeline.copy(self.copy)
        self.write()
        self.pipeline.run()
        self.write()


@pytest.fixture(scope="module")
def restored(
    emulator: Emulator, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Restored]:
    folder = tmp_path_factory.mktemp("restored")
    pipeline = Restorable(spark, database_on(emulator), folder, f"sqlite:///{folder / 'state.db'}")
    pipeline.run()
    yield Restored(pipeline, folder / "copies")
    pipeline.close()


@pytest.mark.parametrize(
    ("parts", "outcome"),
    [
        ([STORE], WENT_ON),
        ([CHECKPOINT], REFUSED),
        ([OUTPUT], REFUSED),
        ([STORE, CHECKPOINT], REFUSED),
        ([STORE, OUTPUT], REFUSED),
        ([CHECKPOINT, OUTPUT], REFUSED),
        ([STORE, CHECKPOINT, OUTPUT], WENT_ON),
    ],
)
def test_an_older_part_doubles_nothing_and_loses_nothing(
    restored: Restored, parts: list[Part], outcome: str
) -> None:
    restored.go_ahead()
    restored.pipeline.restore(parts, restored.copy)
    assert go_on(restored.pipeline) == outcome
    restored.pipeline.require_equal()


@pytest.mark.parametrize(
    ("parts", "outcome"),
    [([STORE], WENT_ON), ([CHECKPOINT], REFUSED), ([STORE, CHECKPOINT], REFUSED)],
)
def test_a_lost_part_doubles_nothing_and_loses_nothing(
    restored: Restored, parts: list[Part], outcome: str, tmp_path: Path
) -> None:
    empty_url = f"sqlite:///{tmp_path / 'empty.db'}"
    Store.open(empty_url, migrate=True).close()
    (tmp_path / STORE).mkdir()
    copy_store(empty_url, tmp_path / STORE)
    restored.write()
    restored.pipeline.restore(parts, tmp_path)
    assert go_on(restored.pipeline) == outcome
    restored.pipeline.require_equal()


def empty(pipeline: Restorable) -> None:
    shutil.rmtree(pipeline.folder / OUTPUT)


def tear(pipeline: Restorable) -> None:
    offsets = pipeline.folder / CHECKPOINT / "offsets"
    max(offsets.glob("[0-9]*"), key=lambda path: int(path.name)).unlink()


def give_away(pipeline: Restorable) -> None:
    log = pipeline.folder / OUTPUT / "_watermarks"
    for path in log.rglob("*.json"):
        lines = [json.loads(line) | {"pipeline": "users"} for line in path.read_text().splitlines()]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (empty, "the output is empty"),
        (tear, "does not have as planned"),
        (give_away, "the output is another pipeline's"),
    ],
)
def test_what_can_not_be_known_is_refused(
    restored: Restored, damage: Callable[[Restorable], None], reason: str, tmp_path: Path
) -> None:
    restored.pipeline.copy(tmp_path)
    damage(restored.pipeline)
    with pytest.raises(PartsDisagreeError, match=reason):
        restored.pipeline.run()
    restored.pipeline.restore(list(Part), tmp_path)
    assert go_on(restored.pipeline) == WENT_ON
    restored.pipeline.require_equal()


def test_a_store_that_goes_back_while_the_pipeline_runs_doubles_nothing(restored: Restored) -> None:
    """A failover to a replica that lacks the last seconds."""
    pipeline = restored.pipeline
    with pipeline.running():
        pipeline.wait_for_epochs(1)
        replica = restored.copy / "replica"
        replica.mkdir(parents=True)
        copy_store(pipeline.store_url, replica)
        for _ in range(3):
            restored.write()
            pipeline.wait_for_epochs(1)
        restore_store(pipeline.store_url, replica)
        restored.write()
        pipeline.wait_for_epochs(2)
    pipeline.run()
    pipeline.require_equal()
