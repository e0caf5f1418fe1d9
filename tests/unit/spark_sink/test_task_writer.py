"""The files and counts of a task that writes what it reads."""

import json
import os
import stat
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.schema import SCHEMA
from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.filters.record_filter import ModType, RecordFilter
from slackwater.spark_sink.output.file_writer import FileWriter
from slackwater.spark_sink.output.preparation import Preparation
from slackwater.spark_sink.output.staged_file import LocalFile
from slackwater.spark_sink.output.task_writer import MESSAGE_OVERHEAD_BYTES, TaskWriter

DAY_US = 86_400_000_000
records = st.fixed_dictionaries(
    {
        "commit_timestamp": st.integers(0, 3 * DAY_US),
        "table_name": st.sampled_from(["Orders", "sales.Lines", "a/b=c"]),
        "number_of_records_in_transaction": st.integers(1, 5),
        "mod_type": st.sampled_from([str(kind) for kind in ModType]),
        "transaction_tag": st.sampled_from(["", "a", "ab", "\n"]),
        "is_system_transaction": st.booleans(),
        "mods": st.lists(
            st.fixed_dictionaries(
                {"keys": st.just("{}"), "new_values": st.text(), "old_values": st.none()}
            ),
            max_size=2,
        ),
    }
)


def batches(some: Iterable[list[dict[str, Any]]]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist(rows, SCHEMA) for rows in some]


def written(writer: TaskWriter, read: Iterable[pa.RecordBatch]) -> tuple[list[str], dict[str, Any]]:
    """Return the files' names in the folder, and the counts, as another process hands them on."""
    in_task = TaskWriter.from_text(writer.to_text())
    handed = [row for batch in in_task.write(read) for row in batch.to_pylist()]
    (counts,) = (json.loads(row["counts"]) for row in handed if row["counts"])
    assert handed[-1]["counts"]
    return [row["staged"] for row in handed[:-1]], counts


FILTERS = [
    RecordFilter(),
    RecordFilter(("*.*", "Orders"), (), (ModType.INSERT,), (), ("a*",)),
    RecordFilter(system_transactions=False),
]


@given(
    partition_by=st.sampled_from([(), ("table_name",), ("table_name", "date")]),
    record_filter=st.sampled_from(FILTERS),
    some=st.lists(st.lists(records, max_size=4), max_size=3),
)
def test_files_hold_what_was_read_and_counts_say_so(
    tmp_path_factory: pytest.TempPathFactory,
    partition_by: tuple[str, ...],
    record_filter: RecordFilter,
    some: list[list[dict[str, Any]]],
) -> None:
    folder = tmp_path_factory.mktemp("tasks")
    files = FileWriter(str(folder), {}, "part-", "parquet", partition_by, ".parquet")
    preparation = Preparation(
        record_filter,
        has_date="date" in partition_by,
        distinct=("table_name",),
        has_message_bytes=True,
    )
    writer = TaskWriter(files, preparation)
    names, counts = written(writer, batches(some))
    expected = [row for rows in some for row in rows]
    kept = [row for row in expected if record_filter.keeps(row)]
    assert sorted(names) == sorted(path.name for path in folder.iterdir())
    columns = [name for name in SCHEMA.names if name not in partition_by]
    left = [
        row
        for name in names
        for row in ds.dataset(folder / name).to_table(columns=columns).to_pylist()
    ]
    wanted = pa.Table.from_pylist(kept, SCHEMA).select(columns).to_pylist()
    assert sorted(map(str, left)) == sorted(map(str, wanted))
    times = [row["commit_timestamp"] for row in expected]
    shares = sum(1 / row["number_of_records_in_transaction"] for row in expected)
    assert counts.pop("transactions") == pytest.approx(shares)
    assert counts == {
        "records": len(expected),
        "written": len(kept),
        "rows": len(kept),
        "first_us": min(times, default=None),
        "last_us": max(times, default=None),
        "distinct": {"table_name": sorted({row["table_name"] for row in expected})},
        "message_bytes": sum(
            MESSAGE_OVERHEAD_BYTES + len("{}") + len(mod["new_values"].encode())
            for row in expected
            for mod in row["mods"]
        ),
    }


def test_a_day_is_that_of_the_commit_in_utc(tmp_path: Path) -> None:
    files = FileWriter(str(tmp_path), {}, "part-", "parquet", ("date",), ".parquet")
    late = datetime(2026, 1, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    (batch,) = batches([[{"commit_timestamp": late, "number_of_records_in_transaction": 1}]])
    folders = [
        row["folder"]
        for rows in TaskWriter(files, Preparation(has_date=True)).write([batch])
        for row in rows.to_pylist()
        if row["staged"]
    ]
    assert folders == ["date=2026-01-31"]


def test_lines_of_json_are_as_spark_writes_them(tmp_path: Path) -> None:
    row = {
        "commit_timestamp": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "table_name": 'Üb"er',
        "transaction_tag": None,
        "number_of_records_in_transaction": 1,
        "mods": [{"keys": "{}", "new_values": None, "old_values": ""}, None],
    }
    files = FileWriter(str(tmp_path), {}, "part-", "json", ("table_name",), ".json")
    names, counts = written(TaskWriter(files), batches([[row]]))
    assert counts["rows"] == 1
    assert (tmp_path / names[0]).read_text() == (
        '{"commit_timestamp":"2026-01-31T12:00:00.000000Z",'
        '"mods":[{"keys":"{}","old_values":""},null],"number_of_records_in_transaction":1}\n'
    )


def test_a_worker_of_a_cluster_takes_the_umask_of_the_program_that_started_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKWATER_WORKER_UMASK", "027")
    own = os.umask(0o022)
    try:
        LocalFile(str(tmp_path / "tasks"), "part").close_and_name(is_staged=True)
    finally:
        os.umask(own)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tasks").rglob("*")]
    assert modes == [0o640]
    assert stat.S_IMODE((tmp_path / "tasks").stat().st_mode) == 0o750


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "tasks"
    writer = TaskWriter(FileWriter(str(folder), {}, "part-", "parquet"))
    read = batches([[{"commit_timestamp": 1, "number_of_records_in_transaction": 1}]])
    with pytest.raises(PublishError, match=r"file/tasks can't be written: Not a directory"):
        list(writer.write(read))
