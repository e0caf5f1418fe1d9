"""An epoch becomes visible once and complete, even if others write it at the same time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import FileSystemError, PublishError
from slackwater.spark_sink.java import hadoop_conf
from slackwater.spark_sink.output.epoch_directory import (
    STAGING_FOLDER,
    EpochDirectory,
    epoch_name,
    parse_epoch_name,
)
from slackwater.spark_sink.output.small_files import HadoopFiles, small_files
from tests.hadoop_stores import reached_by

AT = datetime(2026, 1, 31, 9, 0, 0, 123456, tzinfo=UTC)
ROUNDS = 100


def stage(directory: EpochDirectory, epoch: int, rows: int = 1) -> None:
    folder = Path(directory.staging(epoch).removeprefix("file:"))
    folder.mkdir(parents=True)
    for row in range(rows):
        (folder / f"part-{row}.parquet").write_text(str(row))


def test_one_of_two_concurrent_publishers_wins_and_nothing_is_mixed(
    session: SparkSession, tmp_path: Path
) -> None:
    owners = [EpochDirectory(session, str(tmp_path), name) for name in ("first", "second")]
    for number in range(ROUNDS):
        at = AT + timedelta(seconds=number)
        for owner in owners:
            stage(owner, number, rows=2)
        together = threading.Barrier(2)

        def publish(
            owner: EpochDirectory,
            number: int = number,
            at: datetime = at,
            together: threading.Barrier = together,
        ) -> bool:
            together.wait(10)
            return owner.publish(number, at)

        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(publish, owners)) == [False, True]
        names = sorted(path.name for path in (tmp_path / epoch_name(at)).rglob("*"))
        assert names == ["part-0.parquet", "part-1.parquet"]
    assert not list((tmp_path / STAGING_FOLDER).rglob("*.parquet"))


def test_an_epoch_that_is_visible_is_not_touched_by_a_replay(
    session: SparkSession, tmp_path: Path
) -> None:
    first = EpochDirectory(session, str(tmp_path), "first")
    stage(first, 5, rows=1)
    assert first.publish(5, AT)
    inode = (tmp_path / epoch_name(AT)).stat().st_ino
    stage(first, 5, rows=1)
    assert not first.publish(5, AT)
    assert (tmp_path / epoch_name(AT)).stat().st_ino == inode


def test_only_the_unfinished_files_of_former_owners_are_removed(
    session: SparkSession, tmp_path: Path
) -> None:
    former, owner = (EpochDirectory(session, str(tmp_path), name) for name in ("former", "owner"))
    stage(former, 3)
    stage(owner, 4)
    former.publish(3, AT)
    stage(former, 5)
    owner.remove_other_staging()
    assert [path.name for path in (tmp_path / STAGING_FOLDER).iterdir()] == ["owner"]
    assert (tmp_path / epoch_name(AT)).exists()


def test_a_former_owner_publishes_nothing_while_its_files_are_removed(
    session: SparkSession, tmp_path: Path
) -> None:
    files = 40
    for number in range(ROUNDS // 2):
        at = AT + timedelta(seconds=number)
        former = EpochDirectory(session, str(tmp_path), f"former {number}")
        owner = EpochDirectory(session, str(tmp_path), "owner")
        stage(former, number, rows=files)
        with ThreadPoolExecutor(1) as pool:
            removal = pool.submit(owner.remove_other_staging)
            # From before the removal to after it.
            time.sleep(number / ROUNDS * 0.04)
            with suppress(PublishError):
                former.publish(number, at)
            removal.result()
        epoch = tmp_path / epoch_name(at)
        assert len(list(epoch.glob("*.parquet"))) == (files if epoch.exists() else 0)
        assert not list((tmp_path / STAGING_FOLDER).rglob("*.parquet"))


def test_the_latest_epoch_is_recognized_by_its_name(session: SparkSession, tmp_path: Path) -> None:
    directory = EpochDirectory(session, str(tmp_path / "none"), "owner")
    assert directory.last_low_watermark() is None
    directory = EpochDirectory(session, str(tmp_path), "owner")
    for number, hours in enumerate((0, 5, 2)):
        stage(directory, number)
        directory.publish(number, AT + timedelta(hours=hours))
    assert directory.last_low_watermark() == AT + timedelta(hours=5)
    assert parse_epoch_name(epoch_name(AT)) == AT
    assert parse_epoch_name(STAGING_FOLDER) is None


@pytest.fixture
def viewfs(session: SparkSession, tmp_path: Path) -> Iterator[str]:
    """Return the URL of a folder on a file system that Hadoop alone reaches."""
    jvm: Any = session._jvm
    (tmp_path / "mounted").mkdir()
    conf = hadoop_conf(session)
    mount = jvm.java.net.URI(f"file:{tmp_path / 'mounted'}")
    jvm.org.apache.hadoop.fs.viewfs.ConfigUtil.addLink(conf, "test", "/out", mount)
    yield "viewfs://test/out"
    conf.unset("fs.viewfs.mounttable.test.link./out")


def test_hadoop_publishes_epochs_and_lines_once(
    session: SparkSession, viewfs: str, tmp_path: Path
) -> None:
    owners = [EpochDirectory(session, f"{viewfs}/changes", name) for name in ("first", "second")]
    assert owners[0].last_low_watermark() is None
    for number, hours in enumerate((5, 2)):
        at = AT + timedelta(hours=hours)
        for owner in owners:
            folder = tmp_path / "mounted" / owner.staging(number).removeprefix(f"{viewfs}/")
            folder.mkdir(parents=True)
            (folder / "part-0.parquet").write_text("")
        assert all(owner.is_atomic for owner in owners)
        assert [owner.publish(number, at) for owner in owners] == [True, False]
        (tmp_path / "mounted" / "changes" / epoch_name(at, chunk=3)).mkdir()
    assert owners[0].last_low_watermark() == AT + timedelta(hours=5)
    files = small_files(session, f"{viewfs}/changes/_watermarks")
    assert isinstance(files, HadoopFiles)
    assert (files.names(), files.read("a.json")) == ([], None)
    created = [files.create(name, text) for name, text in (("a.json", "1"), ("b.json", "2"))]
    assert created == [True, True]
    assert not files.create("a.json", "3")
    assert sorted(files.names()) == ["a.json", "b.json"]
    assert (files.read("a.json"), files.read("b.json")) == ("1", "2")
    files.remove(["a.json", "none.json"])
    assert files.names() == ["b.json"]
    # Nor is anything else left, such as files that a create was refused for.
    log = tmp_path / "mounted" / "changes" / "_watermarks"
    assert {path.name for path in log.iterdir()} <= {"b.json", ".b.json.crc"}


def test_a_mounted_object_store_is_refused_as_any_other(session: SparkSession) -> None:
    jvm: Any = session._jvm
    with reached_by(session.newSession(), "s3a") as (_, bucket):
        mounts = jvm.org.apache.hadoop.fs.viewfs.ConfigUtil
        mounts.addLink(hadoop_conf(session), "stores", "/out", jvm.java.net.URI(f"{bucket}/out"))
        directory = EpochDirectory(session, "viewfs://stores/out/changes", "owner")
        with pytest.raises(FileSystemError, match="two processes could publish the same epoch"):
            directory.require_atomic()
        hadoop_conf(session).unset("fs.viewfs.mounttable.stores.link./out")


def test_a_folder_that_cannot_be_written_is_named(session: SparkSession, tmp_path: Path) -> None:
    directory = EpochDirectory(session, str(tmp_path), "owner")
    with pytest.raises(PublishError, match="No such file"):
        directory.publish(1, AT)
