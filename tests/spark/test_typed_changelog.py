"""Typed changelogs: what a table's columns do, what a change says, and each epoch once."""

import json
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import BadRecordError, ChangelogColumnError
from slackwater.spark_sink.output.maintenance import MaintenancePolicy
from slackwater.spark_sink.sink import OutputPosition
from slackwater.spark_sink.sinks.typed_changelogs import TypedChangelogs
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.iceberg import Iceberg
from slackwater.spark_sink.tables.table_format import TableFormat
from tests.support.epoch_rows import START, Mods, Record, frame, on_disk, record
from tests.support.read_tables import rows_in, sql_name
from tests.support.typed_values import VALUES

# Iceberg compacts from five files on.
CHUNKS = 5
FORMATS = pytest.mark.parametrize("table_format", [Delta(), Iceberg()], ids=lambda f: str(f.using))


class Epochs:
    """Epochs of one output, each written by a process of its own."""

    def __init__(self, session: SparkSession, table_format: TableFormat, path: Path) -> None:
        self._session = session
        self._format = table_format
        self.path = path
        self._numbers = count(1)

    def sink(self, **options: Any) -> TypedChangelogs:
        kept_in = type(self._format)()
        return TypedChangelogs(on_disk(self.path), "orders", kept_in, **options)

    def write(self, *records: Record, times: int = 1, **options: Any) -> None:
        number = next(self._numbers)
        for _ in range(times):
            sink = self.sink(**options)
            sink.position(self._session)
            epoch = frame(self._session, records)
            summary = sink.stage(epoch, number)
            at = START + timedelta(seconds=number)
            sink.publish(self._session, number, summary, at)
            sink.maintenance.finish()
            assert sink.position(self._session) == OutputPosition(
                at, None, "orders", has_tables=True, committed=at
            )

    def rows(self, table: str = "sales.Orders") -> list[dict[str, Any]]:
        return sorted(rows_in(self.path / table), key=lambda row: row["commit_timestamp"])

    def files(self, session: SparkSession) -> int:
        name = sql_name(session, self._format, self.path / "sales.Orders")
        if self._format.using == "iceberg":
            return session.table(f"{name}.files").count()
        return len(session.table(name).inputFiles())


@pytest.fixture
def epochs(session: SparkSession, table_format: TableFormat, tmp_path: Path) -> Epochs:
    return Epochs(session, table_format, tmp_path / "out")


@FORMATS
def test_columns_come_and_go_and_an_epoch_lands_once(epochs: Epochs) -> None:
    old = {"Id": "INT64", "Name": "STRING", "Fee": "NUMERIC"}
    new = {"Id": "INT64", "Name": "STRING", "Paid": "BOOL"}
    ada = {"Name": "Ada", "Fee": "1.25"}
    epochs.write(
        record("INSERT", [({"Id": "1"}, ada, {}), ({"Id": "2"}, {"Name": None}, {})], old, at=1),
        record("INSERT", [({"Id": "9"}, {}, {})], {"Id": "INT64"}, at=2, table="Keys"),
        times=2,
    )
    # Of one epoch, some before Fee was dropped and Paid was added, and some after.
    epochs.write(
        record("UPDATE", [({"Id": "1"}, {"Fee": None}, {"Fee": "1.25"})], old, at=3),
        record("UPDATE", [({"Id": "1"}, {"Paid": True}, {"Paid": None})], new, at=4),
        times=3,
    )
    epochs.write(record("DELETE", [({"Id": "1"}, {}, {"Name": "Ada"})], new, at=5), times=2)
    rows = epochs.rows()
    assert [(row["mod_type"], row["mod_number"], row["key"]) for row in rows] == [
        ("INSERT", 0, {"Id": 1}),
        ("INSERT", 1, {"Id": 2}),
        ("UPDATE", 0, {"Id": 1}),
        ("UPDATE", 0, {"Id": 1}),
        ("DELETE", 0, {"Id": 1}),
    ]
    nothing = {"Id": 1, "Name": None, "Fee": None, "Paid": None}
    assert [(row["before"], row["after"]) for row in rows] == [
        (None, nothing | {"Name": "Ada", "Fee": Decimal("1.25")}),
        (None, nothing | {"Id": 2}),
        (nothing | {"Fee": Decimal("1.25")}, nothing),
        (nothing, nothing | {"Paid": True}),
        (nothing | {"Name": "Ada"}, None),
    ]
    # A NULL that is said is not the same as nothing that is said.
    assert [(row["given"]["before"], row["given"]["after"]) for row in rows] == [
        (None, ["Name", "Fee"]),
        (None, ["Name"]),
        (["Fee"], ["Fee"]),
        (["Paid"], ["Paid"]),
        (["Name"], None),
    ]
    assert {row["server_transaction_id"] for row in rows} == {"t1", "t3", "t4", "t5"}
    metadata = {"transaction_tag": "tag", "partition_token": "partition", "low_watermark": START}
    assert all(row[name] == value for row in rows for name, value in metadata.items())
    (only,) = epochs.rows("Keys")
    assert (only["key"], only["after"], only["given"]["after"]) == ({"Id": 9}, {"Id": 9}, [])


@FORMATS
def test_before_and_after_depend_on_the_value_capture_type(epochs: Epochs) -> None:
    columns = {"Id": "INT64", "A": "FLOAT64", "B": "STRING"}
    said: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "OLD_AND_NEW_VALUES": ({"A": 2.5}, {"A": 1.5}),
        "NEW_VALUES": ({"A": 2.5}, {}),
        "NEW_ROW": ({"A": 2.5, "B": "b"}, {}),
        "NEW_ROW_AND_OLD_VALUES": ({"A": 2.5, "B": "b"}, {"A": 1.5}),
    }
    epochs.write(
        *(
            record("UPDATE", [({"Id": "1"}, *values)], columns, at=at, capture=capture)
            for at, (capture, values) in enumerate(said.items())
        )
    )
    rows = epochs.rows()
    assert [row["value_capture_type"] for row in rows] == list(said)
    for row, (new, old) in zip(rows, said.values(), strict=True):
        assert row["after"] == {"Id": 1, "A": 2.5, "B": new.get("B")}
        assert row["before"] == {"Id": 1, "A": old.get("A"), "B": None}
        assert row["given"] == {"before": list(old), "after": list(new)}


@FORMATS
def test_each_value_is_of_its_columns_type(epochs: Epochs) -> None:
    values = {f"C{n}": value for n, (_, value, _) in enumerate(VALUES)}
    columns = {"Id": "INT64", **{f"C{n}": kind for n, (kind, _, _) in enumerate(VALUES)}}
    epochs.write(record("INSERT", [({"Id": "1"}, values, {})], columns, at=1))
    (row,) = epochs.rows()
    assert row["after"] == {"Id": 1} | {f"C{n}": made for n, (_, _, made) in enumerate(VALUES)}


@FORMATS
def test_a_column_with_another_type_is_refused(epochs: Epochs) -> None:
    mods: Mods = [({"Id": "1"}, {"A": "7"}, {})]
    epochs.write(record("INSERT", mods, {"Id": "INT64", "A": "STRING"}, at=1))
    changed = record("INSERT", mods, {"Id": "INT64", "A": "INT64"}, at=2)
    refusal = r"column before.A .* has type STRING, .* BIGINT"
    with pytest.raises(ChangelogColumnError, match=refusal):
        epochs.write(changed)
    (row,) = epochs.rows()
    assert row["after"] == {"Id": 1, "A": "7"}


# Records of which one has a value that the later type takes, and one that it does not.
FORMER, LATER = {"Id": "INT64", "A": "STRING"}, {"Id": "INT64", "A": "INT64"}
RETYPED = (
    record("INSERT", [({"Id": "1"}, {"A": "12"}, {}), ({"Id": "2"}, {"A": "x"}, {})], FORMER, at=1),
    record("INSERT", [({"Id": "3"}, {"A": "7"}, {})], LATER, at=2),
)


@FORMATS
@pytest.mark.parametrize("small_max", [500, 0])
def test_a_changelog_that_was_moved_away_for_another_type_gets_the_epoch_of_both(
    epochs: Epochs, small_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the driver and by Spark's tasks."""
    monkeypatch.setattr("slackwater.spark_sink.sinks.managed_tables._SMALL_RECORDS_MAX", small_max)
    epochs.write(record("INSERT", [({"Id": "9"}, {"A": "a"}, {})], FORMER, at=0))
    with pytest.raises(ChangelogColumnError, match="Move the changelog away"):
        epochs.write(*RETYPED)
    (epochs.path / "sales.Orders").rename(epochs.path.parent / "former")
    epochs.write(*RETYPED)
    rows = sorted(epochs.rows(), key=lambda row: row["key"]["Id"])
    # A value of the former type is none of this column's.
    assert [row["after"] for row in rows] == [
        {"Id": 1, "A": None},
        {"Id": 2, "A": None},
        {"Id": 3, "A": 7},
    ]
    assert [row["given"]["after"] for row in rows] == [[], [], ["A"]]


@FORMATS
def test_a_table_of_another_key_that_takes_the_name_over_goes_on_beside_the_former_one(
    epochs: Epochs,
) -> None:
    former = {"Id": "INT64", "A": "STRING"}
    epochs.write(record("INSERT", [({"Id": "1"}, {"A": "a"}, {})], former, at=1))
    mods: Mods = [({"Code": "x"}, {"A": "b"}, {})]
    other = record("INSERT", mods, {"Code": "STRING", "A": "STRING"}, at=2)
    types = [(name, kind, name == "Code", place) for name, kind, _, place in other[5]]
    epochs.write((*other[:5], types, *other[6:]))
    rows = epochs.rows()
    assert [row["key"] for row in rows] == [{"Id": 1, "Code": None}, {"Id": None, "Code": "x"}]
    assert [row["after"]["A"] for row in rows] == ["a", "b"]


@FORMATS
def test_a_bad_value_stops_the_pipeline_or_its_mod_is_set_aside(epochs: Epochs) -> None:
    columns = {"Id": "INT64", "A": "INT64", "B": "BYTES", "C": "ARRAY<INT64>"}
    texts: Sequence[tuple[Any, ...]] = [
        ("5", "AA==", ["1", None]),
        ("x", None, "x"),
        ("7", None, None),
        ("8", None, " "),
        ("9", "!!", "null"),
    ]
    mods: Mods = [
        ({"Id": str(n)}, dict(zip("ABC", values, strict=True)), {})
        for n, values in enumerate(texts)
    ]
    # The same key once more, with nothing wrong.
    later = record("UPDATE", [({"Id": "1"}, {"A": "6"}, {"A": "5"})], columns, at=2)
    epoch = (record("INSERT", mods, columns, at=1), later)
    with pytest.raises(
        BadRecordError, match=r"sales.Orders: a value of column (A, |B, )?C is not of"
    ):
        epochs.write(*epoch)
    epochs.write(*epoch, times=2, keeps_bad_records=True)
    rows = epochs.rows()
    written = [
        (row["key"]["Id"], row["mod_number"], row["after"]["A"], row["after"]["C"]) for row in rows
    ]
    assert written == [(0, 0, 5, [1, None]), (2, 2, 7, None), (1, 0, 6, None)]
    lines = [path.read_text() for path in epochs.path.glob("_dead_letters/*/*.json")]
    letters = [json.loads(line) for text in lines for line in text.splitlines()]
    bad = sorted((letter["key"], letter["bad_columns"]) for letter in letters)
    assert bad == [('{"Id": "1"}', ["A", "C"]), ('{"Id": "3"}', ["C"]), ('{"Id": "4"}', ["B", "C"])]
    assert all(len(letter["record"]["mods"]) == len(mods) for letter in letters)


@FORMATS
def test_a_scan_comes_first_as_inserts_and_files_are_compacted(
    epochs: Epochs, session: SparkSession
) -> None:
    columns = (Column("Id", "INT64", True), Column("A", "STRING(MAX)", False))
    types = {"Id": "INT64", "A": "STRING"}
    for _ in range(2):
        sink = epochs.sink()
        sink.position(session)
        sink.begin_scan(session, {"sales.Orders": columns, "Empty": columns})
        for chunk in range(CHUNKS):
            mods: Mods = [({"Id": str(chunk)}, {"A": f"a{chunk}"}, {})]
            row = list(record("INSERT", mods, types, at=0, capture="NEW_ROW"))
            row[1] = ""
            scanned = frame(session, [tuple(row)])
            assert sink.add_scanned(scanned, chunk, START) == 1
        sink.end_scan(session, CHUNKS, START)
    update = record("UPDATE", [({"Id": "1"}, {"A": "b"}, {"A": "a1"})], types, at=7)
    epochs.write(update, policy=MaintenancePolicy(every_s=0.0))
    *scanned_rows, last = epochs.rows()
    assert sorted((row["key"]["Id"], row["after"]["A"]) for row in scanned_rows) == [
        (chunk, f"a{chunk}") for chunk in range(CHUNKS)
    ]
    assert all(
        (row["mod_type"], row["server_transaction_id"], row["before"]) == ("INSERT", "", None)
        for row in scanned_rows
    )
    assert last["before"] == {"Id": 1, "A": "a1"}
    assert epochs.rows("Empty") == []
    assert epochs.files(session) == 1


@FORMATS
def test_runs_of_an_epoch_each_are_compacted_and_keep_few_versions(
    epochs: Epochs, session: SparkSession
) -> None:
    """Each process ends before its interval has passed; all of them are in intervals of their own.

    Otherwise an epoch is a file.
    """
    policy = MaintenancePolicy(every_s=3_600.0, keep_s=3_600.0)
    for key in range(2 * CHUNKS):
        row = record("INSERT", [({"Id": str(key)}, {}, {})], {"Id": "INT64"}, at=key)
        epochs.write(row, policy=policy)
    assert len(epochs.rows()) == 2 * CHUNKS
    assert epochs.files(session) < CHUNKS
