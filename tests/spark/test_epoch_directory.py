"""An epoch becomes visible once and complete, even if others write it at the same time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.java import hadoop_conf
from slackwater.spark_sink.output.epoch_directory import EpochDirectory
from slackwater.spark_sink.output.epoch_names import STAGING_FOLDER, epoch_name
from slackwater.spark_sink.output.small_files import HadoopFiles, small_files

AT = datetime(2026, 1, 31, 9, 0, 0, 123456, tzinfo=UTC)
ROUNDS = 100


def stage(directory: EpochDirectory, epoch: int, rows: int = 1) -> None:
    folder = Path(directory.staging(epoch).removeprefix("file:"))
    folder.mkdir(parents=True)
    for row in range(rows):
        (folder / f"part-{row}.parquet").write_text(str(row))


def test_only_the_unfinished_files_of_former_owners_are_removed(
    session: SparkSession, tmp_path: Path
) -> None:
    former, owner = (EpochDirectory(session, str(tmp_path), name) for name in ("former", "owner"))
    stage(former, 3)
    stage(owner, 4)
    former.publish_as(3, epoch_name(AT))
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
                former.publish_as(number, epoch_name(at))
            removal.result()
        epoch = tmp_path / epoch_name(at)
        assert len(list(epoch.glob("*.parquet"))) == (files if epoch.exists() else 0)
        assert not list((tmp_path / STAGING_FOLDER).rglob("*.parquet"))


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
    for number, hours in enumerate((5, 2)):
        at = AT + timedelta(hours=hours)
        for owner in owners:
            folder = tmp_path / "mounted" / owner.staging(number).removeprefix(f"{viewfs}/")
            folder.mkdir(parents=True)
            (folder / "part-0.parquet").write_text("")
        assert all(owner.is_atomic for owner in owners)
        assert [owner.publish_as(number, epoch_name(at)) for owner in owners] == [True, False]
        (tmp_path / "mounted" / "changes" / epoch_name(at, chunk=3)).mkdir()
    files = small_files(session, f"{viewfs}/changes/_watermarks")
    assert isinstance(files, HadoopFiles)
    assert (files.names(), files.read("a.json")) == ([], None)
    created = [files.create(name, text) for name, text in (("a.json", "1"), ("b.json", "2"))]
    assert all(created)
    assert not files.create("a.json", "3")
    assert sorted(files.names()) == ["a.json", "b.json"]
    assert (files.read("a.json"), files.read("b.json")) == ("1", "2")
    files.remove(["a.json", "none.json"])
    assert files.names() == ["b.json"]
    # Nor is anything else left, such as files that a create was refused for.
    log = tmp_path / "mounted" / "changes" / "_watermarks"
    assert {path.name for path in log.iterdir()} <= {"b.json", ".b.json.crc"}


def test_a_folder_that_cannot_be_written_is_named(session: SparkSession, tmp_path: Path) -> None:
    directory = EpochDirectory(session, str(tmp_path), "owner")
    with pytest.raises(PublishError, match="No such file"):
        directory.publish_as(1, epoch_name(AT))
