"""A mirror's rows are those of the low watermark that it states, whoever states it."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import AsOfTimeError, PublishError
from slackwater.spark_sink.output.delta.log_files import commits_backwards, log_files
from slackwater.spark_sink.tables.mirror_table import read_mirror
from slackwater.spark_sink.tables.table_changes import MergeId
from slackwater.timestamp import datetime_to_rfc3339
from tests.support.epoch_rows import inserts, low_watermark, make_sink, write

TABLE = "sales.Orders"
# What commits of Spark's have by them, those here have, too.
OF_SPARK = {
    "commit timestamps": "delta.enableInCommitTimestamps = true",
    "mapped columns": "delta.columnMapping.mode = 'name'",
    "new checkpoints": "delta.checkpointPolicy = 'v2'",
}


class Mirrors:
    """The mirrors of two owners, each without its own checkpoint."""

    def __init__(self, session: SparkSession, folder: Path, file_format: str) -> None:
        self.session = session
        self.path = f"{folder}/mirrors"
        self.format = file_format

    def owner(self) -> Any:
        sink: Any = make_sink(self.path, kind="mirror", format=self.format)
        sink.position(self.session)
        return sink

    def write(self, owner: Any, epoch: int) -> None:
        write(self.session, owner, epoch, inserts(epoch, at=epoch))

    def merge(self, owner: Any, epoch: int) -> None:
        """Merge an epoch, and fail before it is in the log."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(owner._watermarks, "add", Mock(side_effect=OSError("no space")))
            with pytest.raises(OSError, match="no space"):
                self.write(owner, epoch)

    def log(self, owner: Any, epoch: int) -> None:
        """Merge an epoch and log it, and freeze before the tables' properties."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(owner, "_publish_watermark", lambda *_: None)
            self.write(owner, epoch)

    def publish(self, owner: Any, epoch: int) -> None:
        owner._publish_watermark(self.session, {TABLE}, low_watermark(epoch))

    def stated(self, owner: Any) -> str:
        found = read_mirror(self.session, f"{self.path}/{TABLE}", owner._format)
        assert found is not None
        return found[1]

    def set_property(self, setting: str) -> None:
        table = f"delta.`{self.path}/{TABLE}`"
        self.session.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({setting})")

    def metadata(self) -> list[Any]:
        """Return the table's metadata as the commits of its log have them, the latest first."""
        path = f"{self.path}/{TABLE}"
        commits = commits_backwards(log_files(path, {}), DeltaTable(path).version())
        return [a["metaData"] for _, actions in commits for a in actions if "metaData" in a]


@pytest.mark.parametrize("more", OF_SPARK.values(), ids=list(OF_SPARK))
def test_a_low_watermark_leaves_the_rest_of_the_metadata_that_spark_wrote(
    session: SparkSession, tmp_path: Path, more: str
) -> None:
    mirrors = Mirrors(session, tmp_path, "delta")
    owner = mirrors.owner()
    mirrors.write(owner, 1)
    mirrors.set_property(more)
    mirrors.write(owner, 2)
    stated, by_spark = mirrors.metadata()[:2]
    assert mirrors.stated(owner) == datetime_to_rfc3339(low_watermark(2))
    configurations = stated.pop("configuration"), by_spark.pop("configuration")
    changed = dict(configurations[0].items() - configurations[1].items())
    assert changed == {"slackwater.low_watermark": datetime_to_rfc3339(low_watermark(2))}
    assert configurations[1].keys() <= configurations[0].keys()
    schemas = [json.loads(metadata.pop("schemaString")) for metadata in (stated, by_spark)]
    assert schemas[0] == schemas[1]
    assert stated == by_spark
    # Spark goes on with it.
    mirrors.write(owner, 3)
    rows = session.read.format("delta").load(f"{mirrors.path}/{TABLE}")
    assert sorted(row["Id"] for row in rows.collect()) == [1, 2, 3]
    assert mirrors.owner().position(session).complete == low_watermark(3)


@pytest.mark.parametrize("file_format", ["delta", *OF_SPARK, "iceberg"])
def test_a_former_owner_states_no_low_watermark_that_a_mirror_is_beyond(
    session: SparkSession, tmp_path: Path, file_format: str
) -> None:
    more = OF_SPARK.get(file_format)
    mirrors = Mirrors(session, tmp_path, "delta" if more else file_format)
    former = mirrors.owner()
    mirrors.write(former, 1)
    if more:
        mirrors.set_property(more)
    mirrors.log(former, 2)
    successor = mirrors.owner()
    mirrors.merge(successor, 3)
    with pytest.raises(PublishError):
        mirrors.publish(former, 2)
    assert mirrors.stated(former) == datetime_to_rfc3339(low_watermark(1))
    mirrors.write(successor, 3)
    assert mirrors.stated(successor) == datetime_to_rfc3339(low_watermark(3))


@pytest.mark.parametrize("more", OF_SPARK.values(), ids=list(OF_SPARK))
def test_no_low_watermark_is_stated_beside_a_merge_of_a_later_epoch(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    mirrors = Mirrors(session, tmp_path, "delta")
    former = mirrors.owner()
    mirrors.write(former, 1)
    mirrors.set_property(more)
    mirrors.log(former, 2)
    successor = mirrors.owner()
    look = MergeId.may_be_published

    def before_a_merge(*args: Any) -> bool:
        may_be_published = look(*args)
        monkeypatch.setattr(MergeId, "may_be_published", look)
        mirrors.merge(successor, 3)
        assert may_be_published
        return True

    monkeypatch.setattr(MergeId, "may_be_published", before_a_merge)
    with pytest.raises(PublishError):
        mirrors.publish(former, 2)
    assert MergeId.may_be_published is look
    assert mirrors.stated(former) == datetime_to_rfc3339(low_watermark(1))
    mirrors.write(successor, 3)
    assert mirrors.stated(successor) == datetime_to_rfc3339(low_watermark(3))


@pytest.mark.parametrize("file_format", ["delta", "iceberg"])
def test_a_mirror_that_lacks_rows_is_in_no_cut(
    file_format: str, session: SparkSession, tmp_path: Path
) -> None:
    owner: Any = make_sink(f"{tmp_path}/mirrors", kind="mirror", format=file_format)
    owner.leave_unpublished(frozenset({"U"}))
    records = [inserts(1, at=1, table=table) for table in (TABLE, "U")]
    for _ in range(2):
        write(session, owner, 1, *records)
    with pytest.raises(AsOfTimeError, match="mirror of U was not complete at") as caught:
        owner.as_of(session, None)
    assert "--table" in caught.value.hint
    assert [one.table for one in owner.as_of(session, None, ["sales.*"]).tables] == [TABLE]
    # It becomes complete by the comparison after that epoch.
    owner.publish_complete(session, "U", low_watermark(1))
    assert [one.table for one in owner.as_of(session, None).tables] == ["U", TABLE]
