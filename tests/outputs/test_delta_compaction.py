"""Compaction of a Delta table by the driver: no row is lost or doubled, whoever else commits."""

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from slackwater.spark_sink.errors import ObjectStoreError, PublishError
from slackwater.spark_sink.output.compaction_groups import TableFile, groups_to_compact
from slackwater.spark_sink.output.delta import compaction
from slackwater.spark_sink.output.delta.compaction import compact
from slackwater.spark_sink.output.delta.delta_commits import DeltaCommits
from slackwater.spark_sink.output.delta.delta_log import DeltaLog
from slackwater.spark_sink.output.file_writer import folder_values
from slackwater.spark_sink.output.object_store import open_object_store
from slackwater.spark_sink.output.table_commits import DataFile
from tests.support.delta_places import Location
from tests.support.delta_places import delta_place as delta_place
from tests.support.object_stores import s3

MIB = 1 << 20


def append(place: Location, rows: pa.Table, **options: Any) -> None:
    write_deltalake(place[0], rows, mode="append", storage_options=place[1], **options)


def loaded(place: Location) -> DeltaTable:
    return DeltaTable(place[0], storage_options=place[1])


def numbers(place: Location) -> list[int]:
    return sorted(loaded(place).to_pyarrow_table()["number"].to_pylist())


def small_files(place: Location, *appended: int) -> None:
    for number in appended:
        append(place, pa.table({"number": [number]}))


def add_file(place: Location, name: str, content: bytes) -> None:
    if "://" in place[0]:
        open_object_store(*place).put(name, content, mode="create")
    else:
        with Path(place[0], name).open("xb") as out:
            out.write(content)


def append_and_compact(place: Location) -> None:
    small_files(place, 5)
    compact(*place)


def optimize_as_spark(place: Location) -> None:
    """Commit what Spark's OPTIMIZE commits."""
    table = loaded(place)
    actions = pa.table(table.get_add_actions()).to_pylist()
    rows = table.to_pyarrow_table()
    written = (f"{place[0]}-rewritten", place[1])
    append(written, rows)
    [file] = pa.table(loaded(written).get_add_actions()).to_pylist()
    name, size = "rewritten.parquet", file["size_bytes"]
    if "://" in place[0]:
        content = open_object_store(*written).get(file["path"]).bytes().to_bytes()
    else:
        content = Path(written[0], file["path"]).read_bytes()
    add_file(place, name, content)
    lines: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": 1, "operation": "OPTIMIZE", "isBlindAppend": False}}
    ]
    lines += [
        {"remove": {"path": one["path"], "deletionTimestamp": 1, "dataChange": False}}
        for one in actions
    ]
    added = {"path": name, "partitionValues": {}, "size": size}
    lines.append({"add": {**added, "modificationTime": 1, "dataChange": False}})
    commit = f"_delta_log/{table.version() + 1:020d}.json"
    add_file(place, commit, "\n".join(map(json.dumps, lines)).encode())


OTHERS: dict[str, tuple[Callable[[Location], Any], list[int], bool]] = {
    "another compaction": (lambda place: compact(*place), [1, 2, 3, 4], False),
    "an epoch and another compaction": (
        append_and_compact,
        [1, 2, 3, 4, 5],
        False,
    ),
    "Spark's OPTIMIZE": (optimize_as_spark, [1, 2, 3, 4], False),
    "delta-rs's OPTIMIZE": (
        lambda place: loaded(place).optimize.compact(),
        [1, 2, 3, 4],
        False,
    ),
    "an epoch": (lambda place: small_files(place, 5), [1, 2, 3, 4, 5], True),
    "epochs": (lambda place: small_files(place, 5, 6, 7), [1, 2, 3, 4, 5, 6, 7], True),
    "a deletion": (lambda place: loaded(place).delete("number = 1"), [2, 3, 4], False),
    "a property": (
        lambda place: loaded(place).alter.set_table_properties({"delta.appendOnly": "true"}),
        [1, 2, 3, 4],
        True,
    ),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("step", ["_write_merged", "_replace"])
def test_what_others_commit_meanwhile_is_neither_undone_nor_doubled(
    tmp_path: Path, other: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = (str(tmp_path / "table"), dict[str, str]())
    small_files(place, 1, 2, 3, 4)
    do, expected, is_compacted = OTHERS[other]
    whole = getattr(compaction, step)

    def after_another(*args: Any) -> Any:
        monkeypatch.setattr(compaction, step, whole)
        do(place)
        return whole(*args)

    monkeypatch.setattr(compaction, step, after_another)
    assert compact(*place) == is_compacted
    assert numbers(place) == expected
    used = {Path(uri).name for uri in loaded(place).file_uris()}
    if is_compacted:
        assert len(used) == len(expected) - 3
    # What could not be committed is removed.
    files = {file.name for file in (tmp_path / "table").glob("part-*.zstd.parquet")}
    assert files <= used or other in {"delta-rs's OPTIMIZE", "a deletion"}


@pytest.mark.parametrize("other", ["another compaction", "Spark's OPTIMIZE", "an epoch"])
def test_in_an_object_store_too(
    delta_place: Location, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_files(delta_place, 1, 2, 3, 4)
    do, expected, is_compacted = OTHERS[other]
    whole = compaction._replace

    def after_another(*args: Any) -> Any:
        monkeypatch.setattr(compaction, "_replace", whole)
        do(delta_place)
        return whole(*args)

    monkeypatch.setattr(compaction, "_replace", after_another)
    assert compact(*delta_place) == is_compacted
    assert numbers(delta_place) == expected


def test_a_table_that_never_stands_still_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = (str(tmp_path / "table"), dict[str, str]())
    small_files(place, 1, 2)
    commit = DeltaLog.commit

    def after_another(*args: Any, **kwargs: Any) -> Any:
        small_files(place, 3)
        return commit(*args, **kwargs)

    monkeypatch.setattr(DeltaLog, "commit", after_another)
    monkeypatch.setattr(compaction, "_TRIES", 3)
    with pytest.raises(PublishError, match="another process"):
        compact(*place)
    assert numbers(place) == [1, 2, 3, 3, 3]


def test_values_of_all_types_stay_and_columns_that_came_later_are_null_before(
    delta_place: Location,
) -> None:
    at = dt.datetime(2026, 1, 31, 9, 0, 0, 123456, tzinfo=dt.UTC)
    columns: dict[str, list[Any]] = {
        "number": [1, None],
        "text": ["é", None],
        "bytes": [b"\0", None],
        "is_true": [True, None],
        "at": [at, None],
        "on": [dt.date(1, 1, 1), None],
        "price": pa.array([Decimal("1.000000001"), None], pa.decimal128(38, 9)),
        "score": [float("nan"), None],
        "scores": [[1.0, None], None],
        "row": [{"name": "a", "tags": ["b"]}, None],
    }
    rows = pa.table(columns)
    append(delta_place, rows)
    append(delta_place, rows.append_column("later", pa.array(["l", None])), schema_mode="merge")
    before = loaded(delta_place).to_pyarrow_table()
    compact(*delta_place)
    table = loaded(delta_place)
    assert len(table.file_uris()) == 1
    after = table.to_pyarrow_table()
    assert after.schema == before.schema
    text = [repr(sorted(map(repr, read.to_pylist()))) for read in (before, after)]
    assert text[0] == text[1]
    statistics = table.get_add_actions(flatten=True)
    assert statistics["num_records"].to_pylist() == [4]
    # Of floating-point numbers there are none: Arrow's ignore NaN.
    assert statistics["max.score"].to_pylist() == [None]
    assert statistics["max.number"].to_pylist() == [1]


@pytest.mark.parametrize("value", ["plain", "a b/c=%é'", "", None])
def test_files_of_a_partition_stay_in_it(tmp_path: Path, value: str | None) -> None:
    rows = pa.table({"number": [1], "kind": pa.array([value], pa.string())})
    others = pa.table({"number": [2], "kind": ["other"]})
    place = (str(tmp_path / "table"), dict[str, str]())
    for _ in range(2):
        for one in (rows, others):
            append(place, one, partition_by=["kind"])
    before = loaded(place).to_pyarrow_table().sort_by("number").to_pylist()
    compact(*place)
    table = loaded(place)
    assert len(table.file_uris()) == 2
    assert table.to_pyarrow_table().sort_by("number").to_pylist() == before
    partitions = table.get_add_actions(flatten=True)["partition.kind"].to_pylist()
    assert sorted(map(str, partitions)) == sorted(map(str, {before[0]["kind"], "other"}))


@pytest.mark.parametrize("has_folders", [True, False])
def test_files_of_a_changelogs_partitions_in_an_object_store_stay_in_them(
    has_folders: bool,
) -> None:
    schema = pa.schema({"number": pa.int64(), "kind": pa.string()})
    with s3() as store:
        place = (f"{store.path}/table", dict(store.options))
        objects = open_object_store(*place)
        commits = DeltaCommits(*place, "slackwater orders")
        commits.take_over()
        commits.open(schema, ["kind"])
        for number in range(4):
            folder = ("kind=a%20b%2Fc", "kind=__HIVE_DEFAULT_PARTITION__")[number % 2]
            sink = pa.BufferOutputStream()
            pq.write_table(pa.table({"number": [number]}), sink)
            content = sink.getvalue().to_pybytes()
            name = f"{folder}/part-{number}.parquet" if has_folders else f"part-{number}.parquet"
            objects.put(name, content)
            file = DataFile(name, len(content), folder_values(folder), None)
            commits.append([file], "slackwater orders", number)
        before = loaded(place).to_pyarrow_table().sort_by("number").to_pylist()
        compact(*place)
        assert len(loaded(place).file_uris()) == 2
        assert loaded(place).to_pyarrow_table().sort_by("number").to_pylist() == before


def test_tables_that_the_driver_would_read_wrong_are_not_compacted(tmp_path: Path) -> None:
    place = (str(tmp_path / "case"), dict[str, str]())
    small_files(place, 1, 2)
    [path, _] = (Path(uri) for uri in loaded(place).file_uris())
    pq.write_table(pa.table({"Number": [1]}), path)
    with pytest.raises(ObjectStoreError, match="has the columns Number"):
        compact(*place)


def test_small_files_of_a_partition_become_one_up_to_a_size() -> None:
    files = [
        TableFile("day=1/new", 100 * MIB, 3, (("day", "1"),)),
        TableFile("old", 100 * MIB, 1, (("day", "1"),)),
        TableFile("day=1/middle", 100 * MIB, 2, (("day", "1"),)),
        TableFile("day=1/large", 256 * MIB, 1, (("day", "1"),)),
        TableFile("day=2/only", MIB, 1, (("day", "2"),)),
        TableFile("s3://bucket/clone", MIB, 1),
        TableFile("s3://bucket/other", MIB, 1),
    ]
    groups = [[file.name for file in group] for group in groups_to_compact(files)]
    assert groups == [["old", "day=1/middle"]]
