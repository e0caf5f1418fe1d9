"""The log of a Delta table says here what it says to others, whoever wrote it."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.spark_sink.errors import ObjectStoreError, PublishError
from slackwater.spark_sink.output.data_folder import DataFolder
from slackwater.spark_sink.output.delta import owners
from slackwater.spark_sink.output.delta.actions import add_action, remove_action
from slackwater.spark_sink.output.delta.deletion_vectors import encoded, file_of, positions
from slackwater.spark_sink.output.delta.delta_commits import DeltaCommits
from slackwater.spark_sink.output.delta.delta_log import DeltaLog
from slackwater.spark_sink.output.delta.expiry import expire
from slackwater.spark_sink.output.delta.features import with_deletion_vectors
from slackwater.spark_sink.output.delta.log_files import commit_name
from slackwater.spark_sink.output.delta.rows import deleted_positions
from slackwater.spark_sink.output.delta.snapshot import Snapshot
from slackwater.spark_sink.output.table_commits import DataFile
from tests.support.delta_places import Location
from tests.support.delta_places import delta_place as delta_place

SCHEMA = pa.schema({"number": pa.int64(), "kind": pa.string()})


def rows(*numbers: int) -> pa.Table:
    return pa.table({"number": numbers, "kind": ["a b/c%"] * len(numbers)}, SCHEMA)


def append(place: Location, *numbers: int, **options: Any) -> None:
    write_deltalake(place[0], rows(*numbers), mode="append", storage_options=place[1], **options)


def require_same(place: Location) -> Snapshot:
    """Require that a table is here what it is for delta-rs."""
    table = DeltaTable(place[0], storage_options=place[1])
    snapshot = DeltaLog(*place).load()
    assert snapshot is not None
    listed = pa.table(table.get_add_actions()).to_pylist()
    assert snapshot.version == table.version()
    assert snapshot.files.keys() == {unquote(file["path"]) for file in listed}
    sizes = {unquote(file["path"]): file["size_bytes"] for file in listed}
    assert {name: added["size"] for name, added in snapshot.files.items()} == sizes
    assert snapshot.properties == table.metadata().configuration
    assert json.loads(snapshot.schema_json) == json.loads(table.schema().to_json())
    return snapshot


def test_a_table_of_others_is_read_with_and_without_a_checkpoint(delta_place: Location) -> None:
    for number in range(4):
        append(delta_place, number, partition_by=["kind"])
    before = require_same(delta_place)
    table = DeltaTable(delta_place[0], storage_options=delta_place[1])
    if "://" not in delta_place[0]:
        # In a store delta-rs would hold the lock that the store needs here.
        table.delete("number = 1")
        table.alter.set_table_properties({"delta.appendOnly": "false"})
    require_same(delta_place)
    table.create_checkpoint()
    after = require_same(delta_place)
    append(delta_place, 9)
    later = require_same(delta_place)
    log = DeltaLog(*delta_place)
    for snapshot in (log.update(before), log.update(after)):
        assert (snapshot.version, snapshot.files.keys()) == (later.version, later.files.keys())
        assert snapshot.properties == later.properties
    former = log.load(before.version)
    assert former is not None
    assert former.files.keys() == before.files.keys()


def test_a_version_whose_commits_were_removed_is_an_error(tmp_path: Path) -> None:
    place = (str(tmp_path), dict[str, str]())
    for number in range(3):
        append(place, number)
    (tmp_path / "_delta_log" / commit_name(1)).unlink()
    with pytest.raises(PublishError, match="were removed"):
        DeltaLog(*place).load()


def test_a_number_that_is_free_again_is_not_taken_for_the_next_one(delta_place: Location) -> None:
    """Others have committed, and all commits before their checkpoint were removed since."""
    append(delta_place, 1)
    log = DeltaLog(*delta_place)
    before = log.load()
    assert before is not None
    for number in (2, 3, 4):
        append(delta_place, number)
    DeltaTable(delta_place[0], storage_options=delta_place[1]).create_checkpoint()
    log._log.remove([commit_name(version) for version in range(3)])
    after = log.update(before)
    assert (after.version, len(after.files)) == (3, 4)


def taker_of(table: Path) -> DeltaCommits:
    """Return a process that has taken a table over, which need not be there yet."""
    commits = DeltaCommits(str(table), {}, "slackwater orders")
    commits.take_over()
    return commits


def sleep_at_the_next_commit(
    monkeypatch: pytest.MonkeyPatch, successor: DeltaCommits, *, versions: int
) -> None:
    """Have a process sleep while its successor commits, and the first commits are removed."""
    commit = DeltaLog.commit

    def late(*args: Any, **options: Any) -> Snapshot | None:
        monkeypatch.setattr(DeltaLog, "commit", commit)
        if not successor.is_owner:
            successor.take_over()
        successor.open(SCHEMA, ())
        for version in (2, 3, 4):
            successor.append([], "slackwater orders", version)
        DeltaTable(successor.path).create_checkpoint()
        successor._log._log.remove([commit_name(version) for version in range(versions)])
        # It looks how long it has slept.
        monkeypatch.setattr(owners, "CURRENT_S", 0.0)
        return commit(*args, **options)

    monkeypatch.setattr(DeltaLog, "commit", late)


def test_an_owner_that_slept_until_its_number_was_free_again_has_committed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = taker_of(tmp_path)
    former.open(SCHEMA, ())
    former.append([], "slackwater orders", 1)
    successor = DeltaCommits(str(tmp_path), {}, "slackwater orders")
    sleep_at_the_next_commit(monkeypatch, successor, versions=6)
    with pytest.raises(PublishError, match="taken the pipeline over"):
        former.append([], "slackwater orders", 2)


def test_of_two_that_create_a_table_the_one_that_slept_meanwhile_is_no_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of the first commit was free again when it woke up."""
    former, successor = taker_of(tmp_path), taker_of(tmp_path)
    sleep_at_the_next_commit(monkeypatch, successor, versions=3)
    with pytest.raises(PublishError):
        former.open(SCHEMA, ())
    monkeypatch.setattr(owners, "CURRENT_S", 30.0)
    assert not former.is_owner
    with pytest.raises(PublishError):
        former.append([], "slackwater orders", 5)
    assert successor.append([], "slackwater orders", 5)


@given(st.sets(st.one_of(st.integers(0, 300), st.integers(0, 2**40)), min_size=1))
@settings(deadline=None)
def test_marks_are_read_as_they_were_written(marked: set[int]) -> None:
    places = pa.array(np.array(list(marked), np.int64))
    name, content, descriptor = encoded(places)
    assert file_of(descriptor) == name
    read = positions(descriptor, {name: content}.__getitem__)
    assert read.to_pylist() == sorted(marked)
    assert descriptor["cardinality"] == len(marked)


def test_marks_are_those_that_delta_rs_reads(tmp_path: Path) -> None:
    append((str(tmp_path), {}), *range(10))
    log = DeltaLog(str(tmp_path), {})
    snapshot = log.load()
    assert snapshot is not None
    [added] = snapshot.files.values()
    name, content, descriptor = encoded(pa.array([0, 3, 9]))
    (tmp_path / name).write_bytes(content)
    marked = {"add": {**added, "deletionVector": descriptor}}
    actions = [*with_deletion_vectors(snapshot), remove_action(added), marked]
    assert log.commit(snapshot, "DELETE", actions) is not None
    table = DeltaTable(tmp_path)
    read = QueryBuilder().register("t", table).execute("SELECT number FROM t ORDER BY number")
    assert pa.table(read)["number"].to_pylist() == [1, 2, 4, 5, 6, 7, 8]
    # A checkpoint, which delta-rs writes, has them, too.
    table.create_checkpoint()
    again = DeltaLog(str(tmp_path), {}).load()
    assert again is not None
    [of_checkpoint] = again.files.values()
    assert of_checkpoint["deletionVector"] == descriptor


def test_marks_that_two_files_share_stay_while_a_version_has_them(tmp_path: Path) -> None:
    """Spark writes the marks of several data files into one file."""
    place = (str(tmp_path), dict[str, str]())
    append(place, 0, 1)
    append(place, 2, 3)
    log = DeltaLog(*place)
    snapshot = log.load()
    assert snapshot is not None
    name, content, descriptor = encoded(pa.array([0]))
    (tmp_path / name).write_bytes(content)
    one, other = ({**added, "deletionVector": descriptor} for added in snapshot.files.values())
    marking = [*map(remove_action, snapshot.files.values()), {"add": one}, {"add": other}]
    for actions in (
        [*with_deletion_vectors(snapshot), *marking],
        [remove_action(one)],
    ):
        snapshot = log.commit(snapshot, "DELETE", actions)
        assert snapshot is not None
    DeltaTable(tmp_path).create_checkpoint()
    first = snapshot.version
    assert log.commit(snapshot, "DELETE", [remove_action(other)]) is not None
    expire(*place, -1.0)
    staying = log.load(first)
    assert staying is not None
    [added] = staying.files.values()
    assert (tmp_path / name).exists()
    gone = deleted_positions(DataFolder(*place), added)
    assert gone is not None
    assert gone.to_pylist() == [0]
    assert not (tmp_path / one["path"]).exists()


@pytest.mark.parametrize("before_ms", [1, 4_000_000_000_000])
def test_a_commit_has_a_later_timestamp_where_commits_have_them(
    tmp_path: Path, before_ms: int
) -> None:
    properties = {"delta.enableInCommitTimestamps": "true"}
    commits = DeltaCommits(str(tmp_path), {}, "slackwater orders", properties)
    commits.take_over()
    commits.open(SCHEMA, ())
    first = tmp_path / "_delta_log" / commit_name(0)
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    lines[0]["commitInfo"]["inCommitTimestamp"] = before_ms
    first.write_text("\n".join(map(json.dumps, lines)))
    commits = DeltaCommits(str(tmp_path), {}, "slackwater orders")
    commits.take_over()
    text = (tmp_path / "_delta_log" / commit_name(1)).read_text()
    info = json.loads(text.splitlines()[0])["commitInfo"]
    # It has to come first of all that the commit says of itself.
    assert next(iter(info)) == "inCommitTimestamp"
    at_ms = info["inCommitTimestamp"]
    assert at_ms == before_ms + 1 if before_ms > 1 else at_ms > 1_700_000_000_000


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (
            {
                "minReaderVersion": 1,
                "minWriterVersion": 7,
                "writerFeatures": ["coordinatedCommits-preview"],
            },
            "coordinatedCommits",
        ),
        ({"minReaderVersion": 4, "minWriterVersion": 7}, "minReaderVersion 4"),
    ],
)
def test_a_table_of_which_more_is_asked_than_is_known_is_refused(
    tmp_path: Path, asked: dict[str, Any], named: str
) -> None:
    append((str(tmp_path), {}), 1)
    log = DeltaLog(str(tmp_path), {})
    snapshot = log.load()
    assert snapshot is not None
    log.commit(snapshot, "UPGRADE PROTOCOL", [{"protocol": asked}])
    commits = DeltaCommits(str(tmp_path), {}, "slackwater orders")
    with pytest.raises(ObjectStoreError, match=named):
        commits.take_over()
    assert not (tmp_path / "_delta_log" / commit_name(2)).exists()


def test_a_property_leaves_the_rest_of_the_metadata(delta_place: Location) -> None:
    DeltaTable.create(
        delta_place[0],
        SCHEMA,
        name="orders",
        description="mirror",
        configuration={"delta.logRetentionDuration": "interval 3 days"},
        storage_options=delta_place[1],
    )
    before = DeltaTable(delta_place[0], storage_options=delta_place[1]).metadata()
    commits = DeltaCommits(*delta_place, "slackwater orders")
    commits.take_over()
    commits.set_properties(lambda: {"slackwater.low_watermark": "then"})
    after = DeltaTable(delta_place[0], storage_options=delta_place[1]).metadata()
    assert after.configuration == before.configuration | {"slackwater.low_watermark": "then"}
    assert (after.id, after.name, after.description) == (before.id, "orders", "mirror")
    assert after.created_time == before.created_time
    version = DeltaTable(delta_place[0], storage_options=delta_place[1]).version()
    commits.set_properties(dict)
    assert DeltaTable(delta_place[0], storage_options=delta_place[1]).version() == version


def test_a_file_that_was_removed_is_the_tables_no_more() -> None:
    added = add_action(DataFile("a b%.parquet", 1, {}, None))
    snapshot = Snapshot(0, {}, {}, {}, {}).after(1, [added])
    assert list(snapshot.files) == ["a b%.parquet"]
    [said] = snapshot.files.values()
    assert not snapshot.after(2, [remove_action(said)]).files
