"""What tasks write by themselves is what Spark writes, and no more of it becomes visible."""

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.formats import write_options
from slackwater.spark_sink.java import map_in_arrow
from slackwater.spark_sink.output import task_writer
from slackwater.spark_sink.output.parquet_stats import rows_of
from slackwater.spark_sink.output.task_writer import HANDED_ON, TaskWriter
from slackwater.spark_sink.sink import EpochSummary, Sink, TaskWriting
from tests.support.epoch_rows import (
    Record,
    frame,
    inserts,
    large_records,
    low_watermark,
    make_sink,
    of_two_tables,
    write,
)
from tests.support.object_stores import ServedStore

FORMATS = [
    {"format": "parquet", "partition_by": ["table_name", "date"]},
    {"format": "delta"},
    *(
        pytest.param(settings, marks=pytest.mark.long)
        for settings in (
            {"format": "parquet"},
            {"format": "orc"},
            {"format": "iceberg"},
            {"format": "orc", "partition_by": ["date"]},
            {"format": "delta", "partition_by": ["table_name"]},
        )
    ),
]


def names(settings: dict[str, Any]) -> str:
    return "-".join(map(str, settings.values()))


def handed_on(
    spark: SparkSession, sink: Sink, *records: Record, is_scan: bool = False
) -> DataFrame:
    """Return what tasks hand on that write the records."""
    assert isinstance(sink, TaskWriting)
    rows = frame(spark, records)
    return in_tasks(rows, sink.task_writer(spark, rows.schema, is_scan=is_scan))


def in_tasks(rows: DataFrame, text: str | None) -> DataFrame:
    assert text is not None
    return map_in_arrow(rows, TaskWriter.from_text(text).write, HANDED_ON)


def write_in_tasks(spark: SparkSession, sink: Sink, epoch: int, *records: Record) -> None:
    summary = sink.stage(handed_on(spark, sink, *records), epoch)
    sink.publish(spark, epoch, summary, low_watermark(epoch))


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("part-*") if p.is_file() and p.suffix != ".crc")


@pytest.mark.parametrize("settings", FORMATS, ids=names)
def test_tasks_leave_what_spark_leaves(
    session: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    by_spark, by_tasks = (make_sink(tmp_path / name, **settings) for name in ("spark", "tasks"))
    ways: dict[str, tuple[Sink, Callable[..., DataFrame]]] = {
        "spark": (by_spark, lambda sink, *records, **_: frame(session, records)),
        "tasks": (by_tasks, lambda sink, *records, **kw: handed_on(session, sink, *records, **kw)),
    }
    summaries: dict[str, list[Any]] = {name: [] for name in ways}
    for name, (sink, made) in ways.items():
        sink.position(session)
        for _ in range(2):
            # The second time as after a crash.
            scanned = made(sink, *of_two_tables(9), is_scan=True)
            assert sink.add_scanned(scanned, 1, low_watermark(0)) == 2
        # A chunk of empty tables.
        assert sink.add_scanned(made(sink, is_scan=True), 2, low_watermark(0)) == 0
        sink.end_scan(session, 2, low_watermark(0))
        for epoch, records in ((1, of_two_tables(1)), (2, []), (3, of_two_tables(3))):
            for _ in range(2):
                summary = sink.stage(made(sink, *records), epoch)
                sink.publish(session, epoch, summary, low_watermark(epoch))
                summaries[name].append(summary)
        position = sink.position(session)
        assert position is not None
        assert position.complete == low_watermark(3)
    assert list(map(counted, summaries["spark"])) == list(map(counted, summaries["tasks"]))
    read = [read_all(session, tmp_path / name, settings["format"]) for name in ways]
    assert read[0].schema == read[1].schema
    columns = read[0].columns
    left = [sorted(map(str, rows.select(columns).collect())) for rows in read]
    assert left[0] == left[1]
    assert len(left[0]) == 6


def counted(summary: EpochSummary) -> list[Any]:
    """Return the counts; Spark's times are the machine's, without saying so."""
    values = asdict(summary).values()
    return [v.astimezone(UTC) if isinstance(v, datetime) else v for v in values]


def read_all(spark: SparkSession, path: Path, file_format: str) -> DataFrame:
    if file_format == "iceberg":
        return spark.read.format("iceberg").load(str(path))
    return spark.read.format(file_format).load(str(path))


@pytest.mark.parametrize("store", ["s3"], indirect=True)
@pytest.mark.parametrize(
    "settings",
    [
        {"format": "parquet"},
        {"format": "delta", "partition_by": ["date"]},
        *(
            pytest.param(settings, marks=pytest.mark.long)
            for settings in (
                {"format": "parquet", "partition_by": ["table_name", "date"]},
                {"format": "orc"},
                {"format": "delta"},
            )
        ),
    ],
    ids=names,
)
def test_tasks_write_to_an_object_store_what_they_write_to_a_disk(
    session: SparkSession, store: ServedStore, tmp_path: Path, settings: dict[str, Any]
) -> None:
    name = tmp_path.name
    in_store = make_sink(f"{store.path}/{name}", storage_options=store.options, **settings)
    on_disk = make_sink(tmp_path / "disk", **settings)
    for sink in (in_store, on_disk):
        sink.position(session)
        write_in_tasks(session, sink, 1, *of_two_tables(1))
        # Staged, and not in a commit.
        write_in_tasks(session, sink, 2, *large_records())
        write_in_tasks(session, sink, 3)
        write(session, sink, 4, *of_two_tables(4))
    store.download(name, tmp_path / "copy")
    left = [rows(tmp_path / folder, settings["format"]) for folder in ("copy", "disk")]
    assert left[0] == left[1]
    assert len(left[0]) == 8
    assert not files(tmp_path / "copy" / "_staging")


def rows(path: Path, file_format: str) -> list[str]:
    dataset = (
        DeltaTable(path).to_pyarrow_dataset()
        if file_format == "delta"
        else ds.dataset(str(path), format=file_format, partitioning="hive")
    )
    table: pa.Table = dataset.to_table()
    # The folder's name, which Delta has not.
    columns = sorted(set(table.column_names) - {"epoch"})
    return sorted(json.dumps(row, default=str) for row in table.select(columns).to_pylist())


@pytest.mark.parametrize("file_format", ["parquet", "delta"])
def test_files_of_failed_attempts_are_no_part_of_an_epoch(
    session: SparkSession, tmp_path: Path, file_format: str
) -> None:
    sink = make_sink(tmp_path, format=file_format)
    sink.position(session)
    # All of an attempt whose task was then tried again.
    handed_on(session, sink, *of_two_tables(1)).collect()
    assert files(tmp_path / "_staging")
    write_in_tasks(session, sink, 1, *of_two_tables(1))
    assert files(tmp_path / "_staging") == []
    assert len(rows(tmp_path, file_format)) == 2


@pytest.mark.parametrize("is_delta", [False, True], ids=["parquet", "delta"])
def test_a_former_owner_whose_tasks_have_written_publishes_nothing(
    session: SparkSession, tmp_path: Path, *, is_delta: bool
) -> None:
    settings = {"format": "delta" if is_delta else "parquet"}
    former, second, last = (make_sink(tmp_path, **settings) for _ in range(3))
    former.position(session)
    write_in_tasks(session, former, 1, *of_two_tables(1))
    # It freezes when its tasks are done, and when their files are an epoch's.
    handed = handed_on(session, former, *of_two_tables(2)).localCheckpoint()
    second.position(session)
    with pytest.raises(PublishError, match=r"be (staged|moved)"):
        former.publish(session, 2, former.stage(handed, 2), low_watermark(2))
    summary = former.stage(handed_on(session, former, *of_two_tables(2)), 2)
    last.position(session)
    with pytest.raises(PublishError):
        former.publish(session, 2, summary, low_watermark(2))
    write_in_tasks(session, last, 2, *of_two_tables(2), *of_two_tables(3))
    assert len(rows(tmp_path, settings["format"])) == 6


def test_a_file_that_is_not_whole_is_no_part_of_an_epoch(
    session: SparkSession, tmp_path: Path
) -> None:
    sink = make_sink(tmp_path, format="parquet")
    sink.position(session)
    handed = handed_on(session, sink, inserts(1, at=1)).localCheckpoint()
    (file,) = (tmp_path / "_staging").rglob("part-*")
    file.write_bytes(file.read_bytes()[:-1])
    summary = sink.stage(handed, 1)
    with pytest.raises(PublishError, match="bytes that a task wrote"):
        sink.publish(session, 1, summary, low_watermark(1))


def test_a_row_that_a_file_lacks_stops_the_epoch(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make_sink(tmp_path, format="parquet")
    handed = handed_on(session, sink, *of_two_tables(1)).localCheckpoint()
    monkeypatch.setattr(task_writer, "rows_of", lambda stats: rows_of(stats) - 1)
    with pytest.raises(PublishError, match="of the 2 rows that tasks wrote"):
        sink.stage(handed, 1)


def test_readers_find_what_a_broken_disk_has_changed(session: SparkSession, tmp_path: Path) -> None:
    sink = make_sink(tmp_path, format="parquet")
    sink.position(session)
    write_in_tasks(session, sink, 1, inserts(1, at=1))
    (file,) = tmp_path.glob("epoch=*/part-*")
    content = file.read_bytes()
    at = content.index(b'"Name": "n1"')
    file.write_bytes(content[:at] + b'"Name": "n2"' + content[at + len(b'"Name": "n1"') :])
    with pytest.raises(OSError, match="checksum"):
        pq.ParquetFile(file, page_checksum_verification=True).read()
    reader = session.read.option("parquet.page.verify-checksum.enabled", "true")
    with pytest.raises(Exception, match=r"(?i)checksum"):
        reader.parquet(str(file)).collect()


@pytest.mark.parametrize(
    "settings",
    [
        {"format": "parquet", "envelope": "flat"},
        {"format": "iceberg", "envelope": "wrapped"},
    ],
    ids=names,
)
def test_messages_are_left_to_other_tasks(
    session: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    sink = make_sink(tmp_path, **settings)
    assert isinstance(sink, TaskWriting)
    assert sink.task_writer(session, frame(session, []).schema) is None


def test_lines_of_json_are_as_spark_writes_records(session: SparkSession, tmp_path: Path) -> None:
    sink = make_sink(tmp_path, format="json")
    sink.position(session)
    rows = frame(session, of_two_tables(1))
    write_in_tasks(session, sink, 1, *of_two_tables(1))
    by_spark = F.to_json(F.struct(*rows.columns), dict(write_options("json")))
    expected = sorted(row[0] for row in rows.select(by_spark).collect())
    written = tmp_path.glob("epoch=*/part-*.json")
    assert sorted(line for file in written for line in file.read_text().splitlines()) == expected
