"""Removal of a Delta table's old versions: each later one can be read, and no file is left over."""

import json
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from slackwater.spark_sink.output.delta.delta_commits import DeltaCommits
from slackwater.spark_sink.output.delta.expiry import (
    _files_at,
    parse_commit,
    remove_old_versions,
)
from slackwater.spark_sink.output.delta.features import retention_properties
from slackwater.spark_sink.output.delta.log_files import checkpoint_files
from slackwater.spark_sink.output.small_files import LocalFiles

NEVER_MS = 1 << 50


class History:
    """A table that changes at random, with the rows of each of its versions."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.rows: dict[int, list[tuple[int, str]]] = {}
        write_deltalake(
            folder,
            rows_of({1: "a", 2: "b"}),
            configuration={"delta.checkpointInterval": "4"},
        )
        self.note()

    def note(self) -> None:
        table = DeltaTable(self.folder)
        self.rows[table.version()] = content(table)

    def change(self) -> None:
        table, key = DeltaTable(self.folder), self.random.randrange(10)
        match self.random.choice(["append", "merge", "delete", "compact"]):
            case "append":
                write_deltalake(table, rows_of({key + 100: "appended"}), mode="append")
            case "merge":
                merger = table.merge(
                    rows_of({key: f"v{table.version()}"}),
                    "m.key = l.key",
                    source_alias="l",
                    target_alias="m",
                    streamed_exec=False,
                )
                merger.when_matched_update_all().when_not_matched_insert_all().execute()
            case "delete":
                table.delete(f"key = {key}")
            case _:
                table.optimize.compact()
        self.note()

    def remove(self, before_ms: int) -> None:
        remove(self.folder, before_ms)

    def times(self) -> list[int]:
        """Return when the commits in the log were made."""
        times = []
        for version in versions_in(self.folder):
            text = (self.folder / "_delta_log" / f"{version:020d}.json").read_text()
            times.append(parse_commit(text).committed_ms or 0)
        return times


def remove(folder: Path, before_ms: int, log: LocalFiles | None = None) -> None:
    remove_old_versions(
        log or LocalFiles(folder / "_delta_log"),
        LocalFiles(folder),
        before_ms,
        lambda _: _files_at(str(folder), {}),
        has_checksums=True,
    )


def rows_of(values: dict[int, str]) -> pa.Table:
    return pa.table({"key": list(values), "value": list(values.values())})


def content(table: DeltaTable) -> list[tuple[int, str]]:
    read = table.to_pyarrow_table()
    return sorted(zip(read["key"].to_pylist(), read["value"].to_pylist(), strict=True))


def versions_in(folder: Path) -> list[int]:
    return sorted(int(file.stem) for file in (folder / "_delta_log").glob("*[0-9].json"))


def require_whole(history: History) -> None:
    """Check that all versions from a checkpoint on can be read, and that no other file is there."""
    left = versions_in(history.folder)
    first = min(checkpoint_files(file.name for file in (history.folder / "_delta_log").iterdir()))
    assert left[0] in (0, first)
    used: set[str] = set()
    for version in left:
        table = DeltaTable(history.folder, version=version)
        if version in history.rows:
            assert content(table) == history.rows[version]
        used |= {Path(uri).name for uri in table.file_uris()}
    assert {file.name for file in history.folder.glob("*.parquet")} == used


@pytest.mark.parametrize("seed", range(4))
def test_every_version_that_stays_can_be_read_and_no_file_is_left_over(
    tmp_path: Path, seed: int
) -> None:
    history = History(tmp_path / "T", seed)
    for _ in range(5):
        for _ in range(9):
            history.change()
        history.remove(history.random.choice(history.times()))
        require_whole(history)
    history.remove(NEVER_MS)
    assert len(versions_in(history.folder)) <= 4
    require_whole(history)


def test_a_commit_of_a_former_owner_whose_number_was_free_again_removes_nothing(
    tmp_path: Path,
) -> None:
    history = History(tmp_path / "T", 1)
    for number in range(7):
        write_deltalake(history.folder, rows_of({number + 200: "stays"}), mode="append")
        history.note()
    history.remove(NEVER_MS)
    first = versions_in(history.folder)[0]
    assert first > 0
    # It would remove all files, which the table has had since.
    files = DeltaTable(history.folder).get_add_actions(flatten=True)["path"].to_pylist()
    actions = [{"remove": {"path": path, "dataChange": True}} for path in files]
    lines = [*actions, {"commitInfo": {"timestamp": 1}}]
    stray = history.folder / "_delta_log" / f"{first - 1:020d}.json"
    stray.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for number in range(9):
        write_deltalake(history.folder, rows_of({number + 300: "later"}), mode="append")
        history.note()
    history.remove(NEVER_MS)
    assert not stray.exists()
    assert versions_in(history.folder)[0] > first
    require_whole(history)


def test_a_file_that_was_restored_stays(tmp_path: Path) -> None:
    history = History(tmp_path / "T", 2)
    table = DeltaTable(history.folder)
    table.delete("key = 1")
    restored = history.rows[0]
    for key in range(9):
        write_deltalake(history.folder, rows_of({key + 100: "later"}), mode="append")
    before_ms = history.times()[-1]
    DeltaTable(history.folder).restore(0)
    assert content(DeltaTable(history.folder)) == restored
    history.remove(before_ms)
    assert versions_in(history.folder)[0] > 0
    assert content(DeltaTable(history.folder)) == restored


def test_an_interrupted_removal_is_finished_by_the_next(tmp_path: Path) -> None:
    whole = History(tmp_path / "T", 3)
    for _ in range(20):
        whole.change()
    names = sorted(file.name for file in (whole.folder / "_delta_log").iterdir())
    for killed_after in (1, 7, 15):
        folder = tmp_path / f"killed {killed_after}"
        shutil.copytree(whole.folder, folder)

        class Killed(LocalFiles):
            def remove(self, removed: object, *, in_any_order: bool = False) -> None:
                super().remove(list(removed)[:killed_after])  # type: ignore[call-overload]  # noqa: B023

        remove(folder, NEVER_MS, Killed(folder / "_delta_log"))
        assert sorted(file.name for file in (folder / "_delta_log").iterdir()) != names
        assert content(DeltaTable(folder)) == whole.rows[DeltaTable(folder).version()]
        remove(folder, NEVER_MS)
        assert len(versions_in(folder)) <= 4
        used = {
            Path(uri).name
            for version in versions_in(folder)
            for uri in DeltaTable(folder, version=version).file_uris()
        }
        assert {file.name for file in folder.glob("*.parquet")} == used


def test_files_of_other_tables_and_half_checkpoints_are_left_alone(tmp_path: Path) -> None:
    names = [
        "00000000000000000010.checkpoint.parquet",
        "00000000000000000020.checkpoint.0000000001.0000000002.parquet",
        "00000000000000000030.checkpoint.0000000001.0000000002.parquet",
        "00000000000000000030.checkpoint.0000000002.0000000002.parquet",
        "_last_checkpoint",
    ]
    assert sorted(checkpoint_files(names)) == [10, 30]
    log = tmp_path / "_delta_log"
    log.mkdir()
    (tmp_path / "own").touch()
    other = tmp_path / "other"
    other.touch()
    paths = ["own", str(other), other.as_uri(), "s3://bucket/other"]
    removal = [json.dumps({"remove": {"path": path}}) for path in paths]
    info = json.dumps({"commitInfo": {"timestamp": 1}})
    for version in range(3):
        (log / f"{version:020d}.json").write_text("\n".join([info, *removal]))
        removal = []
    (log / "00000000000000000001.checkpoint.parquet").touch()
    remove_old_versions(LocalFiles(log), LocalFiles(tmp_path), 2, lambda _: set())
    assert versions_in(tmp_path) == [1, 2]
    assert other.exists()
    assert not (tmp_path / "own").exists()


def test_a_changelogs_table_gets_the_retention_when_it_is_created(tmp_path: Path) -> None:
    properties = retention_properties(3600)
    commits = DeltaCommits(str(tmp_path), {}, "slackwater orders", properties)
    commits.take_over()
    commits.open(pa.schema({"key": pa.int64()}), ())
    assert properties.items() <= DeltaTable(tmp_path).metadata().configuration.items()
    assert properties == {"delta.deletedFileRetentionDuration": "interval 3600 seconds"}
    assert retention_properties(None) == {}
