"""A changelog in one table, on a disk and in object stores, beside what Spark makes of it."""

import datetime as dt
import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from slackwater.spark_sink.errors import FileSystemError, ObjectStoreError, PublishError
from slackwater.spark_sink.java import hadoop_conf, jvm_of
from slackwater.spark_sink.output.application import application_of
from slackwater.spark_sink.output.delta.delta_commits import DeltaCommits
from slackwater.spark_sink.output.iceberg.iceberg_commits import IcebergCommits
from slackwater.spark_sink.output.maintenance import MaintenancePolicy
from slackwater.spark_sink.output.table_files import DiskFiles
from slackwater.spark_sink.tables.iceberg import Iceberg
from slackwater.timestamp import datetime_to_us
from tests.support.epoch_rows import (
    PIPELINE,
    START,
    frame,
    inserts,
    large_records,
    low_watermark,
    make_sink,
    of_two_tables,
    require_one_owner,
    write,
)
from tests.support.object_stores import BUCKET, OTHERS, STORES, ServedStore
from tests.support.read_tables import iceberg_at, rows_at, sql_name
from tests.support.table_places import Place, names_of_all

TABLES = ["delta", "iceberg"]
OF_EACH_FORMAT = pytest.mark.parametrize("file_format", TABLES)
# Where in a table its files are.
DATA = {"delta": "", "iceberg": "data/"}
SHAPES = pytest.mark.parametrize(
    "settings",
    [{"envelope": "flat"}, {"partition_by": ["table_name", "date"]}],
    ids=["flat", "record-partitioned"],
)


@pytest.fixture(scope="module", params=["disk", "s3", *OTHERS])
def storage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    if request.param == "disk":
        yield Place(str(tmp_path_factory.mktemp("a disk 100%")))
        return
    with STORES[request.param]() as store:
        yield Place(store.path, store)


@pytest.fixture(params=TABLES)
def place(storage: Place, request: pytest.FixtureRequest) -> Place:
    return Place(f"{storage.root}/{request.param}", storage.store, request.param)


def texts(rows: DataFrame) -> list[str]:
    return sorted(map(str, rows.select(*sorted(rows.columns)).collect()))


def by_spark(session: SparkSession, path: Path, file_format: str = "delta") -> DataFrame:
    if file_format == "iceberg":
        # In a path that is loaded, # has a meaning.
        return session.table(sql_name(session, Iceberg(), path))
    return session.read.format(file_format).load(str(path))


@pytest.mark.parametrize("store", ["s3", *OTHERS], indirect=True)
@SHAPES
def test_an_object_store_gets_the_table_that_a_disk_does(
    session: SparkSession, store: ServedStore, tmp_path: Path, settings: dict[str, Any]
) -> None:
    name = tmp_path.name
    in_store = Place(store.path, store).sink(name, **settings)
    on_disk = make_sink(tmp_path / "disk", format="delta", **settings)
    for sink in (in_store, on_disk):
        sink.position(session)
        for epoch in (1, 2):
            write(session, sink, epoch, *of_two_tables(epoch))
    store.download(name, tmp_path / "copy")
    of_store, of_disk = (by_spark(session, tmp_path / folder) for folder in ("copy", "disk"))
    assert of_store.schema == of_disk.schema
    assert texts(of_store) == texts(of_disk) != []
    # Spark skips files by the statistics that we wrote.
    if "commit_timestamp" in of_store.columns:
        second = F.col("commit_timestamp") >= F.lit(START + dt.timedelta(microseconds=2))
        assert texts(of_store.where(second)) == texts(of_disk.where(second)) != []
    # And a table may move to a disk.
    other = make_sink(tmp_path / "copy", format="delta", **settings)
    assert other.position(session).complete == low_watermark(2)  # type: ignore[union-attr]
    write(session, other, 3, *of_two_tables(3))
    assert by_spark(session, tmp_path / "copy").count() == of_disk.count() * 3 / 2


@SHAPES
def test_iceberg_s_table_is_what_spark_reads_of_the_same_records(
    session: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    sink = make_sink(tmp_path / "table", format="iceberg", **settings)
    delta = make_sink(tmp_path / "delta", format="delta", **settings)
    for one in (sink, delta):
        one.position(session)
        for epoch in (1, 2):
            write(session, one, epoch, *of_two_tables(epoch))
    read, expected = (
        by_spark(session, tmp_path / "table", "iceberg"),
        by_spark(session, tmp_path / "delta"),
    )
    assert read.schema == expected.schema
    assert texts(read) == texts(expected) != []
    # Spark skips files by the bounds that we wrote.
    if "commit_timestamp" in read.columns:
        second = F.col("commit_timestamp") >= F.lit(START + dt.timedelta(microseconds=2))
        assert texts(read.where(second)) == texts(expected.where(second)) != []
        scan = iceberg_at(f"{tmp_path}/table").scan("table_name = 'Keys'")
        assert len(list(scan.plan_files())) == 2


@SHAPES
def test_a_table_is_the_one_that_spark_would_write(
    session: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    sink = make_sink(tmp_path / "table", format="delta", **settings)
    lines = make_sink(tmp_path / "parquet", format="parquet", **settings)
    for one in (sink, lines):
        one.position(session)
        for epoch in (1, 2):
            write(session, one, epoch, *of_two_tables(epoch))
    read = by_spark(session, tmp_path / "table")
    # Dates of folders in files are read as what they look like.
    files = session.read.parquet(str(tmp_path / "parquet")).select(*read.columns)
    assert texts(read) == texts(files) != []
    # As Spark lands what it reads there in a table of its own.
    files.write.format("delta").partitionBy(*settings.get("partition_by", ())).save(
        str(tmp_path / "of spark")
    )
    assert by_spark(session, tmp_path / "of spark").schema == read.schema
    # Spark skips files by the statistics that we wrote.
    if "commit_timestamp" in read.columns:
        second = F.col("commit_timestamp") >= F.lit(START + dt.timedelta(microseconds=2))
        assert texts(read.where(second)) == texts(files.where(second)) != []
        assert len(read.where(F.col("table_name") == "Keys").inputFiles()) == 2


def test_a_table_that_spark_wrote_is_gone_on_with(
    session: SparkSession, tmp_path: Path, storage: Place
) -> None:
    place = storage
    made = make_sink(tmp_path / "made", format="delta")
    write(session, made, 0, *of_two_tables(0))
    rows = by_spark(session, tmp_path / "made")
    folder = tmp_path / "table"
    application, version = application_of(PIPELINE), datetime_to_us(low_watermark(1))
    writer = rows.write.format("delta").option("txnAppId", application)
    writer.option("txnVersion", version).save(str(folder))
    if place.store:
        place.store.upload(folder, "moved")
    else:
        folder.rename(Path(place.root, "moved"))
    sink = place.sink("moved")
    assert sink.position(session).complete == low_watermark(1)  # type: ignore[union-attr]
    write(session, sink, 1, *of_two_tables(1))
    write(session, sink, 2, *of_two_tables(2))
    assert place.count("moved") == 4


def test_an_owner_commits_once_and_a_former_one_nothing(
    session: SparkSession, place: Place
) -> None:
    former, successor = (place.sink("twice") for _ in range(2))
    require_one_owner(session, former, successor)
    assert place.count("twice") == 6


def test_a_large_epoch_and_a_chunk_are_the_tasks_files_and_land_once(
    session: SparkSession, place: Place
) -> None:
    sink = place.sink("large")
    sink.position(session)
    large = large_records()
    for _ in range(2):
        write(session, sink, 1, *large)
    scanned = frame(session, of_two_tables(5))
    for _ in range(2):
        # The second time as after a crash.
        assert sink.add_scanned(scanned, 1, low_watermark(0)) == 2
    assert place.count("large") == 6
    files = place.files("large")
    assert sum(files.values()) == 6
    # What the second attempts wrote is removed.
    if place.store:
        begin = f"{place.format}/large/{DATA[place.format]}part-"
        names = {name for _, name in place.store.requests if name.startswith(begin)}
        assert len(place.store.names(begin)) == len(files) < len(names)
    else:
        found = Path(place.root, "large").rglob("*.parquet")
        assert len([path for path in found if "_delta_log" not in path.parts]) == len(files)


@pytest.mark.parametrize("partition_by", [[], ["table_name", "date"]], ids=["plain", "partitioned"])
def test_the_table_is_compacted_and_can_be_read_meanwhile(
    session: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch, partition_by: list[str]
) -> None:
    name = f"compacted-{len(partition_by)}"
    sink = place.sink(name, compact_every="1m", partition_by=partition_by)
    sink.position(session)
    for epoch in (1, 2, 3):
        write(session, sink, epoch, *of_two_tables(epoch))
    monkeypatch.setattr("slackwater.spark_sink.output.maintenance.Maintenance.is_due", True)
    before = set(place.files(name))
    write(session, sink, 4, *of_two_tables(4))
    sink._files.maintenance.wait()  # type: ignore[attr-defined]
    # Of two tables, at one date.
    assert len(place.files(name)) == (2 if partition_by else 1)
    assert place.count(name) == 8
    # A reader may have begun with them.
    assert before <= set(names_of_all(place, name))
    write(session, sink, 5, *of_two_tables(5))
    sink._files.maintenance.wait()  # type: ignore[attr-defined]
    assert place.count(name) == 10


@pytest.mark.parametrize("step", ["staging", "moving", "committed"])
@OF_EACH_FORMAT
def test_a_process_that_dies_on_a_disk_leaves_nothing_that_is_read(
    session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file_format: str,
    step: str,
) -> None:
    place = Place(str(tmp_path), format=file_format)
    sink = place.sink("dies")
    sink.position(session)
    write(session, sink, 1, *of_two_tables(1))
    killed = {
        "staging": (DiskFiles, "place"),
        "moving": (DeltaCommits if file_format == "delta" else IcebergCommits, "append"),
        "committed": (DiskFiles, "discard"),
    }

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(*killed[step], dies)
    with pytest.raises(KeyboardInterrupt):
        write(session, sink, 2, *of_two_tables(2))
    monkeypatch.undo()
    staged = tmp_path / "dies" / "_staging"
    assert any(staged.rglob("*.parquet")) == (step == "staging")
    successor = place.sink("dies")
    there = low_watermark(2 if step == "committed" else 1)
    assert successor.position(session).complete == there  # type: ignore[union-attr]
    assert not any(staged.iterdir())
    write(session, successor, 2, *of_two_tables(2))
    assert place.count("dies") == by_spark(session, tmp_path / "dies", file_format).count() == 4


@pytest.mark.parametrize("successor", ["another process", "itself"])
@OF_EACH_FORMAT
def test_what_was_staged_before_a_take_over_on_a_disk_is_not_committed(
    session: SparkSession, tmp_path: Path, file_format: str, successor: str
) -> None:
    place = Place(str(tmp_path), format=file_format)
    former = place.sink("removed")
    former.position(session)
    write(session, former, 1, *of_two_tables(1))
    summary = former.stage(frame(session, of_two_tables(2)), 2)
    (former if successor == "itself" else place.sink("removed")).position(session)
    with pytest.raises(PublishError, match="another process has taken the pipeline over"):
        former.publish(session, 2, summary, low_watermark(2))
    assert place.count("removed") == 2


def test_hadoop_reads_what_delta_rs_wrote_over_a_file_of_sparks(
    session: SparkSession, tmp_path: Path
) -> None:
    table, sink = tmp_path / "table", make_sink(tmp_path / "table", format="delta")
    sink.position(session)
    write(session, sink, 1, inserts(1, at=1))
    interval = "SET TBLPROPERTIES ('delta.checkpointInterval' = '2')"
    for _ in range(2):
        session.sql(f"ALTER TABLE delta.`{table}` {interval}")
    last = table / "_delta_log" / "_last_checkpoint"
    checksum = last.with_name("._last_checkpoint.crc")
    assert checksum.exists()
    by_spark_at = json.loads(last.read_text())["version"]
    sink.position(session)
    for epoch in (2, 3, 4):
        write(session, sink, epoch, inserts(epoch, at=epoch))
    assert json.loads(last.read_text())["version"] > by_spark_at
    # It compares what it copies with its checksum.
    jvm, copy = jvm_of(session), tmp_path / "copy"
    source, target = (jvm.org.apache.hadoop.fs.Path(str(path)) for path in (last, copy))
    source.getFileSystem(hadoop_conf(session)).copyToLocalFile(False, source, target, True)
    assert copy.read_text() == last.read_text()
    assert by_spark(session, table).count() == 4


@OF_EACH_FORMAT
def test_a_disk_is_named_with_or_without_its_scheme(
    session: SparkSession, tmp_path: Path, file_format: str
) -> None:
    for number, path in enumerate(
        (f"{tmp_path}/a b#c?", f"file:{tmp_path}/a b#c?", f"file://{tmp_path}/a b#c?"), 1
    ):
        sink = make_sink(path, format=file_format)
        sink.position(session)
        write(session, sink, number, inserts(number, at=number))
    assert by_spark(session, tmp_path / "a b#c?", file_format).count() == 3
    assert rows_at(file_format, f"{tmp_path}/a b#c?").num_rows == 3


@pytest.mark.parametrize("file_format", [*TABLES, "parquet"])
def test_a_path_that_spark_takes_for_another_place_is_refused(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str
) -> None:
    with pytest.raises(FileSystemError, match="Write file:////data/table for the disk"):
        make_sink("file://data/table", format=file_format).position(session)
    monkeypatch.setattr("slackwater.spark_sink.output.disk_place.local_path", lambda *_: None)
    sink = make_sink(tmp_path / "table", format=file_format)
    with pytest.raises(FileSystemError, match=f"Write file://{tmp_path}/table for the disk"):
        sink.position(session)


@pytest.mark.parametrize("file_format", [*TABLES, "parquet"])
def test_a_disk_without_hard_links_is_refused(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refused)
    with pytest.raises(FileSystemError, match="without hard links"):
        make_sink(tmp_path / "table", format=file_format).position(session)
    assert not any((tmp_path / "table" / "_staging").iterdir())


def test_a_table_with_deletion_vectors_is_compacted_and_loses_its_old_versions_and_marks(
    session: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "vectors"
    sink = make_sink(path, format="delta")
    sink.position(session)
    for epoch in (1, 2):
        write(session, sink, epoch, *of_two_tables(epoch))
    files: Any = sink._files  # type: ignore[attr-defined]
    files._maintain(session, str(path))
    vectors = "SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    session.sql(f"ALTER TABLE delta.`{path}` {vectors}")
    # Of the rows of one file, so that it stays.
    session.sql(f"DELETE FROM delta.`{path}` WHERE table_name = 'Keys'")
    assert list(path.glob("deletion_vector_*.bin"))
    sink.position(session)
    write(session, sink, 3, *of_two_tables(3))
    files._policy = MaintenancePolicy(None, 0.0)
    files._maintain(session, str(path))
    DeltaTable(path).create_checkpoint()
    files._maintain(session, str(path))
    assert len(list((path / "_delta_log").glob("*.json"))) == 1
    assert not list(path.glob("deletion_vector_*.bin"))
    assert len(list(path.glob("*.parquet"))) == 1
    assert by_spark(session, path).count() == 4


@OF_EACH_FORMAT
def test_what_is_wrong_with_the_place_is_named(
    session: SparkSession, store: ServedStore, file_format: str
) -> None:
    nowhere = make_sink(
        store.path.replace(BUCKET, "other") + "/changes",
        format=file_format,
        storage_options=store.options,
    )
    with pytest.raises(PublishError, match="bucket"):
        nowhere.position(session)
    place = Place(f"{store.path}/wrong", store, file_format)
    written = place.sink("columns")
    written.position(session)
    write(session, written, 1, *of_two_tables(1))
    other = place.sink("columns", envelope="wrapped")
    other.position(session)
    with pytest.raises(ObjectStoreError, match="envelope"):
        write(session, other, 2, *of_two_tables(2))
