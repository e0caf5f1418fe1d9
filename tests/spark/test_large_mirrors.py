"""Large mirrors are not written again for a few changes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import ObjectStoreError
from slackwater.spark_sink.sinks.former_rows import GoneRows
from slackwater.spark_sink.sinks.mirrors import Mirrors
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.iceberg import Iceberg
from slackwater.spark_sink.tables.row_merges import iceberg_merge, small_table
from tests.epoch_rows import on_disk
from tests.merge_epochs import COLUMNS, one, operations, publish, record
from tests.mirrors import current, iceberg_table

DELETION_VECTORS = "delta.enableDeletionVectors"


@pytest.mark.long
def test_spark_merges_into_large_tables_and_tables_that_others_can_not_write(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Mirrors(on_disk(tmp_path), "orders", Delta())
    publish(session, sink, 1, one(1, "one"))
    with monkeypatch.context() as patch:
        patch.setattr(small_table, "BYTES_MAX", 0)
        publish(session, sink, 2, one(2, "two"))
    publish(session, sink, 3, one(3, "three"))
    of_spark = operations(tmp_path / "T")
    assert (of_spark[0], len(of_spark), "driver" in of_spark[1:]) == ("driver", 3, False)
    # One row is marked in its file, and is in another one now.
    three = session.read.format("delta").load(str(tmp_path / "T")).collect()
    assert [row["A"] for row in three] == ["three"]
    detail = session.sql(f"DESCRIBE DETAIL delta.`{tmp_path}/T`").first()
    assert detail is not None
    assert detail["properties"][DELETION_VECTORS] == "true"
    assert session.conf.get("spark.sql.codegen.wholeStage") == "false"
    # A new process looks again.
    sink = Mirrors(on_disk(tmp_path), "orders", Delta())
    publish(session, sink, 4, one(4, "four"))
    assert operations(tmp_path / "T")[-1] == "driver"
    properties = "'delta.columnMapping.mode' = 'name'"
    session.sql(f"ALTER TABLE delta.`{tmp_path}/T` SET TBLPROPERTIES ({properties})")
    publish(session, sink, 5, one(5, "five"))
    rows = session.read.format("delta").load(str(tmp_path / "T")).collect()
    assert [row["A"] for row in rows] == ["five"]


@pytest.mark.parametrize("capture", ["NEW_ROW", "NEW_VALUES"])
@pytest.mark.parametrize("deletes", ["apply", "mark"])
def test_of_large_iceberg_files_rows_are_marked_as_gone(
    session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capture: str,
    deletes: str,
) -> None:
    monkeypatch.setattr(iceberg_merge, "SMALL", 0)
    columns = {**COLUMNS, "B": "STRING"}
    gone_rows = GoneRows(are_kept=deletes == "mark")
    expected = dict.fromkeys(range(1, 41), ("one", "b"))

    def merge(epoch: int, kind: str, key: int, values: dict[str, str]) -> None:
        change = (kind, {"Id": str(key)}, values, capture)
        # Each by a new process.
        sink = Mirrors(on_disk(tmp_path), "orders", Iceberg(), gone_rows=gone_rows)
        sink.position(session)
        publish(session, sink, epoch, [record(epoch, change, columns, "T")])

    sink = Mirrors(on_disk(tmp_path), "orders", Iceberg(), gone_rows=gone_rows)
    sink.position(session)
    rows = [("INSERT", {"Id": str(key)}, {"A": "one", "B": "b"}, capture) for key in expected]
    publish(session, sink, 1, [record(1, row, columns, "T") for row in rows])
    files = {file.name for file in (tmp_path / "T" / "data").iterdir()}
    for epoch in (2, 3, 4):
        whole = {"B": "b"} if capture == "NEW_ROW" else {}
        merge(epoch, "UPDATE", 1, {"A": f"e{epoch}", **whole})
        expected[1] = (f"e{epoch}", "b")
    merge(5, "DELETE", 2, {})
    merge(6, "INSERT", 50, {"A": "new", "B": "b"})
    expected[50] = ("new", "b")
    del expected[2]

    def require() -> None:
        path = f"{tmp_path}/T"
        of_spark = session.read.format("iceberg").load(path)
        of_tasks = Iceberg().read(session, path)
        for rows in (
            iceberg_table(tmp_path / "T").scan().to_arrow().to_pylist(),
            *([row.asDict() for row in read.collect()] for read in (of_spark, of_tasks)),
        ):
            there = [row for row in rows if not row.get("_is_deleted")]
            assert {row["Id"]: (row["A"], row["B"]) for row in there} == expected
            assert len(there) == len(expected)
            assert len(rows) - len(there) == (deletes == "mark")

    require()
    tasks = list(iceberg_table(tmp_path / "T").scan().plan_files())
    # The first file is as it was, and has one file of deletes.
    first = [task for task in tasks if Path(task.file.file_path).name in files]
    assert [len(task.delete_files) for task in first] == [1]
    assert operations(tmp_path / "T") == ["driver"] * 6
    # So many files become one, and of the rows that are gone nothing is left.
    monkeypatch.setattr(iceberg_merge, "SMALL", 16 << 20)
    monkeypatch.setattr(small_table, "FILES_MAX", 2)
    merge(7, "UPDATE", 1, {"A": "e7", **({"B": "b"} if capture == "NEW_ROW" else {})})
    expected[1] = ("e7", "b")
    require()
    tasks = list(iceberg_table(tmp_path / "T").scan().plan_files())
    assert [(len(task.delete_files), task.file.record_count) for task in tasks] == [
        (0, len(expected) + (deletes == "mark"))
    ]


def test_a_large_share_of_rows_that_are_gone_is_not_read_any_more(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_merge, "SMALL", 0)
    sink = Mirrors(on_disk(tmp_path), "orders", Iceberg())
    sink.position(session)
    rows = [("INSERT", {"Id": str(key)}, {"A": "one"}, "NEW_ROW") for key in range(8)]
    publish(session, sink, 1, [record(1, row, COLUMNS, "T") for row in rows])
    for epoch in range(2, 6):
        change = ("UPDATE", {"Id": str(epoch)}, {"A": "two"}, "NEW_ROW")
        publish(session, sink, epoch, [record(epoch, change, COLUMNS, "T")])
        gone = sum(
            deletes.record_count
            for task in iceberg_table(tmp_path / "T").scan().plan_files()
            for deletes in task.delete_files
        )
        assert gone <= 2
    rows_there = iceberg_table(tmp_path / "T").scan().to_arrow().to_pylist()
    assert sorted((row["Id"], row["A"]) for row in rows_there) == [
        (key, "two" if 2 <= key < 6 else "one") for key in range(8)
    ]


def test_rows_whose_texts_arrow_can_not_hold_are_refused(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflow(*_: object, **__: object) -> pa.Table:
        # As pyarrow does for more than 2 GiB of a column's text.
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    sink = Mirrors(on_disk(tmp_path), "orders", Iceberg())
    sink.position(session)
    publish(session, sink, 1, one(1, "one"))
    with monkeypatch.context() as patch:
        patch.setattr(iceberg_merge, "updated_rows", overflow)
        with pytest.raises(ObjectStoreError, match="offset overflow"):
            publish(session, sink, 2, one(2, "two"))
    publish(session, sink, 2, one(2, "two"))
    assert [row["A"] for row in current(tmp_path / "T").rows] == ["two"]
