"""Of a staged epoch that a successor is removing, no part is read as if it were all."""

import atexit
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.formats import PARQUET
from slackwater.spark_sink.output import task_rows
from slackwater.spark_sink.output.bucket_place import Bucket
from slackwater.spark_sink.output.disk_place import Disk
from slackwater.spark_sink.output.file_reader import FileReader
from slackwater.spark_sink.output.file_writer import FileWriter, written_files_of
from slackwater.spark_sink.output.staging import Staging
from slackwater.spark_sink.output.task_rows import RowsForTasks
from tests.support.epoch_rows import frame, of_two_tables, on_disk
from tests.support.object_stores import BUCKET, ServedStore, s3

IS_GONE = "a task's file, is not there"


@pytest.fixture(scope="module")
def store() -> Iterator[ServedStore]:
    with s3() as served:
        yield served


def test_what_is_staged_on_a_disk_is_read_whole_or_refused(
    session: SparkSession, tmp_path: Path
) -> None:
    spark = session.newSession()
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    staging = Staging(on_disk(tmp_path))
    assert staging.stage(frame(spark, of_two_tables(1)), 1).records == 2
    staged = staging.read_staged(spark, 1)
    assert staged.count() == 2
    small = staging.read_small(1, ["table_name"], 1 << 20)
    assert small is not None
    assert small.num_rows == 2
    first, _ = sorted((tmp_path / "_staging").glob("*/epochs/*.parquet"))
    first.unlink()
    with pytest.raises(PythonException, match=IS_GONE):
        staged.count()
    with pytest.raises(PublishError, match=IS_GONE):
        staging.read_small(1, ["table_name"], 1 << 20)


def test_what_is_staged_on_a_disk_is_read_there_whatever_paths_are_by_default(
    session: SparkSession, tmp_path: Path
) -> None:
    spark = session.newSession()
    spark.conf.set("fs.defaultFS", "hdfs://192.0.2.1:1")
    staging = Staging(Disk(tmp_path, f"file://{tmp_path}"))
    staging.stage(frame(session, of_two_tables(1)), 1)
    assert staging.read_staged(spark, 1).count() == 2


def test_in_a_store_a_former_owner_reads_nothing_that_its_successor_has_removed(
    session: SparkSession, store: ServedStore
) -> None:
    former, successor = (Staging(Bucket(f"{store.path}/owners", store.options)) for _ in range(2))
    former.take_over(session)
    former.stage(frame(session, of_two_tables(1)), 1)
    assert former.read_staged(session, 1).count() == 2
    former.stage(frame(session, of_two_tables(2)), 2)
    staged = former.read_staged(session, 2)
    successor.take_over(session)
    with pytest.raises(PythonException, match=IS_GONE):
        staged.count()


def test_in_a_store_a_part_of_what_tasks_staged_is_not_taken_for_all(
    session: SparkSession, store: ServedStore
) -> None:
    staging = Staging(Bucket(f"{store.path}/by-tasks", store.options))
    staging.stage(frame(session, of_two_tables(1)), 1)
    staged = staging.read_staged(session, 1)
    assert staged.count() == 2
    last = max(store.names("by-tasks/_staging"))
    store.files().delete_file(f"{BUCKET}/{last}")
    with pytest.raises(PythonException, match=IS_GONE):
        staged.count()


def test_large_objects_are_read_from_a_copy(session: SparkSession, store: ServedStore) -> None:
    table = pa.table({"bytes": [os.urandom(1 << 20) for _ in range(17)]})
    writer = FileWriter(f"{store.path}", store.options, "_staging/large-", PARQUET)
    [file] = written_files_of(writer, table)
    assert file.size > 16 << 20
    schema = from_arrow_schema(table.schema)
    assert FileReader.of(writer).frame(session, [file], schema).toArrow() == table


@pytest.mark.parametrize("kind", ["disk", "s3"])
def test_the_driver_holds_a_part_of_the_rows_that_it_passes_to_tasks(
    session: SparkSession,
    store: ServedStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    at_end: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", at_end.append)
    monkeypatch.setattr(task_rows, "_PART", 4 << 20)
    place = on_disk(tmp_path) if kind == "disk" else Bucket(f"{store.path}/passed", store.options)
    schema = pa.schema({"Id": pa.int64(), "Name": pa.string()})
    before, held = pa.total_allocated_bytes(), 0

    def batches(parts: int) -> Iterator[pa.RecordBatch]:
        nonlocal held
        for part in range(parts):
            held = max(held, pa.total_allocated_bytes() - before)
            ids = np.arange(part * 100_000, (part + 1) * 100_000, dtype=np.int32)
            names = pa.repeat(pa.scalar("a name of thirty characters..."), 100_000)
            yield pa.RecordBatch.from_arrays([pa.array(ids), names], names=schema.names)

    def staged() -> list[object]:
        return [*store.names("passed/_staging"), *tmp_path.rglob("*.parquet")]

    rows = RowsForTasks(place)
    frame = rows.frame(session, batches(20), schema)
    assert frame.schema == from_arrow_schema(schema)
    [found] = frame.selectExpr("COUNT(Name)", "SUM(Id)").collect()
    assert tuple(found) == (2_000_000, 1_999_999 * 1_000_000)
    # All of them have 76 MB.
    assert held < 48 << 20
    again = rows.frame(session, batches(4), schema)
    assert again.count() == 400_000
    # The first ones are gone, and all of them at the end.
    files = len(staged())
    assert files > 1
    rows.frame(session, batches(4), schema)
    assert len(staged()) == files
    at_end.pop()()
    assert not staged()
