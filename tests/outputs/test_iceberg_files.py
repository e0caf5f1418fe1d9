"""Files of an Iceberg table: compacted, removed with old snapshots, numbered in a folder."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.iceberg import table_maintenance
from slackwater.spark_sink.output.iceberg.folder_catalog import FolderCatalog
from slackwater.spark_sink.output.iceberg.rewrite import write_deletes
from tests.support.iceberg_owners import (
    APPLICATION,
    Where,
    before,
    in_database,
    in_folder,
    on_the_test_s_disk,
)


@pytest.fixture(params=["folder", "jdbc"])
def where(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Where:
    on_the_test_s_disk(monkeypatch)
    return in_folder(tmp_path) if request.param == "folder" else in_database(tmp_path)


def test_a_file_from_before_a_column_had_its_name_is_compacted(where: Where) -> None:
    owner = where.owner()
    owner.add(1)
    owner.commits.rename_column("kind", "sort")
    owner.append(pa.table({"number": [2], "sort": ["b"]}), 2)
    # Of another column, the former one's name.
    owner.commits.add_columns(pa.schema({"kind": pa.int64()}))
    owner.append(pa.table({"number": [3], "sort": ["c"], "kind": [7]}), 3)
    expected = [
        {"number": 1, "sort": "a", "kind": None},
        {"number": 2, "sort": "b", "kind": None},
        {"number": 3, "sort": "c", "kind": 7},
    ]
    for files in (3, 1):
        assert len(list(where.table().scan().plan_files())) == files
        assert where.table().scan().to_arrow().sort_by("number").to_pylist() == expected
        owner.commits.maintain(None)


def test_values_of_all_types_stay_in_partitions_and_in_compacted_files(where: Where) -> None:
    at = dt.datetime(2026, 1, 31, 9, 0, 0, 123456, tzinfo=dt.UTC)
    columns: dict[str, Any] = {
        "number": [1, 2],
        "text": ["é", None],
        "bytes": [b"\0", None],
        "is_true": [True, None],
        "at": pa.array([at, None], pa.timestamp("us", tz="UTC")),
        "on": [dt.date(1, 1, 1), None],
        "price": pa.array([Decimal("1.000000001"), None], pa.decimal128(38, 9)),
        "score": [0.5, None],
        "small": pa.array([0.5, None], pa.float32()),
        "scores": [[1.0, None], None],
        "row": [{"name": "a", "tags": ["b"]}, None],
    }
    rows = pa.table(columns)
    owner = where.owner()
    for version in (1, 2):
        owner.append(rows, version, partition_by=("text", "on"))
    for files in (4, 2):
        read = where.table().scan().to_arrow().sort_by("number")
        assert read.cast(rows.schema).to_pylist() == [
            row for row in rows.to_pylist() for _ in range(2)
        ]
        planned = list(where.table().scan().plan_files())
        assert len(planned) == files
        assert len(list(where.table().scan("text is null").plan_files())) == files // 2
        # A column of NULLs has no bounds.
        assert len(list(where.table().scan(f"at > '{at.isoformat()}'").plan_files())) == files // 2
        owner.commits.maintain(None)


def test_old_snapshots_go_with_the_files_that_only_they_have(where: Where) -> None:
    owner = where.owner()
    for number in range(1, 6):
        owner.add(number)
    former = where.table()
    owner.commits.maintain(None)
    # A reader that has begun with it has all that it needs.
    assert former.scan().to_arrow().num_rows == 5
    assert len(where.table().snapshots()) == 7
    owner.commits.maintain(3_600.0)
    assert len(where.table().snapshots()) == 7
    for number in (6, 7):
        owner.add(number)
        owner.commits.maintain(0.0)
    with pytest.raises((FileNotFoundError, OSError)):
        former.scan().to_arrow()
    table = where.table()
    # The last epoch's, and that of the compaction after it.
    assert [s.summary.operation.value for s in table.snapshots() if s.summary] == [
        "append",
        "replace",
    ]
    assert where.numbers() == list(range(1, 8))
    assert where.owner().commits.last_version(APPLICATION) == 7


def test_files_with_rows_that_are_gone_are_left_alone_and_old_snapshots_go(where: Where) -> None:
    owner = where.owner()
    for number in range(1, 4):
        owner.append(pa.table({"number": [number, 10 * number]}), number)
    table = where.table()
    first = next(t.file for t in table.scan().plan_files() if t.file.record_count)
    gone = write_deletes(table, first, pa.array([1], pa.int64()))
    assert owner.commits.rewrite(lambda _: ([], [gone]), APPLICATION, 4)
    assert not owner.commits.rewrite(lambda _: ([], [gone]), APPLICATION, 4)
    left = where.numbers()
    assert len(left) == 5
    for version in (5, 6):
        owner.append(pa.table({"number": [version]}), version)
        owner.commits.maintain(0.0)
    assert where.numbers() == sorted([*left, 5, 6])
    tasks = list(where.table().scan().plan_files())
    assert sorted(len(task.delete_files) for task in tasks) == [0, 1]
    assert len(where.table().snapshots()) <= 2


def test_a_table_with_tags_keeps_its_snapshots(where: Where) -> None:
    owner = where.owner()
    owner.add(1)
    snapshot = where.table().current_snapshot()
    assert snapshot is not None
    where.table().manage_snapshots().create_tag(snapshot.snapshot_id, "audit").commit()
    for number in (2, 3):
        owner.add(number)
        owner.commits.maintain(0.0)
    tagged = where.table().scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    assert tagged["number"].to_pylist() == [1]


def test_a_compaction_beside_another_one_doubles_no_row(
    where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = where.owner()
    for number in range(1, 5):
        owner.add(number)

    def others() -> None:
        owner.add(5)
        where.owner_of_nothing().maintain(None)

    before(monkeypatch, table_maintenance, "_replace", others)
    owner.commits.maintain(None)
    assert where.numbers() == [1, 2, 3, 4, 5]
    assert len(list(where.table().scan().plan_files())) == 1


@pytest.mark.parametrize("existing", [0, 1], ids=["creates the table", "owns the table"])
def test_a_process_that_slept_until_its_number_was_free_again_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: int
) -> None:
    on_the_test_s_disk(monkeypatch)
    monkeypatch.setattr("slackwater.spark_sink.output.iceberg.folder_catalog._STAYING", 2)
    where = in_folder(tmp_path)
    former = where.owner()
    for number in range(existing):
        former.add(number)
    # The version that it is about to write.
    version = 1 if existing == 0 else 4
    metadata = tmp_path / "a table 100%" / "metadata" / f"v{version}.metadata.json"

    def others() -> None:
        owner = where.owner()
        for number in range(existing, 7):
            owner.add(number)
        for _ in range(3):
            owner.commits.maintain(0.0)
        assert not metadata.exists()

    before(monkeypatch, FolderCatalog, "_create", others)
    with pytest.raises(PublishError, match="another process"):
        former.add(existing)
    assert where.numbers() == list(range(7))


def test_a_hint_that_is_gone_or_late_misleads_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_the_test_s_disk(monkeypatch)
    where = in_folder(tmp_path)
    owner = where.owner()
    for number in (1, 2, 3):
        owner.add(number)
    hint = tmp_path / "a table 100%" / "metadata" / "version-hint.text"
    for text in ("2", "", "100", None):
        if text is None:
            hint.unlink()
        else:
            hint.write_text(text)
        assert where.numbers() == [1, 2, 3]
    assert where.owner().add(4)
    assert where.numbers() == [1, 2, 3, 4]
