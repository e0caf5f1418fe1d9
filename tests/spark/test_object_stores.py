"""Changelogs in an object store, which is served here by something that we did not write."""

import io
import json
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from obstore.store import ObjectStore
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import ObjectStoreError, PublishError
from slackwater.spark_sink.formats import ORC, PARQUET, TEXT
from slackwater.spark_sink.output.bucket_place import Bucket
from slackwater.spark_sink.output.epoch_compaction import EpochCompaction
from slackwater.spark_sink.output.epoch_names import COMPACTED, epoch_name
from slackwater.spark_sink.output.epoch_place import Form
from slackwater.spark_sink.output.file_log import FileLog
from slackwater.spark_sink.output.file_writer import WrittenFile, format_writer
from slackwater.spark_sink.output.object_store import open_object_store, remove
from slackwater.spark_sink.output.watermark_log import FOLDER
from slackwater.spark_sink.sink import Sink
from tests.support.epoch_rows import (
    frame,
    large_records,
    low_watermark,
    make_sink,
    of_two_tables,
    require_one_owner,
    write,
)
from tests.support.handed_on import Tasks
from tests.support.object_stores import BUCKET, OTHERS, ServedStore
from tests.support.pages import blocks

REQUESTS_OF_AN_EPOCH_MAX = 10


def sink_in(store: ServedStore, name: str, **settings: Any) -> Sink:
    return make_sink(f"{store.path}/{name}", storage_options=store.options, **settings)


def names(objects: ObjectStore) -> set[str]:
    return {item["path"] for page in objects.list() for item in page}


def rows(path: Path, file_format: str) -> list[str]:
    table: pa.Table = ds.dataset(str(path), format=file_format, partitioning="hive").to_table()
    columns = sorted(table.column_names)
    return sorted(json.dumps(row, default=str) for row in table.select(columns).to_pylist())


def lines(path: Path) -> list[str]:
    return sorted(line for file in path.rglob("part-*") for line in file.read_text().splitlines())


@pytest.mark.parametrize("store", ["s3", *OTHERS], indirect=True)
@pytest.mark.parametrize(
    "settings",
    [
        {"format": "parquet"},
        {"format": "parquet", "envelope": "flat"},
        {"format": "orc"},
        {"format": "json"},
        {"format": "json", "envelope": "wrapped", "updated": True},
        {"format": "parquet", "partition_by": ["table_name", "date"]},
        {"format": "json", "partition_by": ["table_name"]},
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_an_object_store_gets_what_a_disk_gets(
    session: SparkSession, store: ServedStore, tmp_path: Path, settings: dict[str, Any]
) -> None:
    name = tmp_path.name
    in_store, on_disk = sink_in(store, name, **settings), make_sink(tmp_path / "disk", **settings)
    for sink in (in_store, on_disk):
        sink.position(session)
        for epoch in (1, 2):
            write(session, sink, epoch, *of_two_tables(epoch))
    store.download(name, tmp_path / "copy")
    if settings["format"] == "json":
        assert lines(tmp_path / "copy") == lines(tmp_path / "disk") != []
    else:
        reader = session.read.format(settings["format"])
        of_store, of_disk = (reader.load(str(tmp_path / name)) for name in ("copy", "disk"))
        assert of_store.schema == of_disk.schema
        columns = of_disk.columns
        assert sorted(map(str, of_store.select(columns).collect())) == sorted(
            map(str, of_disk.collect())
        )
    # Folders below an epoch's have the same names, too.
    folders = [
        {str(p.parent.relative_to(root)) for p in root.rglob("part-*")}
        for root in (tmp_path / "copy", tmp_path / "disk")
    ]
    assert folders[0] == folders[1]


def test_a_large_epoch_and_a_chunk_are_staged_and_land_whole(
    session: SparkSession, store: ServedStore, tmp_path: Path
) -> None:
    sink = sink_in(store, "large")
    sink.position(session)
    large = large_records()
    write(session, sink, 1, *large)
    scanned = frame(session, of_two_tables(5))
    for _ in range(2):
        # The second time as after a crash.
        assert sink.add_scanned(scanned, 1, low_watermark(0)) == 2
    assert any(method == "PUT" and "_staging/" in name for method, name in store.requests)
    store.download("large", tmp_path)
    assert len(rows(tmp_path, "parquet")) == 6
    assert not [path for path in (tmp_path / "_staging").rglob("*") if path.is_file()]


def test_an_owner_publishes_once_and_a_former_one_nothing(
    session: SparkSession, store: ServedStore, tmp_path: Path
) -> None:
    former, successor = (sink_in(store, "twice") for _ in range(2))
    require_one_owner(session, former, successor, refusal="taken the pipeline over")
    store.download("twice", tmp_path)
    assert len(rows(tmp_path, "parquet")) == 6


@pytest.mark.parametrize("file_format", ["json", "delta"])
def test_an_output_restored_without_epochs_that_its_log_has_is_refused(
    session: SparkSession, store: ServedStore, file_format: str
) -> None:
    name = f"restored-{file_format}"
    sink = sink_in(store, name, format=file_format)
    sink.position(session)
    write(session, sink, 1, *of_two_tables(1))
    objects = open_object_store(f"{store.path}/{name}", store.options)
    before = names(objects)
    write(session, sink, 2, *of_two_tables(2))
    write(session, sink, 3)
    later = names(objects) - before
    remove(objects, [one for one in later if not one.startswith(f"{FOLDER}/")])
    with pytest.raises(PublishError, match="restore the whole path"):
        sink_in(store, name, format=file_format).position(session)
    # As of the same time, it goes on there; epochs without records have only lines.
    remove(objects, names(objects) - before)
    restored: Any = sink_in(store, name, format=file_format)
    assert restored.position(session).complete == low_watermark(1)
    write(session, restored, 2)
    again: Any = sink_in(store, name, format=file_format)
    assert again.position(session).complete == low_watermark(2)


def test_a_small_epoch_costs_few_requests(session: SparkSession, store: ServedStore) -> None:
    sink = sink_in(store, "cheap")
    sink.position(session)
    write(session, sink, 1, *of_two_tables(1))
    before = len(store.requests)
    for epoch in range(2, 5):
        write(session, sink, epoch, *of_two_tables(epoch))
    assert (len(store.requests) - before) / 3 <= REQUESTS_OF_AN_EPOCH_MAX


def test_epochs_are_compacted_beside_the_pipeline(
    session: SparkSession, store: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_in(store, "many", compact_every="1m")
    sink.position(session)
    monkeypatch.setattr("slackwater.spark_sink.output.maintenance.Maintenance.is_due", True)
    for epoch in (1, 2, 3, 86_400):
        write(session, sink, epoch, *of_two_tables(epoch))
        sink._files.maintenance.wait()  # type: ignore[attr-defined]
    large = [name for name in store.names("many/epoch=") if COMPACTED in name]
    assert len(large) == 1
    client = open_object_store(store.path, store.options)
    rows_of_large = pq.read_table(io.BytesIO(bytes(client.get(large[0]).bytes())))
    assert rows_of_large.num_rows == 6


def test_a_bucket_that_does_not_exist_is_named_at_once(
    session: SparkSession, store: ServedStore
) -> None:
    sink = make_sink(
        store.path.replace(BUCKET, "other") + "/changes", storage_options=store.options
    )
    with pytest.raises(ObjectStoreError, match="bucket"):
        sink.position(session)


def test_the_documented_recipes_read_whole_epochs(
    session: SparkSession, store: ServedStore, tmp_path: Path
) -> None:
    sink = sink_in(store, "read")
    sink.position(session)
    tasks = Tasks(sink)
    for epoch in (1, 2):
        tasks.write(epoch, *of_two_tables(epoch))
    client = open_object_store(f"{store.path}/read", store.options)
    (second,) = store.names(f"read/{epoch_name(low_watermark(2))}/")
    # Of an epoch that is not complete.
    content = bytes(client.get(second.removeprefix("read/")).bytes())
    client.put(f"{epoch_name(low_watermark(3))}/part-00000.parquet", content)
    store.download("read", tmp_path)
    in_pyarrow, in_spark = blocks("object-stores.md", "python")
    in_duckdb, *_ = blocks("object-stores.md", "sql")
    names: dict[str, Any] = {"opened": store.files(), "spark": session.newSession()}
    recipe = in_pyarrow.replace("my-bucket/changes", f"{BUCKET}/read")
    exec(recipe.replace('fs.S3FileSystem(region="eu-west-1")', "opened"), names)
    # Their clients of S3 are not ours to try, and DuckDB's is fetched from its own server.
    exec(in_spark.replace("s3a://my-bucket/changes", str(tmp_path)), names)
    copied = in_duckdb.replace("s3://my-bucket/changes", str(tmp_path))
    rows_of_duckdb = duckdb.connect().execute(copied).to_arrow_table()
    epochs = [epoch_name(low_watermark(epoch)).removeprefix("epoch=") for epoch in (1, 2)]
    expected = sorted(2 * epochs)
    assert sorted(names["table"]["epoch"].to_pylist()) == expected
    assert sorted(row["epoch"] for row in names["changes"].collect()) == expected
    assert sorted(rows_of_duckdb["epoch"].to_pylist()) == expected


def as_file(table: pa.Table, file_format: str) -> bytes:
    out = io.BytesIO()
    with closing(format_writer(out, file_format)) as writer:
        writer.write(table)
    return out.getvalue()


@pytest.mark.parametrize(
    ("store", "file_format"),
    [
        *(("s3", file_format) for file_format in (PARQUET, ORC, TEXT)),
        ("gs", PARQUET),
        # Azurite comes by npm, which only the long tests need.
        pytest.param("az", PARQUET, marks=pytest.mark.long),
    ],
    indirect=["store"],
)
def test_epochs_become_one_object_in_a_store(store: ServedStore, file_format: str) -> None:
    path = f"{store.path}/compacted-{file_format}"
    client = open_object_store(path, store.options)
    place = Bucket(path, store.options)
    log = FileLog(place, Form(file_format, file_format))
    log.take_over(lambda: None)
    for number, hours in enumerate((0, 1, 2, 2.5, 17)):
        table = pa.table({"value": [f"row {number}"]})
        written = [WrittenFile("", as_file(table, file_format), None)]
        at = low_watermark(0) + timedelta(hours=hours)
        log.publish(written, at, owner=log.owner)
    EpochCompaction(place, log).run(keep_s=0)
    names = store.names(f"compacted-{file_format}/epoch=")
    assert len(names) == 2
    assert COMPACTED in names[0]
    contents = [bytes(client.get(name.partition("/")[2]).bytes()) for name in names]
    if file_format == TEXT:
        assert b"".join(contents) == b"".join(b"row %d\n" % number for number in range(5))
    else:
        read = pq.read_table if file_format == PARQUET else orc.read_table
        tables = [read(io.BytesIO(content)) for content in contents]
        values = pa.concat_tables(tables)["value"].to_pylist()
        assert values == [f"row {number}" for number in range(5)]
