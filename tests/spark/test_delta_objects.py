"""A changelog in a Delta table in an object store, and the one that Spark writes on a disk."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from slackwater.spark_sink.errors import ObjectStoreError, PublishError
from slackwater.spark_sink.sink import Sink
from tests.epoch_rows import (
    START,
    frame,
    large_records,
    low_watermark,
    make_sink,
    of_two_tables,
    require_one_owner,
    write,
)
from tests.object_stores import BUCKET, OTHERS, ServedStore


def sink_in(store: ServedStore, name: str, **settings: Any) -> Sink:
    return make_sink(
        f"{store.path}/{name}", format="delta", storage_options=store.options, **settings
    )


def table(store: ServedStore, name: str) -> DeltaTable:
    return DeltaTable(f"{store.path}/{name}", storage_options=store.options)


def texts(rows: DataFrame) -> list[str]:
    return sorted(map(str, rows.select(*sorted(rows.columns)).collect()))


@pytest.mark.parametrize("store", ["s3", *OTHERS], indirect=True)
@pytest.mark.parametrize(
    "settings",
    [{"envelope": "flat"}, {"partition_by": ["table_name", "date"]}],
    ids=["flat", "record-partitioned"],
)
def test_an_object_store_gets_the_table_that_spark_writes_to_a_disk(
    session: SparkSession, store: ServedStore, tmp_path: Path, settings: dict[str, Any]
) -> None:
    name = tmp_path.name
    in_store = sink_in(store, name, **settings)
    on_disk = make_sink(tmp_path / "disk", format="delta", **settings)
    for sink in (in_store, on_disk):
        sink.position(session)
        for epoch in (1, 2):
            write(session, sink, epoch, *of_two_tables(epoch))
    store.download(name, tmp_path / "copy")
    of_store, of_disk = (
        session.read.format("delta").load(str(tmp_path / folder)) for folder in ("copy", "disk")
    )
    assert of_store.schema == of_disk.schema
    assert texts(of_store) == texts(of_disk) != []
    # Spark skips files by the statistics that we wrote.
    if "commit_timestamp" in of_store.columns:
        second = F.col("commit_timestamp") >= F.lit(START + dt.timedelta(microseconds=2))
        assert texts(of_store.where(second)) == texts(of_disk.where(second)) != []
    # And it may go on with the table, as on a cluster with Hadoop's connector.
    other = make_sink(tmp_path / "copy", format="delta", **settings)
    assert other.position(session).complete == low_watermark(2)  # type: ignore[union-attr]
    write(session, other, 3, *of_two_tables(3))
    assert (
        session.read.format("delta").load(str(tmp_path / "copy")).count() == of_disk.count() * 3 / 2
    )


def test_a_table_that_spark_wrote_is_gone_on_with(
    session: SparkSession, tmp_path: Path, store: ServedStore
) -> None:
    by_spark = make_sink(tmp_path / "table", format="delta")
    by_spark.position(session)
    write(session, by_spark, 1, *of_two_tables(1))
    store.upload(tmp_path / "table", "moved")
    sink = sink_in(store, "moved")
    assert sink.position(session).complete == low_watermark(1)  # type: ignore[union-attr]
    write(session, sink, 1, *of_two_tables(1))
    write(session, sink, 2, *of_two_tables(2))
    assert table(store, "moved").to_pyarrow_table().num_rows == 4


def test_an_owner_commits_once_and_a_former_one_nothing(
    session: SparkSession, store: ServedStore
) -> None:
    former, successor = (sink_in(store, "twice") for _ in range(2))
    require_one_owner(session, former, successor)
    assert table(store, "twice").to_pyarrow_table().num_rows == 6


def test_a_large_epoch_and_a_chunk_are_the_tasks_files_and_land_once(
    session: SparkSession, store: ServedStore
) -> None:
    sink = sink_in(store, "large")
    sink.position(session)
    large = large_records()
    for _ in range(2):
        write(session, sink, 1, *large)
    scanned = frame(session, of_two_tables(5))
    for _ in range(2):
        # The second time as after a crash.
        assert sink.add_scanned(scanned, 1, low_watermark(0)) == 2
    read = table(store, "large")
    assert read.to_pyarrow_table().num_rows == 6
    actions = read.get_add_actions(flatten=True)
    assert sum(actions["num_records"].to_pylist()) == 6
    # What the second attempts wrote is removed.
    names = [name for _, name in store.requests if name.startswith("large/part-")]
    assert len(store.names("large/part-")) == len(read.file_uris()) < len(set(names))


def test_the_table_is_compacted_and_can_be_read_meanwhile(
    session: SparkSession, store: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_in(store, "compacted", compact_every="1m")
    sink.position(session)
    for epoch in (1, 2, 3):
        write(session, sink, epoch, *of_two_tables(epoch))
    monkeypatch.setattr("slackwater.spark_sink.output.maintenance.Maintenance.is_due", True)
    reader = table(store, "compacted")
    write(session, sink, 4, *of_two_tables(4))
    sink._files._maintenance.wait()  # type: ignore[attr-defined]
    assert reader.to_pyarrow_table().num_rows == 6
    reader.update_incremental()
    assert reader.to_pyarrow_table().num_rows == 8
    assert len(reader.file_uris()) == 1


def test_what_is_wrong_with_the_place_is_named(session: SparkSession, store: ServedStore) -> None:
    nowhere = make_sink(
        store.path.replace(BUCKET, "other") + "/changes",
        format="delta",
        storage_options=store.options,
    )
    with pytest.raises(PublishError, match="bucket"):
        nowhere.position(session)
    written = sink_in(store, "columns")
    written.position(session)
    write(session, written, 1, *of_two_tables(1))
    other = sink_in(store, "columns", envelope="wrapped")
    other.position(session)
    with pytest.raises(ObjectStoreError, match="envelope"):
        write(session, other, 2, *of_two_tables(2))
