"""Staged files become commits of a Delta table as they are: once, and only where that suits."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.java import hadoop_conf, jvm_of
from slackwater.spark_sink.output.staging import StagedFiles
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.delta_kernel import KernelWriter

APPLICATION = "slackwater orders"
# Delta's statistics end at milliseconds.
START = datetime(2026, 11, 22, microsecond=999, tzinfo=UTC)


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
        staged = StagedFiles(str(self.folder), 10)
        (delta or Delta()).append(rows, str(self.table), APPLICATION, epoch, staged)

    def ids(self) -> list[int]:
        rows = self.spark.read.format("delta").load(str(self.table)).select("id").collect()
        return sorted(row["id"] for row in rows)

    def actions(self, name: str) -> list[list[dict[str, Any]]]:
        """Return the actions of one name in each commit."""
        entries = sorted((self.table / "_delta_log").glob("*.json"))
        lines = [map(json.loads, entry.read_text().splitlines()) for entry in entries]
        return [[line[name] for line in of_commit if name in line] for of_commit in lines]

    def by_kernel(self) -> list[bool]:
        """Return for each commit whether Kernel made it."""
        return ["Kernel" in info["engineInfo"] for (info,) in self.actions("commitInfo")]


def test_staged_files_land_once_beside_files_of_spark_in_a_path_with_a_space(
    session: SparkSession, tmp_path: Path
) -> None:
    epochs, delta = Epochs(session, tmp_path), Delta()
    for epoch in range(4):
        epochs.append(epoch, delta)
        # Again, by whoever knows nothing of the first time, either way.
        epochs.append(epoch)
        delta.append(epochs.stage(epoch), str(epochs.table), APPLICATION, epoch)
        if epoch == 2:
            delta.maintain(session, str(epochs.table), "slackwater orders", None)
    assert epochs.ids() == list(range(40))
    # The first makes the table; the one after epoch 2 compacts it.
    assert epochs.by_kernel() == [False, True, True, False, True]
    # An empty file is no part of an epoch; the others were moved.
    epochs.append(4, delta)
    assert len(list(epochs.folder.glob("*.parquet"))) == 1
    files = [file["path"] for of_commit in epochs.actions("add") for file in of_commit]
    assert {path.name for path in epochs.table.glob("*.parquet")} == set(files)


def set_interval(epochs: Epochs, commits: int) -> None:
    """Have a checkpoint written so often; it is a commit."""
    properties = f"'delta.checkpointInterval' = '{commits}'"
    table = f"delta.`{epochs.table}`"
    epochs.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({properties})")


def checkpoints(epochs: Epochs) -> list[int]:
    log = epochs.table / "_delta_log"
    return [int(path.name[:20]) for path in sorted(log.glob("*.checkpoint*.parquet"))]


def test_checkpoints_are_written_beside_the_epochs(session: SparkSession, tmp_path: Path) -> None:
    epochs, delta = Epochs(session, tmp_path), Delta()
    epochs.append(0)
    set_interval(epochs, 3)
    for epoch in range(1, 6):
        epochs.append(epoch, delta)
        delta._kernel.checkpoints.wait()
    assert epochs.by_kernel() == [False, False, *[True] * 5]
    assert checkpoints(epochs) == [3, 6]
    for entry in sorted((epochs.table / "_delta_log").glob("*.json"))[:-1]:
        # What is left is in the checkpoint; readers want an entry to begin with.
        entry.unlink()
    epochs.append(5, Delta())
    assert epochs.by_kernel() == [True], "an epoch that the checkpoint knows was added"
    epochs.append(6, delta)
    assert epochs.by_kernel() == [True, True]
    jvm_of(session).org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert epochs.ids() == list(range(70))


def fail(table: DeltaTable) -> None:
    del table
    raise DeltaError("not possible")


@pytest.mark.parametrize("why", ["the table is not on a local disk", "a checkpoint failed"])
def test_spark_writes_the_checkpoints_that_delta_rs_can_not(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    epochs, delta = Epochs(session, tmp_path), Delta()
    epochs.append(0)
    set_interval(epochs, 3)
    if why == "a checkpoint failed":
        monkeypatch.setattr(DeltaTable, "create_checkpoint", fail)
    else:
        monkeypatch.setattr("slackwater.spark_sink.tables.direct_table.local_path", lambda *_: None)
    for epoch in range(1, 6):
        epochs.append(epoch, delta)
        delta._kernel.checkpoints.wait()
    by_kernel = epochs.by_kernel()
    has_failed = why == "a checkpoint failed"
    assert by_kernel == [False, False, True, has_failed, True, True, False]
    assert checkpoints(epochs) == ([6] if has_failed else [3, 6])
    assert epochs.ids() == list(range(60))


def test_hadoop_reads_what_delta_rs_wrote_over_a_file_of_sparks(
    session: SparkSession, tmp_path: Path
) -> None:
    epochs, delta = Epochs(session, tmp_path), Delta()
    epochs.append(0)
    set_interval(epochs, 3)
    epochs.append(1, delta)
    table, log = str(epochs.table), epochs.table / "_delta_log"
    delta.append(epochs.stage(2), table, APPLICATION, 2)
    assert (log / "._last_checkpoint.crc").exists()
    for epoch in (3, 4, 5):
        epochs.append(epoch, delta)
    delta._kernel.checkpoints.wait()
    # Versions 7, by Spark, and 8, which compacts.
    delta.append(epochs.stage(6), table, APPLICATION, 6)
    delta.maintain(session, table, "slackwater orders", None)
    # delta-rs writes its own with the commit before.
    assert checkpoints(epochs) == [3, 6, 8]
    for epoch in (7, 8):
        epochs.append(epoch, delta)
    delta._kernel.checkpoints.wait()
    assert json.loads((log / "_last_checkpoint").read_text())["version"] == 9
    # It compares what it copies with its checksum.
    jvm, copy = jvm_of(session), tmp_path / "copy"
    last, to = (
        jvm.org.apache.hadoop.fs.Path(str(path)) for path in (log / "_last_checkpoint", copy)
    )
    last.getFileSystem(hadoop_conf(session)).copyToLocalFile(False, last, to, True)
    assert json.loads(copy.read_text())["version"] == 9


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
    later_rows = table.where(F.col("low_watermark") >= F.lit(START + timedelta(seconds=2)))
    assert sorted(row["id"] for row in later_rows.collect()) == list(range(20, 30))
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
def test_spark_appends_to_a_table_with_other_requirements(
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


def test_spark_appends_to_a_partitioned_table(session: SparkSession, tmp_path: Path) -> None:
    epochs, delta = Epochs(session, tmp_path), Delta(["table_name"])
    for epoch in range(2):
        epochs.append(epoch, delta)
    assert epochs.ids() == list(range(20))
    assert not any(epochs.by_kernel())
    assert (epochs.table / "table_name=orders").is_dir()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.databricks.delta.optimizeWrite.enabled", "true"),
        ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS"),
    ],
)
def test_spark_appends_if_settings_change_how_it_writes(
    session: SparkSession, tmp_path: Path, name: str, value: str
) -> None:
    epochs, before = Epochs(session, tmp_path), session.conf.get(name, None)
    session.conf.set(name, value)
    try:
        for epoch in range(2):
            epochs.append(epoch)
    finally:
        session.conf.unset(name)
        if before is not None:
            session.conf.set(name, before)
    assert epochs.ids() == list(range(20))
    assert not any(epochs.by_kernel())


def test_one_of_two_concurrent_commits_of_an_epoch_is_refused(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs, other = Epochs(session, tmp_path), Epochs(session, tmp_path)
    other.folder = tmp_path / "staged by the other"
    epochs.append(0)
    commit = KernelWriter._commit

    def late(kernel: KernelWriter, *args: Any) -> None:
        monkeypatch.undo()
        other.append(1)
        commit(kernel, *args)

    monkeypatch.setattr(KernelWriter, "_commit", late)
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
    commit = KernelWriter._commit

    def late(kernel: KernelWriter, *args: Any) -> int:
        Delta().maintain(session, str(epochs.table), "slackwater orders", None)
        return commit(kernel, *args)

    monkeypatch.setattr(KernelWriter, "_commit", late)
    epochs.append(3)
    assert epochs.ids() == list(range(40))
    assert epochs.by_kernel() == [False, True, True, False, True]


def test_a_process_that_dies_before_the_commit_leaves_nothing_that_is_read(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = Epochs(session, tmp_path)
    epochs.append(0)
    moved = KernelWriter._move_into_table

    def dying(kernel: KernelWriter, *args: Any) -> str:
        moved(kernel, *args)
        raise KeyboardInterrupt

    monkeypatch.setattr(KernelWriter, "_move_into_table", dying)
    with pytest.raises(KeyboardInterrupt):
        epochs.append(1)
    monkeypatch.undo()
    assert len(list(epochs.table.glob("*.parquet"))) == 2, "nothing was moved"
    assert epochs.ids() == list(range(10))
    epochs.append(1)
    assert epochs.ids() == list(range(20))


def test_an_incomplete_set_of_staged_files_is_not_committed(
    session: SparkSession, tmp_path: Path
) -> None:
    epochs = Epochs(session, tmp_path)
    epochs.append(0)
    rows = epochs.stage(1)
    max(epochs.folder.glob("*.parquet")).unlink()
    staged = StagedFiles(str(epochs.folder), 10)
    with pytest.raises(PublishError, match="5 of the 10 rows"):
        Delta().append(rows, str(epochs.table), APPLICATION, 1, staged)
    assert epochs.ids() == list(range(10))
    assert len(list(epochs.folder.glob("*.parquet"))) == 2, "a file was moved"


def test_a_relative_path_is_the_same_table(session: SparkSession, tmp_path: Path) -> None:
    jvm: Any = session._jvm
    relative = os.path.relpath(tmp_path, str(jvm.java.lang.System.getProperty("user.dir")))
    epochs = Epochs(session, tmp_path)
    epochs.append(0)
    rows = epochs.stage(1)
    staged = StagedFiles(f"{relative}/staged", 10)
    Delta().append(rows, f"{relative}/the changes", APPLICATION, 1, staged)
    assert epochs.ids() == list(range(20))
    assert epochs.by_kernel() == [False, True]


@pytest.mark.parametrize("missing", ["engine", "input"])
def test_spark_appends_if_kernel_has_another_interface(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    epochs, start = Epochs(session, tmp_path), KernelWriter._start

    def other(kernel: KernelWriter, spark: SparkSession) -> None:
        start(kernel, spark)
        jvm: Any = spark._jvm
        setattr(kernel, f"_{missing}", jvm.java.util.ArrayList())

    monkeypatch.setattr(KernelWriter, "_start", other)
    for epoch in range(2):
        epochs.append(epoch)
    assert epochs.ids() == list(range(20))
    assert not any(epochs.by_kernel())
