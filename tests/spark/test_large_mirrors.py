"""Spark merges into large mirrors, which then are not written again for a few changes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

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


@pytest.mark.long
def test_spark_merges_into_large_iceberg_tables_and_their_files_of_deletes(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Mirrors(on_disk(tmp_path), "orders", Iceberg())
    rows = [("INSERT", {"Id": str(key)}, {"A": "one"}, "NEW_ROW") for key in range(1, 21)]
    publish(session, sink, 1, [record(1, change, COLUMNS, "T") for change in rows])
    files = set((tmp_path / "T" / "data").glob("*.parquet"))
    with monkeypatch.context() as patch:
        patch.setattr(small_table, "ROWS_MAX", 19)
        publish(session, sink, 2, one(2, "two"))
    # A new process, for which the table is small, but has files of deletes.
    sink = Mirrors(on_disk(tmp_path), "orders", Iceberg())
    for epoch in (3, 4, 5, 6):
        publish(session, sink, epoch, one(epoch, f"e{epoch}"))
    assert operations(tmp_path / "T") == ["driver", *["spark"] * 5]
    ones = [(key, "one") for key in range(2, 21)]
    table = iceberg_table(tmp_path / "T")
    assert {Path(task.file.file_path) for task in table.scan().plan_files()} > files
    seen = [(row["Id"], row["A"]) for row in current(tmp_path / "T").rows]
    assert sorted(seen) == [(1, "e6"), *ones]
    deletes = sum(len(task.delete_files) for task in table.scan().plan_files())
    Iceberg().maintain(session, str(tmp_path / "T"), "slackwater orders", None)
    table = iceberg_table(tmp_path / "T")
    assert sum(len(task.delete_files) for task in table.scan().plan_files()) < deletes
    seen = [(row["Id"], row["A"]) for row in current(tmp_path / "T").rows]
    assert sorted(seen) == [(1, "e6"), *ones]


def test_spark_merges_rows_whose_texts_arrow_can_not_hold(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflow(*_: object, **__: object) -> pa.Table:
        # As pyarrow does for more than 2 GiB of a column's text.
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    sink = Mirrors(on_disk(tmp_path), "orders", Iceberg())
    publish(session, sink, 1, one(1, "one"))
    monkeypatch.setattr(iceberg_merge, "updated_rows", overflow)
    publish(session, sink, 2, one(2, "two"))
    assert [row["A"] for row in current(tmp_path / "T").rows] == ["two"]
    assert operations(tmp_path / "T") == ["driver", "spark"]
