"""Large mirrors are not written again for a few changes."""

from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import ObjectStoreError
from slackwater.spark_sink.sinks.former_rows import DeletePolicy
from slackwater.spark_sink.sinks.mirrors import Mirrors
from slackwater.spark_sink.tables.by_driver import delta_access
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.iceberg import Iceberg
from slackwater.spark_sink.tables.row_merges import file_merge
from tests.support.epoch_rows import on_disk, write
from tests.support.merge_epochs import COLUMNS, one, operations, record
from tests.support.mirror_looks import current
from tests.support.read_tables import iceberg_at


def of_delta(session: SparkSession, path: Path) -> list[list[dict[str, Any]]]:
    """Return the rows of a Delta table as three readers have them: delta-rs, Spark and tasks."""
    by_rust = QueryBuilder().register("mirror", DeltaTable(path)).execute("SELECT * FROM mirror")
    of_spark = session.read.format("delta").load(str(path))
    frames = (of_spark, Delta().read(session, str(path)))
    return [
        pa.table(by_rust).to_pylist(),
        *([row.asDict() for row in read.collect()] for read in frames),
    ]


def of_iceberg(session: SparkSession, path: Path) -> list[list[dict[str, Any]]]:
    """Return the rows of an Iceberg table as pyiceberg, Spark and tasks have them."""
    frames = (
        session.read.format("iceberg").load(str(path)),
        Iceberg().read(session, str(path)),
    )
    return [
        iceberg_at(path).scan().to_arrow().to_pylist(),
        *([row.asDict() for row in read.collect()] for read in frames),
    ]


def marks_of_delta(path: Path) -> dict[str, int]:
    """Return how many rows of each file are marked as gone."""
    vectors = pa.table(DeltaTable(path).deletion_vectors()).to_pylist()
    marked = {Path(row["filepath"]).name: row["selection_vector"].count(False) for row in vectors}
    names = [Path(uri).name for uri in DeltaTable(path).file_uris()]
    return dict.fromkeys(names, 0) | marked


def marks_of_iceberg(path: Path) -> dict[str, int]:
    """Return how many rows of each file are in files of deletes, of which each has one at most."""
    tasks = list(iceberg_at(path).scan().plan_files())
    assert all(len(task.delete_files) <= 1 for task in tasks)
    return {
        Path(task.file.file_path).name: sum(d.record_count for d in task.delete_files)
        for task in tasks
    }


FORMATS: dict[str, Any] = {
    "delta": (Delta, of_delta, marks_of_delta),
    "iceberg": (Iceberg, of_iceberg, marks_of_iceberg),
}


@pytest.fixture
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all tables and files be large ones."""
    monkeypatch.setattr(file_merge, "SMALL", 0)
    monkeypatch.setattr(delta_access, "LARGE", 0)


# Each two of the three: formats, captures and deletes.
WAYS = [
    ("delta", "NEW_ROW", "apply"),
    ("delta", "NEW_VALUES", "mark"),
    ("iceberg", "NEW_ROW", "mark"),
    ("iceberg", "NEW_VALUES", "apply"),
]
OTHER_WAYS = sorted({*product(FORMATS, ("NEW_ROW", "NEW_VALUES"), ("apply", "mark"))} - {*WAYS})


@pytest.mark.parametrize(
    ("file_format", "capture", "deletes"),
    [*WAYS, *(pytest.param(*way, marks=pytest.mark.long) for way in OTHER_WAYS)],
)
@pytest.mark.usefixtures("all_are_large")
def test_of_large_files_rows_are_marked_as_gone(
    session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file_format: str,
    capture: str,
    deletes: str,
) -> None:
    made, read_all, marks = FORMATS[file_format]
    columns = {**COLUMNS, "B": "STRING"}
    delete_policy = DeletePolicy(are_kept=deletes == "mark")
    expected = dict.fromkeys(range(1, 41), ("one", "b"))

    def merge(epoch: int, kind: str, key: int, values: dict[str, str]) -> None:
        change = (kind, {"Id": str(key)}, values, capture)
        # Each by a new process.
        sink = Mirrors(on_disk(tmp_path), "orders", made(), delete_policy=delete_policy)
        sink.position(session)
        write(session, sink, epoch, record(epoch, change, columns, "T"))

    sink = Mirrors(on_disk(tmp_path), "orders", made(), delete_policy=delete_policy)
    sink.position(session)
    rows = [("INSERT", {"Id": str(key)}, {"A": "one", "B": "b"}, capture) for key in expected]
    write(session, sink, 1, *[record(1, row, columns, "T") for row in rows])
    [first] = marks(tmp_path / "T")
    for epoch in (2, 3, 4):
        whole = {"B": "b"} if capture == "NEW_ROW" else {}
        merge(epoch, "UPDATE", 1, {"A": f"e{epoch}", **whole})
        expected[1] = (f"e{epoch}", "b")
    merge(5, "DELETE", 2, {})
    merge(6, "INSERT", 50, {"A": "new", "B": "b"})
    expected[50] = ("new", "b")
    del expected[2]

    def require() -> None:
        for rows in read_all(session, tmp_path / "T"):
            there = [row for row in rows if not row.get("_is_deleted")]
            assert {row["Id"]: (row["A"], row["B"]) for row in there} == expected
            assert len(there) == len(expected)
            assert len(rows) - len(there) == (deletes == "mark")

    require()
    # The first file is as it was, beside marks of its rows that changed.
    assert marks(tmp_path / "T")[first] == 2
    assert operations(tmp_path / "T") == ["driver"] * 6
    # So many files become one, and of the rows that are gone nothing is left.
    monkeypatch.setattr(file_merge, "SMALL", 16 << 20)
    monkeypatch.setattr(file_merge, "FILES_MAX", 2)
    merge(7, "UPDATE", 1, {"A": "e7", **({"B": "b"} if capture == "NEW_ROW" else {})})
    expected[1] = ("e7", "b")
    require()
    assert list(marks(tmp_path / "T").values()) == [0]


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.usefixtures("all_are_large")
def test_a_large_share_of_rows_that_are_gone_is_not_read_any_more(
    session: SparkSession, tmp_path: Path, file_format: str
) -> None:
    made, read_all, marks = FORMATS[file_format]
    sink = Mirrors(on_disk(tmp_path), "orders", made())
    sink.position(session)
    rows = [("INSERT", {"Id": str(key)}, {"A": "one"}, "NEW_ROW") for key in range(8)]
    write(session, sink, 1, *[record(1, row, COLUMNS, "T") for row in rows])
    for epoch in range(2, 6):
        change = ("UPDATE", {"Id": str(epoch)}, {"A": "two"}, "NEW_ROW")
        write(session, sink, epoch, record(epoch, change, COLUMNS, "T"))
        assert sum(marks(tmp_path / "T").values()) <= 2
    expected = [(key, "two" if 2 <= key < 6 else "one") for key in range(8)]
    for rows_there in read_all(session, tmp_path / "T"):
        assert sorted((row["Id"], row["A"]) for row in rows_there) == expected


@pytest.mark.usefixtures("all_are_large")
def test_a_delta_table_whose_owner_wants_no_marks_is_written_again(
    session: SparkSession, tmp_path: Path
) -> None:
    properties = {"delta.enableDeletionVectors": "false"}
    sink = Mirrors(on_disk(tmp_path), "orders", Delta(), properties=properties)
    for epoch, text in enumerate(("one", "two"), 1):
        write(session, sink, epoch, *one(epoch, text))
    assert [row["A"] for row in current(tmp_path / "T").rows] == ["two"]
    assert DeltaTable(tmp_path / "T").protocol().min_reader_version == 1


@pytest.mark.usefixtures("all_are_large")
def test_marks_that_spark_has_made_are_heeded(session: SparkSession, tmp_path: Path) -> None:
    properties = {"delta.enableDeletionVectors": "true"}
    sink = Mirrors(on_disk(tmp_path), "orders", Delta(), properties=properties)
    rows = [("INSERT", {"Id": str(key)}, {"A": "one"}, "NEW_ROW") for key in range(40)]
    write(session, sink, 1, *[record(1, row, COLUMNS, "T") for row in rows])
    session.sql(f"DELETE FROM delta.`{tmp_path}/T` WHERE Id IN (1, 2)")
    assert sum(marks_of_delta(tmp_path / "T").values()) == 2
    change = ("UPDATE", {"Id": "3"}, {"A": "two"}, "NEW_ROW")
    write(session, sink, 2, record(2, change, COLUMNS, "T"))
    assert sum(marks_of_delta(tmp_path / "T").values()) == 3
    expected = [(key, "two" if key == 3 else "one") for key in range(40) if key not in (1, 2)]
    for there in of_delta(session, tmp_path / "T"):
        assert sorted((row["Id"], row["A"]) for row in there) == expected
    # Compaction leaves them out.
    sink._maintain(session, str(tmp_path / "T"))
    assert list(marks_of_delta(tmp_path / "T").values()) == [0]
    for there in of_delta(session, tmp_path / "T"):
        assert sorted((row["Id"], row["A"]) for row in there) == expected


@pytest.mark.parametrize("file_format", FORMATS)
def test_rows_whose_texts_arrow_can_not_hold_are_refused(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str
) -> None:
    def overflow(*_: object, **__: object) -> pa.Table:
        # As pyarrow does for more than 2 GiB of a column's text.
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    made, _, _ = FORMATS[file_format]
    sink = Mirrors(on_disk(tmp_path), "orders", made())
    sink.position(session)
    write(session, sink, 1, *one(1, "one"))
    with monkeypatch.context() as patch:
        patch.setattr(file_merge, "updated_rows", overflow)
        with pytest.raises(ObjectStoreError, match="offset overflow"):
            write(session, sink, 2, *one(2, "two"))
    write(session, sink, 2, *one(2, "two"))
    assert [row["A"] for row in current(tmp_path / "T").rows] == ["two"]


@pytest.mark.parametrize("is_large", [False, True])
def test_readers_of_changes_see_those_of_rows(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_large: bool
) -> None:
    if is_large:
        monkeypatch.setattr(file_merge, "SMALL", 0)
        monkeypatch.setattr(delta_access, "LARGE", 0)
    properties = {"delta.enableChangeDataFeed": "true"}
    sink = Mirrors(on_disk(tmp_path), "orders", Delta(), properties=properties)
    rows = [("INSERT", {"Id": str(key)}, {"A": "one"}, "NEW_ROW") for key in range(20)]
    write(session, sink, 1, *[record(1, row, COLUMNS, "T") for row in rows])
    changes = [
        ("UPDATE", {"Id": "3"}, {"A": "two"}, "NEW_ROW"),
        ("DELETE", {"Id": "4"}, {}, "NEW_ROW"),
        ("INSERT", {"Id": "20"}, {"A": "new"}, "NEW_ROW"),
    ]
    begun = DeltaTable(tmp_path / "T").version() + 1
    write(session, sink, 2, *[record(2, change, COLUMNS, "T") for change in changes])
    feed = session.read.option("readChangeFeed", "true").option("startingVersion", begun)
    seen = feed.format("delta").load(str(tmp_path / "T")).collect()
    assert {(row["_change_type"], row["Id"], row["A"]) for row in seen} == {
        ("update_preimage", 3, "one"),
        ("update_postimage", 3, "two"),
        ("insert", 20, "new"),
        ("delete", 4, "one"),
    }
    assert len(seen) == 4
