"""Of a staged epoch that a successor is removing, no part is read as if it were all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from slackwater.reader.schema import SCHEMA
from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.bucket_place import Bucket
from slackwater.spark_sink.output.disk_place import Disk
from slackwater.spark_sink.output.staging import Staging
from slackwater.spark_sink.output.task_writer import TaskWriter
from tests.epoch_rows import frame, inserts, of_two_tables, on_disk
from tests.hadoop_stores import reached_by
from tests.handed_on import HandedOn
from tests.object_stores import BUCKET, ServedStore, nothing


@pytest.fixture(scope="module")
def s3a(session: SparkSession) -> Iterator[tuple[SparkSession, ServedStore]]:
    spark = session.newSession()
    # As the recipe for readers has it.
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    with reached_by(spark, "s3a") as (store, _):
        yield spark, store


def test_what_is_staged_on_a_disk_is_read_whole_or_refused(
    session: SparkSession, tmp_path: Path
) -> None:
    spark = session.newSession()
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    staging = Staging(on_disk(tmp_path))
    assert staging.stage(frame(spark, of_two_tables(1)), 1).records == 2
    listed_before = staging.read_staged(spark, 1)
    assert listed_before.count() == 2
    small = staging.read_small(1, ["table_name"], 1 << 20)
    assert small is not None
    assert small.num_rows == 2
    first, _ = sorted((tmp_path / "_staging").glob("*/epochs/*.parquet"))
    first.unlink()
    with pytest.raises(PublishError, match=r"has . of the 2 files"):
        staging.read_staged(spark, 1)
    with pytest.raises(PublishError, match="a task's file, is not there"):
        staging.read_small(1, ["table_name"], 1 << 20)
    with pytest.raises(Exception, match="FILE_NOT_EXIST"):
        listed_before.count()


def test_what_is_staged_on_a_disk_is_read_there_whatever_paths_are_by_default(
    session: SparkSession, tmp_path: Path
) -> None:
    spark = session.newSession()
    spark.conf.set("fs.defaultFS", "hdfs://192.0.2.1:1")
    staging = Staging(Disk(tmp_path, f"file://{tmp_path}"))
    staging.stage(frame(session, of_two_tables(1)), 1)
    assert staging.read_staged(spark, 1).count() == 2


def test_in_a_store_a_former_owner_holds_nothing_that_its_successor_does_not_remove(
    s3a: tuple[SparkSession, ServedStore],
) -> None:
    spark, store = s3a
    former, successor = (Staging(Bucket(f"s3a://{BUCKET}/owners", store.options)) for _ in range(2))
    former.take_over(spark)
    former.stage(frame(spark, of_two_tables(1)), 1)
    assert former.read_staged(spark, 1).count() == 2
    former.stage(frame(spark, of_two_tables(2)), 2)
    successor.take_over(spark)
    with pytest.raises(PublishError, match="has 0 of the 2 files"):
        former.read_staged(spark, 2)


def test_in_a_store_a_former_owner_merges_no_part_of_what_tasks_staged(
    s3a: tuple[SparkSession, ServedStore],
) -> None:
    spark, store = s3a
    staging = Staging(Bucket(f"s3a://{BUCKET}/by-tasks", store.options))
    text = staging.task_writer(spark, from_arrow_schema(SCHEMA))
    assert text is not None
    records = [inserts(1, at=1), inserts(2, at=2)]
    rows: Any = HandedOn.by_tasks(TaskWriter.from_text(text), records, spark)
    staging.stage(rows, 1)
    assert staging.read_staged(spark, 1).count() == 2
    last = max(store.names("by-tasks/_staging"))
    looks = 0

    def before(method: str, name: str) -> None:
        nonlocal looks
        looks += (method, name) == ("HEAD", last)
        # Spark has seen that all are there, and lists them now.
        if looks == 2:
            store.before = nothing
            store.files().delete_file(f"{BUCKET}/{last}")

    store.before = before
    with pytest.raises(PublishError, match="has 1 of the 2 files"):
        staging.read_staged(spark, 1)
    assert looks == 2
