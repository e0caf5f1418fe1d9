"""Epochs become few large folders: by the documented query each record is there once, always."""

import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from slackwater.spark_sink.output.epoch_groups import current_epochs
from slackwater.spark_sink.output.epoch_names import COMPACTED
from slackwater.spark_sink.sink import Sink
from tests.support.epoch_rows import START, frame, inserts, make_sink, of_two_tables
from tests.support.pages import blocks

# The first six are a day's; the seventh is the next day's, and two hours later.
HOURS = (0, 1, 2, 3, 4, 14.5, 17)
[QUERY] = (query for query in blocks("output.md", "sql") if COMPACTED in query)

LAYOUTS: list[dict[str, Any]] = [
    {"format": "parquet"},
    {"format": "parquet", "partition_by": ["table_name", "date"]},
    {"format": "parquet", "envelope": "flat"},
    {"format": "orc"},
    {"format": "json"},
    {"format": "json", "envelope": "wrapped", "partition_by": ["table_name"]},
]


def write_days(spark: SparkSession, folder: Path, **settings: Any) -> Sink:
    """Write epochs of two days, of one or two tables each."""
    sink = make_sink(folder, **settings)
    sink.position(spark)
    for epoch, hours in enumerate(HOURS):
        records = of_two_tables(epoch) if epoch % 2 else [inserts(epoch, at=epoch)]
        summary = sink.stage(frame(spark, records), epoch)
        sink.publish(spark, epoch, summary, START + timedelta(hours=hours))
    return sink


def compact(sink: Any, keep_s: float | None = 0) -> None:
    """Compact the epochs, as the sink's maintenance does."""
    sink._files._compaction.run(keep_s)


def rows(spark: SparkSession, folder: Path, settings: dict[str, Any]) -> list[str]:
    """Return the rows that the query in docs/output.md reads, without the folder's name."""
    name = "text" if settings.get("envelope") == "wrapped" else settings["format"]
    query = QUERY.replace("parquet.`out/changes`", f"{name}.`{folder}`")
    return sorted(str(row) for row in spark.sql(query).drop("epoch").collect())


def folders(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("epoch=*"))


@pytest.mark.parametrize("settings", LAYOUTS, ids=lambda s: "-".join(map(str, s.values())))
def test_a_day_becomes_one_folder_with_the_same_rows(
    session: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    root = tmp_path / "out"
    sink = write_days(session, root, **settings)
    small, before = folders(root), rows(session, root, settings)
    assert len(before) >= len(HOURS) + 3
    compact(sink, keep_s=None)
    compacted = f"{small[-2]}{COMPACTED}"
    # A reader that has listed the small ones has time to read them.
    assert folders(root) == sorted([*small, compacted])
    assert rows(session, root, settings) == before
    compact(sink)
    assert folders(root) == [compacted, small[-1]]
    assert rows(session, root, settings) == before
    for parent, _, files in os.walk(root / compacted):
        assert len(files) <= 1, parent
    # And where the output ends is known without the watermark log.
    shutil.rmtree(root / "_watermarks")
    position = make_sink(root, **settings).position(session)
    assert position is not None
    assert position.complete == START + timedelta(hours=HOURS[-1])


def test_a_query_lists_the_folders_once_and_meets_no_compaction(
    session: SparkSession, tmp_path: Path
) -> None:
    """Between two listings a large folder may appear, whose epochs the second one leaves out."""
    write_days(session, tmp_path, format="parquet")
    spark = session.newSession()
    # Then each listing is a job.
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", 0)
    changes = f"parquet.`{tmp_path}`"

    def jobs(query: str) -> int:
        context = spark.sparkContext
        context.setJobGroup(query, query)
        spark.sql(query)
        return len(context.statusTracker().getJobIdsForGroup(query))

    once = jobs(f"SELECT * FROM {changes}")
    assert once >= 1
    assert jobs(QUERY.replace("parquet.`out/changes`", changes)) == once
    # That of the views.
    assert jobs(f"SELECT * FROM {current_epochs(changes)}") == once


def test_others_read_it_in_the_order_of_the_epochs(session: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "out"
    compact(write_days(session, root, format="parquet"))
    table = ds.dataset(root, partitioning="hive").to_table()
    watermarks = [time.isoformat() for time in table["commit_timestamp"].to_pylist()]
    assert watermarks == sorted(watermarks)
    assert table.num_rows == sum(2 if epoch % 2 else 1 for epoch in range(len(HOURS)))


def test_an_envelope_that_changed_in_between_gets_files_of_its_own(
    session: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "out"
    sink = make_sink(root, format="parquet")
    sink.position(session)
    for epoch, hours in enumerate(HOURS):
        if epoch == 3:
            sink = make_sink(root, format="parquet", envelope="flat")
            sink.position(session)
        summary = sink.stage(frame(session, [inserts(epoch, at=epoch)]), epoch)
        sink.publish(session, epoch, summary, START + timedelta(hours=hours))
    compact(sink)
    [compacted] = root.glob(f"*{COMPACTED}")
    assert len(list(compacted.glob("*.parquet"))) == 2
    assert sum(session.read.parquet(str(file)).count() for file in compacted.iterdir()) == 6
