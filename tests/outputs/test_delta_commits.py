"""Commits to a Delta table, on a local disk; in a store they are the same."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from slackwater.spark_sink.errors import ObjectStoreError, PublishError
from slackwater.spark_sink.output.delta.compaction import compact
from slackwater.spark_sink.output.delta.delta_commits import DeltaCommits
from slackwater.spark_sink.output.object_store import open_object_store
from slackwater.spark_sink.output.parquet_stats import stats_text
from slackwater.spark_sink.output.small_files import LocalFiles
from slackwater.spark_sink.output.table_commits import DataFile
from tests.support.object_stores import s3

APPLICATION = "slackwater orders"
# The watermark log's take two or three more.
REQUESTS_OF_AN_EPOCH_MAX = 12
SCHEMA = pa.schema({"number": pa.int64(), "kind": pa.string()})


def unowned(folder: Path, properties: dict[str, str] | None = None) -> DeltaCommits:
    return DeltaCommits(str(folder), {}, APPLICATION, properties)


def owner(folder: Path, properties: dict[str, str] | None = None) -> DeltaCommits:
    commits = unowned(folder, properties)
    commits.take_over()
    commits.open(SCHEMA, ())
    return commits


def file(folder: Path, name: str, *numbers: int) -> DataFile:
    table = pa.table({"number": numbers, "kind": ["a"] * len(numbers)}, SCHEMA)
    pq.write_table(table, folder / name)
    stats = stats_text(pq.read_metadata(folder / name))
    return DataFile(name, (folder / name).stat().st_size, {}, stats)


def add(commits: DeltaCommits, folder: Path, number: int, writer: str = "a") -> bool:
    """Commit the epoch with a number, which is its only row."""
    return commits.append([file(folder, f"{writer}-{number}.parquet", number)], APPLICATION, number)


def numbers(folder: Path) -> list[int]:
    read = DeltaTable(folder).to_pyarrow_table()
    return sorted(read["number"].to_pylist())


def test_an_epoch_is_committed_once(tmp_path: Path) -> None:
    commits = owner(tmp_path)
    assert commits.last_version(APPLICATION) is None
    assert add(commits, tmp_path, 1)
    assert not add(commits, tmp_path, 1)
    again = owner(tmp_path)
    assert again.last_version(APPLICATION) == 1
    assert not add(again, tmp_path, 1)
    assert add(again, tmp_path, 2)
    assert numbers(tmp_path) == [1, 2]


def test_the_successor_finds_the_line_that_a_dead_owner_did_not_add_to_the_log(
    tmp_path: Path,
) -> None:
    commits = owner(tmp_path)
    assert commits.last_line() is None
    for number in (1, 2):
        written = [file(tmp_path, f"part-{number}.parquet", number)]
        commits.append(written, APPLICATION, number, f"line {number}")
    DeltaTable(tmp_path).optimize.compact()
    # However often it was taken over meanwhile.
    for _ in range(110):
        assert owner(tmp_path).last_line() == "line 2"


@pytest.mark.parametrize("before", range(3))
@pytest.mark.parametrize("after", [0, 1, 40])
def test_a_former_owner_commits_nothing(tmp_path: Path, before: int, after: int) -> None:
    former = owner(tmp_path)
    for number in range(before):
        add(former, tmp_path, number)
    successor = owner(tmp_path)
    for number in range(before, before + after):
        assert add(successor, tmp_path, number, "b")
    # Over and over: a refused commit must not make the former owner an owner again.
    for number in (before, before + after, before + after + 1):
        with pytest.raises(PublishError):
            add(former, tmp_path, number)
    assert add(successor, tmp_path, before + after, "b")
    assert numbers(tmp_path) == list(range(before + after + 1))


@pytest.mark.parametrize("step", ["commit", "checkpoint"])
@pytest.mark.parametrize("is_carried_out", [True, False])
def test_a_commit_whose_answer_is_lost_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, is_carried_out: bool
) -> None:
    commits = owner(tmp_path, {"delta.checkpointInterval": "1"})
    place: tuple[Any, str] = (LocalFiles, "create")
    if step == "checkpoint":
        place = DeltaTable, "create_checkpoint"
    whole: Callable[..., None] = getattr(*place)

    def fails(*arguments: object, **options: object) -> None:
        monkeypatch.setattr(*place, whole)
        if is_carried_out:
            whole(*arguments, **options)
        raise OSError("no answer")

    monkeypatch.setattr(*place, fails)
    with pytest.raises(PublishError, match="no answer"):
        add(commits, tmp_path, 1)
    was_made = is_carried_out or step == "checkpoint"
    assert add(commits, tmp_path, 1, "again") is not was_made
    assert add(commits, tmp_path, 2)
    assert numbers(tmp_path) == [1, 2]


@pytest.mark.parametrize(
    "compaction",
    [lambda folder: DeltaTable(folder).optimize.compact(), lambda f: compact(str(f), {})],
)
def test_the_pipeline_goes_on_beside_a_compaction(
    tmp_path: Path, compaction: Callable[[Path], object]
) -> None:
    commits = owner(tmp_path)
    for number in range(5):
        add(commits, tmp_path, number)
        compaction(tmp_path)
    assert len(DeltaTable(tmp_path).file_uris()) == 1
    assert add(commits, tmp_path, 5)
    assert numbers(tmp_path) == list(range(6))


def test_an_epoch_costs_few_requests_however_many_there_were(tmp_path: Path) -> None:
    with s3() as store:
        url = f"{store.path}/table"
        client = open_object_store(url, store.options)
        commits = DeltaCommits(url, store.options, APPLICATION)
        commits.take_over()
        commits.open(SCHEMA, ())

        def requests_of_epochs(numbers: range) -> float:
            before = len(store.requests)
            for number in numbers:
                written = file(tmp_path, f"part-{number}.parquet", number)
                client.put(written.name, (tmp_path / written.name).read_bytes())
                commits.append([written], APPLICATION, number)
            return (len(store.requests) - before) / len(numbers)

        # Every thirtieth commit has a checkpoint.
        first, later = (requests_of_epochs(range(n, n + 30)) for n in (0, 60))
    assert first <= REQUESTS_OF_AN_EPOCH_MAX
    assert later <= first + 1


def test_other_columns_are_refused(tmp_path: Path) -> None:
    commits = owner(tmp_path)
    other = pa.schema({"number": pa.int64(), "other": pa.string()})
    with pytest.raises(ObjectStoreError, match="number, kind; this pipeline writes number, other"):
        commits.open(other, ())
    changed = pa.schema({"number": pa.int64(), "kind": pa.int64()})
    with pytest.raises(ObjectStoreError, match=r"number, kind string; .* number, kind long"):
        commits.open(changed, ())


def test_a_column_that_somebody_has_added_is_null_in_later_rows(tmp_path: Path) -> None:
    add(owner(tmp_path), tmp_path, 1)
    DeltaTable(tmp_path).alter.add_columns(Field("note", PrimitiveType("string")))
    add(owner(tmp_path), tmp_path, 2)
    assert numbers(tmp_path) == [1, 2]
    assert DeltaTable(tmp_path).to_pyarrow_table()["note"].to_pylist() == [None, None]


@pytest.mark.parametrize("demand", ["a constraint", "NOT NULL"])
def test_a_table_that_asks_more_of_rows_than_their_columns_is_refused(
    tmp_path: Path, demand: str
) -> None:
    if demand == "NOT NULL":
        required = pa.schema([SCHEMA.field("number").with_nullable(False), SCHEMA.field("kind")])
        DeltaTable.create(tmp_path, required)
    else:
        owner(tmp_path)
        DeltaTable(tmp_path).alter.add_constraint({"few": "number < 15"})
    commits = unowned(tmp_path)
    commits.take_over()
    with pytest.raises(ObjectStoreError, match=r"it has .*(constraints.few|number NOT NULL)"):
        commits.open(SCHEMA, ())


def test_of_two_that_find_no_table_the_first_creates_it(tmp_path: Path) -> None:
    first, second = unowned(tmp_path), unowned(tmp_path)
    for commits in (first, second):
        commits.take_over()
        assert commits.last_version(APPLICATION) is None
    second.open(SCHEMA, ())
    assert add(second, tmp_path, 1)
    for _ in range(2):
        with pytest.raises(PublishError):
            first.open(SCHEMA, ())
    assert add(second, tmp_path, 2)
    first.take_over()
    first.open(SCHEMA, ())
    assert first.last_version(APPLICATION) == 2
    with pytest.raises(PublishError):
        add(second, tmp_path, 3)


def test_readers_find_the_rows_of_a_range_by_the_statistics(tmp_path: Path) -> None:
    commits = owner(tmp_path)
    for number in range(4):
        add(commits, tmp_path, number)
    actions = pa.table(DeltaTable(tmp_path).get_add_actions(flatten=True))
    bounds = zip(actions["min.number"].to_pylist(), actions["max.number"].to_pylist(), strict=True)
    assert sorted(bounds) == [(number, number) for number in range(4)]
    assert actions["num_records"].to_pylist() == [1] * 4


@pytest.mark.parametrize("seed", range(10))
def test_three_processes_that_all_think_they_own_the_table_commit_each_number_once(
    tmp_path: Path, seed: int
) -> None:
    """They go on in any order, commit by commit."""
    order = random.Random(seed)
    processes = [unowned(tmp_path) for _ in range(3)]
    last: list[int | None] = [None] * len(processes)
    for _ in range(25):
        place = order.randrange(len(processes))
        process, number = processes[place], last[place]
        try:
            if number is None or order.random() < 0.1:
                process.take_over()
                process.open(SCHEMA, ())
                last[place] = process.last_version(APPLICATION) or 0
            else:
                add(process, tmp_path, number + 1, f"p{place}")
                last[place] = number + 1
        except PublishError:
            last[place] = None
    read = numbers(tmp_path)
    assert read == list(range(1, len(read) + 1)) != []


@pytest.mark.parametrize(
    ("readers", "writers", "configuration"),
    [
        (["columnMapping"], ["columnMapping"], {"delta.columnMapping.mode": "name"}),
        ([], ["rowTracking", "domainMetadata"], {}),
        (["invented"], ["invented"], {}),
    ],
)
def test_a_table_with_a_feature_that_can_not_be_written_is_refused(
    tmp_path: Path, readers: list[str], writers: list[str], configuration: dict[str, str]
) -> None:
    owner(tmp_path)
    log = tmp_path / "_delta_log"
    actions = map(json.loads, (log / f"{0:020d}.json").read_text().splitlines())
    metadata = next(action for action in actions if "metaData" in action)
    metadata["metaData"]["configuration"] |= configuration
    # The fields, as Delta's own client writes them with column mapping.
    schema = json.loads(metadata["metaData"]["schemaString"])
    for number, column in enumerate(schema["fields"], 1):
        column["metadata"] = {
            "delta.columnMapping.id": number,
            "delta.columnMapping.physicalName": f"c{number}",
        }
    if configuration:
        metadata["metaData"]["schemaString"] = json.dumps(schema)
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": writers}
    protocol["readerFeatures"] = readers
    commit = f"{json.dumps({'protocol': protocol})}\n{json.dumps(metadata)}"
    (log / f"{1:020d}.json").write_text(commit)
    with pytest.raises(ObjectStoreError, match="without Spark"):
        owner(tmp_path)
