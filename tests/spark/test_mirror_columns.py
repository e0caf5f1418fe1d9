"""Mirrors of tables whose columns are out of the ordinary: by their names, or without a key."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import ColumnNameError, ObjectStoreError
from slackwater.spark_sink.sink import RecreatedTables
from slackwater.spark_sink.sinks.former_rows import DeletePolicy
from slackwater.spark_sink.sinks.mirrors import Mirrors
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.iceberg import Iceberg
from slackwater.spark_sink.tables.mirror_table import read_mirror
from slackwater.spark_sink.tables.table_format import TableFormat
from tests.support.epoch_rows import on_disk, write
from tests.support.merge_epochs import FOLDER, Change, operations, record
from tests.support.mirror_epochs import START, Epochs
from tests.support.mirror_looks import current


def test_columns_named_like_the_mark_of_deleted_rows_are_the_tables_own(
    session: SparkSession, table_format: TableFormat, tmp_path: Path
) -> None:
    types = {"Id": "INT64", "_is_deleted": "BOOL", "_commit_timestamp": "TIMESTAMP"}
    sink = Mirrors(on_disk(tmp_path), "orders", table_format)
    epochs = Epochs(session, sink, types)
    values = {"_is_deleted": True, "_commit_timestamp": "2026-01-31T09:00:00Z"}
    epochs.change("INSERT", "1", **values)
    epochs.write()
    mirror = read_mirror(session, str(tmp_path / "T"), table_format)
    assert mirror is not None
    expected = {"Id": 1, "_is_deleted": True, "_commit_timestamp": START}
    assert mirror[0].toArrow().to_pylist() == current(tmp_path / "T").rows == [expected]
    # A column that was made again has no former values: it is one of the table's.
    epochs.change("INSERT", "2", **values)
    epochs.write(RecreatedTables(columns={("T", "_is_deleted"): epochs.now}))
    assert [row["_is_deleted"] for row in current(tmp_path / "T").rows] == [None, None]


def test_a_column_that_is_spelled_otherwise_now_is_the_same(
    session: SparkSession, table_format: TableFormat, tmp_path: Path
) -> None:
    sink = Mirrors(on_disk(tmp_path), "orders", table_format)
    epochs = Epochs(session, sink, {"Id": "INT64", "Name": "STRING", "Other": "STRING"})
    epochs.change("INSERT", "1", Name="one", Other="stays")
    epochs.write()
    epochs.types = {"ID": "INT64", "NAME": "STRING", "Other": "STRING"}
    epochs.change("UPDATE", "1", NAME="two")
    epochs.write()
    assert current(tmp_path / "T").rows == [{"Id": 1, "Name": "two", "Other": "stays"}]
    assert set(operations(tmp_path / "T")) == {"driver"}


@pytest.mark.parametrize(
    ("keeps_deleted", "types", "name"),
    [
        (True, {"Id": "INT64", "_Is_Deleted": "BOOL"}, "_Is_Deleted"),
        (True, {"Id": "INT64", "_commit_timestamp": "BOOL"}, "_commit_timestamp"),
        (False, {"At": "TIMESTAMP", "_at_nanoseconds": "INT64"}, "_at_nanoseconds"),
        (False, {"Id": "INT64", "_latest_is_deleted": "BOOL"}, "_latest_is_deleted"),
    ],
)
def test_a_column_whose_name_a_mirror_needs_is_refused_before_anything_lands(
    session: SparkSession, tmp_path: Path, types: dict[str, str], name: str, *, keeps_deleted: bool
) -> None:
    sink = Mirrors(
        on_disk(tmp_path), "orders", Delta(), delete_policy=DeletePolicy(are_kept=keeps_deleted)
    )
    epochs = Epochs(session, sink, types)
    epochs.change("INSERT", None, **{name: None})
    with pytest.raises(ColumnNameError, match=f"column T.{name}: its mirror needs") as refused:
        epochs.write()
    assert "filter.exclude_columns" in refused.value.hint
    assert ("sink.deletes" in refused.value.hint) == (keeps_deleted)
    assert not (tmp_path / "T").exists()


def test_mapped_columns_have_any_names_for_all_readers(
    session: SparkSession, tmp_path: Path
) -> None:
    properties = {"delta.columnMapping.mode": "name"}
    names = ["full name", "a,b;c", "{(x)}", "tab\there", "k = v"]
    sink = Mirrors(on_disk(tmp_path), "orders", Delta(), properties=properties)
    epochs = Epochs(session, sink, {"Id": "INT64", **dict.fromkeys(names[:-1], "STRING")})
    for key in ("1", "2"):
        epochs.change("INSERT", key, **{name: f"{name} {key}" for name in names[:-1]})
    epochs.write()
    # A column that comes later, and one whose type changes.
    epochs.types[names[-1]] = "STRING"
    epochs.change("UPDATE", "2", **{names[-1]: "later"})
    epochs.write()
    del epochs.types[names[0]]
    epochs.types[names[0]] = "INT64"
    epochs.change("UPDATE", "1", **{names[0]: "7"})
    epochs.write()
    of_tasks = Delta().read(session, str(tmp_path / "T"))
    of_spark = session.read.format("delta").load(str(tmp_path / "T"))
    for rows in (of_tasks, of_spark):
        one, two = sorted(rows.toArrow().to_pylist(), key=lambda row: row["Id"])
        assert [one[name] for name in names] == [7, "a,b;c 1", "{(x)} 1", "tab\there 1", None]
        assert [two[name] for name in names] == [None, "a,b;c 2", "{(x)} 2", "tab\there 2", "later"]
        assert two["full name_was_string"] == "full name 2"
    # One that was dropped must not come back with its former values.
    session.sql(f"ALTER TABLE delta.`{tmp_path}/T` DROP COLUMN `a,b;c`")
    epochs.sink = Mirrors(on_disk(tmp_path), "orders", Delta(), properties=properties)
    epochs.sink.position(session)
    epochs.change("UPDATE", "2", **{"a,b;c": "again"})
    with pytest.raises(ObjectStoreError, match="values of a former column a,b;c"):
        epochs.write()


@pytest.mark.parametrize(("format_class", "keeps_deleted"), [(Delta, False), (Iceberg, True)])
def test_a_table_without_key_columns_has_one_row(
    session: SparkSession, tmp_path: Path, format_class: type[TableFormat], *, keeps_deleted: bool
) -> None:
    rows = DeletePolicy(are_kept=keeps_deleted)
    sink = Mirrors(on_disk(tmp_path), "orders", format_class(), delete_policy=rows)
    epochs: list[tuple[list[Change], list[dict[str, str]]]] = [
        ([("INSERT", {}, {"A": "a", "B": "b"}, "OLD_AND_NEW_VALUES")], [{"A": "a", "B": "b"}]),
        ([("UPDATE", {}, {"B": "c"}, "OLD_AND_NEW_VALUES")], [{"A": "a", "B": "c"}]),
        ([("DELETE", {}, {}, "NEW_ROW")], []),
        (
            [
                ("INSERT", {}, {"A": "d", "B": "d"}, "NEW_ROW"),
                ("UPDATE", {}, {"A": "e"}, "NEW_VALUES"),
            ],
            [{"A": "e", "B": "d"}],
        ),
    ]
    at = 0
    for number, (changes, expected) in enumerate(epochs):
        records = [
            record(at + place, change, {"A": "STRING", "B": "STRING"})
            for place, change in enumerate(changes)
        ]
        at += len(changes)
        write(session, sink, number, *records)
        seen = current(tmp_path / FOLDER).rows
        there = [row for row in seen if not row.get("_is_deleted")]
        assert [{name: row[name] for name in "AB"} for row in there] == expected
        assert len(seen) <= 1
