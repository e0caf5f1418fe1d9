"""A Delta table that the driver changes by itself, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.schema import Field, PrimitiveType, Schema

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output import delta_compaction
from slackwater.spark_sink.output.delta_errors import DeltaUnsupportedError
from slackwater.spark_sink.output.delta_maintenance import log_files
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.direct_table import DirectTable
from slackwater.spark_sink.tables.row_merges import small_table
from slackwater.spark_sink.tables.row_merges.delta_merge import merge_rows, publish_low_watermark
from slackwater.spark_sink.tables.row_merges.row_changes import RowChange
from slackwater.spark_sink.tables.row_merges.small_epoch import latest_rows
from slackwater.spark_sink.tables.table_format import MergeId, OtherRows
from tests.object_stores import ServedStore, s3

START = datetime(2026, 1, 31, 9, tzinfo=UTC)
COLUMNS = (Column("Id", "BIGINT", True), Column("Name", "STRING", False))
PROPERTY = "slackwater.low_watermark"


def merge_id(epoch: int) -> MergeId:
    return MergeId("orders", START + timedelta(seconds=epoch))


def merge(table: DirectTable, epoch: int) -> None:
    change = RowChange(False, True, {"Id": str(epoch), "Name": "n"}, START)
    rows = latest_rows({json.dumps({"Id": str(epoch)}): change}, COLUMNS)
    merge_rows(table, rows, COLUMNS, merge_id(epoch), OtherRows(are_kept=False))


def create(place: tuple[str, Any], properties: dict[str, str] | None = None) -> None:
    path, options = place
    fields = [
        Field("Id", PrimitiveType("long")),
        Field("Name", PrimitiveType("string"), metadata={"comment": "of a customer"}),
    ]
    DeltaTable.create(
        path,
        Schema(fields),
        name="orders",
        description="mirror",
        configuration=properties or {},
        storage_options=options,
    )


@pytest.fixture(params=["disk", "store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """The path of a table, and the options of its store."""
    if request.param == "disk":
        yield str(tmp_path / "table"), {}
        return
    with s3() as store:
        yield f"{store.path}/table", store.options


def log_file(place: tuple[str, Any], name: str) -> str:
    """Return a file's text. Not by delta-rs's history(): it holds the lock that moto needs here."""
    return log_files(*place).read(name) or ""


def loaded(place: tuple[str, Any]) -> DeltaTable:
    path, options = place
    return DeltaTable(path, storage_options=options)


def test_a_property_leaves_the_rest_of_the_metadata(place: tuple[str, Any]) -> None:
    create(place, {"delta.appendOnly": "false", "delta.logRetentionDuration": "interval 3 days"})
    before = loaded(place)
    table = DirectTable(*place)
    merge(table, 1)
    publish_low_watermark(table, merge_id(1))
    after = loaded(place)
    metadata, former = after.metadata(), before.metadata()
    assert metadata.configuration == former.configuration | {
        PROPERTY: "2026-01-31T09:00:01.000000Z"
    }
    assert (metadata.id, metadata.name, metadata.description, metadata.created_time) == (
        former.id,
        "orders",
        "mirror",
        former.created_time,
    )
    assert after.schema().to_json() == before.schema().to_json()
    commit = json.loads(log_file(place, f"{after.version():020d}.json").splitlines()[0])
    assert commit["commitInfo"]["operation"] == "SET TBLPROPERTIES"
    assert after.to_pyarrow_table().num_rows == 1


def test_a_former_owner_states_nothing_after_a_later_merge(place: tuple[str, Any]) -> None:
    create(place)
    former, owner = DirectTable(*place), DirectTable(*place)
    merge(former, 1)
    merge(owner, 2)
    version = loaded(place).version()
    publish_low_watermark(former, merge_id(1))
    assert loaded(place).version() == version
    publish_low_watermark(owner, merge_id(2))
    publish_low_watermark(former, merge_id(1))
    stated = loaded(place)
    assert stated.version() == version + 1
    assert stated.metadata().configuration[PROPERTY] == "2026-01-31T09:00:02.000000Z"


def test_a_former_owner_states_nothing_after_a_later_merge_beside_its_compaction(
    place: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_table, "OBJECTS_MAX", 3)
    monkeypatch.setattr(small_table, "FILES_MAX", 3)
    create(place)
    former, owner = DirectTable(*place), DirectTable(*place)
    for epoch in (1, 2, 3):
        merge(former, epoch)
        publish_low_watermark(former, merge_id(epoch))
    replace = delta_compaction._replace

    def after_a_merge(*args: Any) -> bool:
        monkeypatch.setattr(delta_compaction, "_replace", replace)
        merge(owner, 5)
        return replace(*args)

    monkeypatch.setattr(delta_compaction, "_replace", after_a_merge)
    merge(former, 4)
    publish_low_watermark(former, merge_id(4))
    stated = loaded(place)
    assert stated.metadata().configuration[PROPERTY] == "2026-01-31T09:00:03.000000Z"
    assert sorted(stated.to_pyarrow_table()["Id"].to_pylist()) == [1, 2, 3, 4, 5]


def test_a_table_that_never_stands_still_is_a_conflict(
    place: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    create(place)
    table = DirectTable(*place)
    merge(table, 1)
    monkeypatch.setattr(DirectTable, "_commit_property", lambda *_: False)
    with pytest.raises(PublishError, match="another process"):
        publish_low_watermark(table, merge_id(1))


def test_a_process_for_each_epoch_writes_checkpoints_all_the_same(place: tuple[str, Any]) -> None:
    create(place, {"delta.checkpointInterval": "4"})
    for epoch in range(1, 9):
        table = DirectTable(*place)
        merge(table, epoch)
        publish_low_watermark(table, merge_id(epoch))
    assert loaded(place).to_pyarrow_table().num_rows == 8
    assert json.loads(log_file(place, "_last_checkpoint"))["version"] >= 12


def test_a_table_that_asks_more_of_its_writers_is_left_to_spark(tmp_path: Path) -> None:
    create((str(tmp_path), {}), {"delta.columnMapping.mode": "name"})
    with pytest.raises(DeltaUnsupportedError, match="columnMapping"):
        merge(DirectTable(str(tmp_path)), 1)


def ask_more(path: Path, feature: str, info: dict[str, Any], properties: dict[str, str]) -> None:
    """Create a table that asks more of its writers than delta-rs knows."""
    create((str(path), {}))
    commit = path / "_delta_log" / f"{0:020d}.json"
    actions: dict[str, Any] = {}
    for line in commit.read_text().splitlines():
        actions |= json.loads(line)
    actions["protocol"] = {
        "minReaderVersion": 1,
        "minWriterVersion": 7,
        "writerFeatures": [feature],
    }
    actions["metaData"]["configuration"] |= properties
    made = {"commitInfo": info, **{kind: actions[kind] for kind in ("protocol", "metaData")}}
    commit.write_text("\n".join(json.dumps({kind: action}) for kind, action in made.items()))


def test_no_property_is_set_where_the_file_might_not_be_the_commit(tmp_path: Path) -> None:
    ask_more(tmp_path, "coordinatedCommits-preview", {}, {})
    with pytest.raises(DeltaUnsupportedError, match="coordinatedCommits"):
        publish_low_watermark(DirectTable(str(tmp_path)), merge_id(1))
    assert DeltaTable(tmp_path).version() == 0


@pytest.mark.parametrize("before_ms", [1, 4_000_000_000_000])
def test_a_commit_has_a_later_timestamp_where_commits_have_them(
    tmp_path: Path, before_ms: int
) -> None:
    properties = {"delta.enableInCommitTimestamps": "true"}
    ask_more(tmp_path, "inCommitTimestamp", {"inCommitTimestamp": before_ms}, properties)
    publish_low_watermark(DirectTable(str(tmp_path)), merge_id(1))
    first = json.loads(log_file((str(tmp_path), {}), f"{1:020d}.json").splitlines()[0])
    at_ms = first["commitInfo"]["inCommitTimestamp"]
    assert at_ms == before_ms + 1 if before_ms > 1 else at_ms > 1_700_000_000_000


def test_a_timestamp_that_has_to_be_there_is_missed(tmp_path: Path) -> None:
    ask_more(tmp_path, "inCommitTimestamp", {}, {"delta.enableInCommitTimestamps": "true"})
    with pytest.raises(DeltaUnsupportedError, match="version 0 has no inCommitTimestamp"):
        publish_low_watermark(DirectTable(str(tmp_path)), merge_id(1))


def test_the_known_transaction_is_asked_for_once(tmp_path: Path) -> None:
    with s3() as store:
        place = f"{store.path}/table", store.options
        create(place)
        table = DirectTable(*place)
        for epoch in range(1, 6):
            before = len(store.requests)
            merge(table, epoch)
            publish_low_watermark(table, merge_id(epoch))
            if epoch > 1:
                assert len(gets_of_commits(store, before)) <= 4


def gets_of_commits(store: ServedStore, since: int) -> list[str]:
    return [name for method, name in store.requests[since:] if method == "GET" and ".json" in name]
