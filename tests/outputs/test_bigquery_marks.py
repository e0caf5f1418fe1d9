"""The low watermarks of a pipeline in BigQuery: old ones are removed, and never the newest."""

import logging
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from slackwater.spark_sink.output.bigquery import clients
from slackwater.spark_sink.output.bigquery.address import TableAddress
from slackwater.spark_sink.output.bigquery.dataset import Dataset
from slackwater.spark_sink.output.disk_place import Disk
from slackwater.spark_sink.tables.in_bigquery import marks
from slackwater.spark_sink.tables.in_bigquery.dataset_log import DatasetLog
from slackwater.spark_sink.tables.in_bigquery.mirroring import Mirroring
from tests.support.bigquery import DATASET, PROJECT, BigQueryServer, Door
from tests.support.bigquery import door as door
from tests.support.bigquery import server as server

START: Final = datetime(2026, 1, 31, 9, tzinfo=UTC)
MARKS: Final = f"`{PROJECT}.{DATASET}._slackwater`"
EVERY_H: Final = 10


@dataclass
class Pipeline:
    """A pipeline whose epochs have no rows, and an end each of ten hours."""

    server: BigQueryServer
    door: Door
    folder: Path
    mirroring: Mirroring | None = None
    name: str = field(default_factory=lambda: uuid.uuid4().hex)

    def new_process(self) -> DatasetLog:
        dataset = Dataset(TableAddress(PROJECT, DATASET, "any"), self.server.options(self.door))
        place = Disk(self.folder, str(self.folder))
        log = DatasetLog(dataset, place, self.name, self.mirroring)
        log.take_over(lambda: None)
        return log

    def commit(self, log: DatasetLog, number: int, chunk: int | None = None) -> None:
        at = START + timedelta(hours=EVERY_H * number)
        with log.committing(at, chunk, is_stated=True, incomplete=[]):
            pass

    def epochs(self) -> list[int]:
        rows = self.server.query(
            f"SELECT low_watermark FROM {MARKS} WHERE pipeline = '{self.name}' AND chunk IS NULL"
            " ORDER BY low_watermark"
        )
        return [(row["low_watermark"] - START) // timedelta(hours=EVERY_H) for row in rows]


@pytest.fixture
def pipeline(
    server: BigQueryServer, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Pipeline:
    monkeypatch.setattr(marks, "ROWS_MAX", 4)
    return Pipeline(server, door, tmp_path / "log")


def test_low_watermarks_of_the_last_day_stay(pipeline: Pipeline, tmp_path: Path) -> None:
    other = Pipeline(pipeline.server, pipeline.door, tmp_path / "other")
    other.commit(other.new_process(), 1)
    log = pipeline.new_process()
    for number in (1, 2, 3):
        pipeline.commit(log, number)
    assert pipeline.epochs() == [1, 2, 3]
    pipeline.commit(log, 4)
    assert pipeline.epochs() == [2, 3, 4]
    pipeline.commit(log, 5)
    assert pipeline.epochs() == [2, 3, 4, 5]
    assert other.epochs() == [1]


def test_processes_that_end_soon_leave_no_more(pipeline: Pipeline) -> None:
    for number in range(1, 9):
        pipeline.commit(pipeline.new_process(), number)
    assert len(pipeline.epochs()) <= 5
    assert pipeline.epochs()[-1] == 8


def test_chunks_of_a_scan_stay(pipeline: Pipeline) -> None:
    pipeline.mirroring = Mirroring("table")
    log = pipeline.new_process()
    pipeline.commit(log, 0, chunk=0)
    for number in range(1, 9):
        pipeline.commit(log, number)
    assert pipeline.epochs()[-1] == 8
    chunks = pipeline.server.query(
        f"SELECT chunk FROM {MARKS} WHERE pipeline = '{pipeline.name}' AND chunk IS NOT NULL"
    )
    assert len(chunks) == 1
    pipeline.new_process()


def test_a_former_owner_that_wakes_up_in_an_earlier_dataset_leaves_the_newest(
    pipeline: Pipeline,
) -> None:
    log = pipeline.new_process()

    def restore(kind: str, text: str) -> None:
        """Have the dataset restored while the former owner's request is on its way."""
        if "DELETE" in text:
            pipeline.server.query(f"DELETE FROM {MARKS} WHERE low_watermark IS NOT NULL")
            pipeline.server.query(
                f"INSERT INTO {MARKS} (pipeline, low_watermark)"
                f" VALUES ('{pipeline.name}', TIMESTAMP '{START.isoformat()}')"
            )

    pipeline.door.before = restore
    for number in range(1, 5):
        pipeline.commit(log, number)
    assert pipeline.epochs() == [0]


def test_an_epoch_is_committed_though_old_ones_are_not_removed(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clients, "_RETRY_S", 1.0)
    log = pipeline.new_process()

    def refuse(kind: str, text: str) -> None:
        if "DELETE" in text:
            raise RuntimeError("rows in the streaming buffer")

    pipeline.door.before = refuse
    with caplog.at_level(logging.WARNING):
        for number in range(1, 6):
            pipeline.commit(log, number)
    assert pipeline.epochs() == [1, 2, 3, 4, 5]
    assert sum("removing low watermarks failed" in line for line in caplog.messages) == 1
