"""Staged files become commits of a Delta table as they are: once, and only where that suits."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from slackwater.java import find_java
from slackwater.spark import start_spark, stop_spark
from spark_sink.delta_kernel import Kernel
from spark_sink.delta_table import Delta
from spark_sink.errors import PublishError

APPLICATION = "slackwater orders"
START = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    find_java()
    spark = start_spark(["kernel"], "local[2]", {}, ["delta"])
    yield spark
    stop_spark(spark)


class Epochs:
    """Ten records an epoch, staged as the changelog does it, and the table they go to."""

    def __init__(self, spark: SparkSession, path: Path, table: str = "the changes") -> None:
        self.spark = spark
        self.folder = path / "staged"
        self.table = path / table

    def stage(self, epoch: int) -> DataFrame:
        first = 10 * epoch
        # The first of three files has no row.
        ids = self.spark.range(first - 5, first + 10, numPartitions=3).where(F.col("id") >= first)
        rows = ids.select(
            "id",
            F.lit("orders").alias("table_name"),
            F.lit(START + timedelta(seconds=epoch)).alias("low_watermark"),
        )
        shutil.rmtree(self.folder, ignore_errors=True)
        rows.write.parquet(str(self.folder))
        return self.spark.read.schema(rows.schema).parquet(str(self.folder))

    def append(self, epoch: int, delta: Delta | None = None) -> None:
        rows = self.stage(epoch)
        (delta or Delta()).append(rows, str(self.table), APPLICATION, epoch, str(self.folder))

    def ids(self) -> list[int]:
        found = self.spark.read.format("delta").load(str(self.table)).select("id").collect()
        return sorted(row["id"] for row in found)

    def actions(self, name: str) -> list[list[dict[str, Any]]]:
        """Of one name, in each commit."""
        entries = sorted((self.table / "_delta_log").glob("*.json"))
        lines = [map(json.loads, entry.read_text().splitlines()) for entry in entries]
        return [[line[name] for line in of_commit if name in line] for of_commit in lines]

    def by_kernel(self) -> list[bool]:
        """Whether each commit was made without Spark."""
        return ["Kernel" in info["engineInfo"] for (info,) in self.actions("commitInfo")]


def test_staged_files_land_once_beside_what_spark_writes_in_a_path_with_a_space(
    session: SparkSession, tmp_path: Path
) -> None:
    epochs, delta = Epochs(session, tmp_path), Delta()
    for epoch in range(4):
        epochs.append(epoch, delta)
        # Again, by whoever knows nothing of the first time, either way.
        epochs.append(epoch)
        delta.append(epochs.stage(epoch), str(epochs.table), APPLICATION, epoch)
        if epoch == 2:
            delta.compact(session, str(epochs.table))
    assert epochs.ids() == list(range(40))
    # The first makes the table; the one after epoch 2 compacts it.
    assert epochs.by_kernel() == [False, True, True, False, True]
    # An empty file is no part of an epoch; the others were moved.
    epochs.append(4, delta)
    assert len(list(epochs.folder.glob("*.parquet"))) == 1
    files = [file["path"] for of_commit in epochs.actions("add") for file in of_commit]
    assert {path.name for path in epochs.table.glob("*.parquet")} == set(files)


def test_checkpoints_are_written_when_due_and_know_what_has_landed(
    session: SparkSession, tmp_path: Path
) -> None:
    epochs, delta = Epochs(session, tmp_path), Delta()
    epochs.append(0)
    session.sql(
        f"ALTER TABLE delta.`{epochs.table}` SET TBLPROPERTIES ('delta.checkpointInterval' = '3')"
    )
    for epoch in range(1, 6):
        epochs.append(epoch, delta)
    assert epochs.by_kernel() == [False, False, True, True, True, True, True]
    log = epochs.table / "_delta_log"
    assert [int(path.name[:20]) for path in sorted(log.glob("*.checkpoint*.parquet"))] == [3, 6]
    for entry in sorted(log.glob("*.json"))[:-1]:
        # What is left is in the checkpoint; readers want an entry to begin with.
        entry.unlink()
    epochs.append(5, delta)
    delta.append(epochs.stage(5), str(epochs.table), APPLICATION, 5)
    assert epochs.by_kernel() == [True]
    assert sorted(DeltaTable(epochs.table).to_pyarrow_table()["id"].to_pylist()) == list(range(60))
    epochs.append(6, delta)
    assert epochs.ids() == list(range(70))
    assert epochs.by_kernel() == [True, True]


def test_log_entries_that_are_too_old_are_removed(session: SparkSession, tmp_path: Path) -> None:
    epochs, delta = Epochs(session, tmp_path), Delta()
    epochs.append(0)
    session.sql(
        f"ALTER TABLE delta.`{epochs.table}` SET TBLPROPERTIES ('delta.checkpointInterval' = '3')"
    )
    for epoch in range(1, 4):
        epochs.append(epoch, delta)
    log, old_s = epochs.table / "_delta_log", time.time() - timedelta(days=40).total_seconds()
    for entry in log.iterdir():
        os.utime(entry, (old_s, old_s))
    for epoch in range(4, 6):
        epochs.append(epoch, delta)
    assert len(list(log.glob("*.json"))) < 5, "nothing was removed"
    assert epochs.ids() == list(range(60))


def test_a_files_statistics_are_those_of_its_rows(session: SparkSession, tmp_path: Path) -> None:
    epochs = Epochs(session, tmp_path)
    for epoch in range(3):
        epochs.append(epoch)
    bounds = {"low_watermark": "2026-11-22T00:00:02.000Z", "table_name": "orders"}
    expected = {
        "numRecords": 5,
        "minValues": bounds,
        "maxValues": bounds,
        "nullCount": {"low_watermark": 0, "table_name": 0},
    }
    assert [json.loads(file["stats"]) for file in epochs.actions("add")[2]] == [expected] * 2
    table = session.read.format("delta").load(str(epochs.table))
    found = table.where(F.col("low_watermark") == F.lit(START + timedelta(seconds=2)))
    assert sorted(row["id"] for row in found.collect()) == list(range(20, 30))
    assert table.count() == 30


@pytest.mark.parametrize(
    "asked",
    [
        "ADD CONSTRAINT few CHECK (id < 15)",
        "ADD COLUMNS (note STRING)",
        "SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
        "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        "SET TBLPROPERTIES ('delta.autoOptimize.autoCompact' = 'true')",
    ],
)
def test_a_table_that_asks_for_more_gets_its_rows_from_spark(
    session: SparkSession, tmp_path: Path, asked: str
) -> None:
    epochs, delta = Epochs(session, tmp_path), Delta()
    epochs.append(0, delta)
    session.sql(f"ALTER TABLE delta.`{epochs.table}` {asked}")
    if "CHECK" in asked:
        with pytest.raises(Exception, match="id < 15"):
            epochs.append(1, delta)
        assert epochs.ids() == list(range(10))
    else:
        epochs.append(1, delta)
        assert epochs.ids() == list(range(20))
    assert not any(epochs.by_kernel())


def test_a_table_in_partitions_gets_its_rows_from_spark(
    session: SparkSession, tmp_path: Path
) -> None:
    epochs, delta = Epochs(session, tmp_path), Delta(["table_name"])
    for epoch in range(2):
        epochs.append(epoch, delta)
    assert epochs.ids() == list(range(20))
    assert not any(epochs.by_kernel())
    assert (epochs.table / "table_name=orders").is_dir()


def test_settings_for_how_spark_writes_a_log_are_kept_to(
    session: SparkSession, tmp_path: Path
) -> None:
    epochs = Epochs(session, tmp_path)
    session.conf.set("spark.databricks.delta.optimizeWrite.enabled", "true")
    try:
        for epoch in range(2):
            epochs.append(epoch)
    finally:
        session.conf.unset("spark.databricks.delta.optimizeWrite.enabled")
    assert epochs.ids() == list(range(20))
    assert not any(epochs.by_kernel())


def test_of_two_that_commit_an_epoch_at_once_one_is_refused(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs, other = Epochs(session, tmp_path), Epochs(session, tmp_path)
    other.folder = tmp_path / "staged by the other"
    epochs.append(0)
    moved = Kernel._moved

    def late(kernel: Kernel, *given: Any) -> Any:
        files = moved(kernel, *given)
        monkeypatch.setattr(Kernel, "_moved", moved)
        other.append(1)
        return files

    monkeypatch.setattr(Kernel, "_moved", late)
    with pytest.raises(PublishError, match="another process committed"):
        epochs.append(1)
    assert epochs.ids() == list(range(20))
    # Read again, it is there already.
    epochs.append(1)
    assert epochs.ids() == list(range(20))
    assert epochs.by_kernel() == [False, True]


def test_another_writers_commit_in_between_does_not_lose_an_epoch(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = Epochs(session, tmp_path)
    for epoch in range(3):
        epochs.append(epoch)
    moved = Kernel._moved

    def late(kernel: Kernel, *given: Any) -> Any:
        files = moved(kernel, *given)
        Delta().compact(session, str(epochs.table))
        return files

    monkeypatch.setattr(Kernel, "_moved", late)
    epochs.append(3)
    assert epochs.ids() == list(range(40))
    assert epochs.by_kernel() == [False, True, True, False, True]


def test_who_dies_before_the_commit_leaves_nothing_that_is_read(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = Epochs(session, tmp_path)
    epochs.append(0)
    moved = Kernel._moved

    def dying(kernel: Kernel, *given: Any) -> Any:
        moved(kernel, *given)
        raise KeyboardInterrupt

    monkeypatch.setattr(Kernel, "_moved", dying)
    with pytest.raises(KeyboardInterrupt):
        epochs.append(1)
    monkeypatch.undo()
    assert len(list(epochs.table.glob("*.parquet"))) == 3, "nothing was moved"
    assert epochs.ids() == list(range(10))
    epochs.append(1)
    assert epochs.ids() == list(range(20))


def test_a_relative_path_is_the_same_table(session: SparkSession, tmp_path: Path) -> None:
    jvm: Any = session._jvm
    relative = os.path.relpath(tmp_path, str(jvm.java.lang.System.getProperty("user.dir")))
    epochs = Epochs(session, tmp_path)
    epochs.append(0)
    rows = epochs.stage(1)
    folder = f"{relative}/staged"
    Delta().append(rows, f"{relative}/the changes", APPLICATION, 1, folder)
    assert epochs.ids() == list(range(20))
    assert epochs.by_kernel() == [False, True]


def test_with_a_kernel_that_offers_something_else_spark_appends(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = Epochs(session, tmp_path)

    def other(kernel: Kernel, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        kernel._engine = jvm.java.util.ArrayList()

    monkeypatch.setattr(Kernel, "_start", other)
    for epoch in range(2):
        epochs.append(epoch)
    assert epochs.ids() == list(range(20))
    assert not any(epochs.by_kernel())
