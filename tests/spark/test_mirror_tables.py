"""What mirrors do with keys, types and tables that don't behave: the sink with real Spark.

The emulator drops fractions of seconds from the values in records, so the records are made here.
"""

import json
import logging
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import deltalake
import pytest
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import AsOfTimeError, TableRecreatedError
from slackwater.spark_sink.output.application import application_of
from slackwater.spark_sink.sink import RecreatedTables
from slackwater.spark_sink.sinks.former_rows import DeletePolicy
from slackwater.spark_sink.sinks.mirrors import Mirrors
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.cut import Cut
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.iceberg import Iceberg
from slackwater.spark_sink.tables.mirror_table import read_mirror
from slackwater.spark_sink.tables.table_changes import MergeId
from slackwater.spark_sink.tables.table_format import TableFormat
from slackwater.timestamp import datetime_to_rfc3339
from tests.support.epoch_rows import make_sink, on_disk
from tests.support.mirror_epochs import (
    START,
    Epochs,
    forget_history,
    joined,
    physical_types,
    remove_commits,
)
from tests.support.mirror_looks import current
from tests.support.read_tables import iceberg_at

NANOSECONDS = "_At_nanoseconds"


@pytest.fixture
def delta() -> TableFormat:
    return Delta()


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the mirror's rows in the order of their keys, by readers that are not Spark."""
    return sorted(current(folder / "T").rows, key=lambda row: repr(list(row.values())))


def present(folder: Path) -> list[tuple[Any, ...]]:
    """Return the values of Id, A and B of the rows not marked as deleted."""
    there = [row for row in rows(folder) if not row.get("_is_deleted")]
    return [tuple(row.get(name) for name in ("Id", "A", "B") if name in row) for row in there]


def test_timestamp_keys_that_differ_by_nanoseconds_are_rows_of_their_own(
    session: SparkSession, tmp_path: Path, delta: TableFormat
) -> None:
    sink = Mirrors(on_disk(tmp_path), "orders", delta)
    epochs = Epochs(session, sink, {"At": "TIMESTAMP", "A": "STRING"})
    one, two, three = (f"2026-01-31T09:00:00.12345600{n}Z" for n in (1, 2, 3))
    whole = "2026-01-31T09:00:00Z"
    for key in (one, two, three, whole, None):
        epochs.change("INSERT", key, A=key)
    epochs.write()
    assert [row[NANOSECONDS] for row in rows(tmp_path)] == [None, 1, 2, 3, 0]
    epochs.change("UPDATE", one, A="changed")
    epochs.change("UPDATE", two, A="changed too")
    epochs.change("DELETE", three)
    epochs.change("UPDATE", None, A="null")
    epochs.write(times=2)
    at = datetime(2026, 1, 31, 9, 0, 0, 123456, tzinfo=UTC)
    assert [(row["At"], row[NANOSECONDS], row["A"]) for row in rows(tmp_path)] == [
        (None, None, "null"),
        (at, 1, "changed"),
        (at, 2, "changed too"),
        (START, 0, whole),
    ]


def test_a_changed_type_moves_the_former_column_out_of_the_way(
    session: SparkSession,
    table_format: TableFormat,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = Mirrors(on_disk(tmp_path), "orders", table_format)
    epochs = Epochs(session, sink, {"Id": "INT64", "A": "STRING", "B": "BOOL"})
    epochs.change("INSERT", "1", A="one", B=True)
    epochs.change("INSERT", "2", A="two", B=False)
    epochs.write()
    # In one epoch with changes of the former column, whose values no row has any more.
    epochs.change("INSERT", "3", A="three", B=True)
    del epochs.types["A"]
    epochs.types["A"] = "INT64"
    epochs.change("UPDATE", "2", A="22")
    with caplog.at_level(logging.WARNING):
        epochs.write(times=2)
    assert "its former values are in A_was_string" in caplog.text
    assert [(row["Id"], row["A"], row["B"], row["A_was_string"]) for row in rows(tmp_path)] == [
        (1, None, True, "one"),
        (2, 22, False, "two"),
        (3, None, True, None),
    ]
    # Again, by a process that has just been started.
    epochs.sink = Mirrors(on_disk(tmp_path), "orders", table_format)
    epochs.types["A"] = "STRING"
    epochs.change("UPDATE", "1", A="five")
    epochs.write()
    first, second, _ = rows(tmp_path)
    assert (first["A"], first["A_was_string"], second["A_was_bigint"]) == ("five", "one", 22)


def test_what_a_former_table_and_a_former_column_left_is_dropped(
    session: SparkSession, table_format: TableFormat, tmp_path: Path
) -> None:
    keeps_deleted = table_format.using == "iceberg"
    sink = Mirrors(
        on_disk(tmp_path),
        "orders",
        table_format,
        delete_policy=DeletePolicy(are_kept=keeps_deleted),
    )
    epochs = Epochs(session, sink, {"Id": "INT64", "A": "STRING", "B": "STRING"})
    for number in ("1", "2", "3"):
        epochs.change("INSERT", number, A="old", B="old")
    epochs.write()
    # The column is made again with the type that it had; a row changes before and after that.
    at = epochs.change("UPDATE", "1", A="lost", B="new")
    epochs.change("UPDATE", "2", A="new")
    epochs.write(
        RecreatedTables(columns={("T", "a"): at, ("T", "C"): at, ("None", "A"): at}), times=2
    )
    assert present(tmp_path) == [(1, None, "new"), (2, "new", "old"), (3, None, "old")]
    epochs.write(RecreatedTables(columns={("T", "B"): epochs.now}))
    assert [row[2] for row in present(tmp_path)] == [None] * 3
    # The table is made again; the epoch has changes of both.
    at = epochs.change("UPDATE", "1", A="lost")
    epochs.change("INSERT", "2", A="another", B=None)
    epochs.write(RecreatedTables(tables={"T": at, "None": at}), times=2)
    assert present(tmp_path) == [(2, "another", None)]
    # And again; it has no row yet.
    epochs.write(RecreatedTables(tables={"T": epochs.now}))
    assert present(tmp_path) == []
    assert len(rows(tmp_path)) == (3 if keeps_deleted else 0)


def test_a_mirror_that_is_not_to_be_cleared_stops_the_pipeline(
    session: SparkSession, tmp_path: Path, delta: TableFormat
) -> None:
    sink = Mirrors(
        on_disk(tmp_path), "orders", delta, delete_policy=DeletePolicy(are_cleared=False)
    )
    epochs = Epochs(session, sink, {"Id": "INT64", "A": "STRING"})
    epochs.change("INSERT", "1", A="old")
    epochs.write(RecreatedTables(tables={"T": START - timedelta(seconds=1)}), times=2)
    at = epochs.change("UPDATE", "1", A="lost")
    with pytest.raises(TableRecreatedError, match="T is another one since") as caught:
        epochs.write(RecreatedTables(tables={"T": at}))
    assert "Set sink.when_recreated to clear" in caught.value.hint
    # As the hint says.
    epochs.sink = Mirrors(on_disk(tmp_path), "orders", delta)
    epochs.write(RecreatedTables(tables={"T": at}))
    assert present(tmp_path) == []


def test_a_column_that_somebody_altered_is_looked_at_again(
    session: SparkSession, tmp_path: Path, delta: TableFormat
) -> None:
    """A mirror's schema is cached; a pipeline that is resumed must not fail by the cached one."""
    sink = Mirrors(on_disk(tmp_path), "orders", delta)
    epochs = Epochs(session, sink, {"Id": "INT64", "A": "STRING"})
    epochs.change("INSERT", "1", A="one")
    epochs.write()
    session.sql(f"ALTER TABLE delta.`{tmp_path}/T` ADD COLUMNS (B STRING)")
    epochs.types["B"] = "STRING"
    epochs.change("INSERT", "2", A="two", B="b")
    epochs.write()
    assert [(row["Id"], row["B"]) for row in rows(tmp_path)] == [(1, None), (2, "b")]


def test_a_scanned_timestamp_key_keeps_its_nanoseconds(
    session: SparkSession, tmp_path: Path, delta: TableFormat
) -> None:
    sink = Mirrors(on_disk(tmp_path), "orders", delta)
    columns = (Column("At", "TIMESTAMP", is_key=True), Column("A", "STRING(MAX)", is_key=False))
    sink.begin_scan(session, {"T": columns})
    epochs = Epochs(session, sink, {"At": "TIMESTAMP", "A": "STRING"})
    for n in (1, 2):
        epochs.change("INSERT", f"2026-01-31T09:00:00.12345600{n}Z", A=f"{n}")
    sink.add_scanned(epochs.records(), 0, START)
    sink.end_scan(session, 2, START)
    assert [(row[NANOSECONDS], row["A"]) for row in rows(tmp_path)] == [(1, "1"), (2, "2")]


def test_a_mirror_is_read_as_it_stood_at_its_low_watermark(
    session: SparkSession,
    table_format: TableFormat,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = Mirrors(on_disk(tmp_path), "orders", table_format)
    epochs = Epochs(session, sink, {"Id": "INT64", "A": "STRING"})
    epochs.change("INSERT", "1", A="published")
    low_watermark = epochs.low_watermark
    epochs.write()
    epochs.change("UPDATE", "1", A="merged")
    monkeypatch.setattr(sink, "_publish_watermark", Mock(side_effect=OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        epochs.write()
    assert present(tmp_path) == [(1, "merged")]
    state = read_mirror(session, str(tmp_path / "T"), type(table_format)())
    assert state is not None
    assert state[1] == datetime_to_rfc3339(low_watermark)
    assert [tuple(row) for row in state[0].collect()] == [(1, "published")]


@pytest.mark.parametrize(
    "table_format",
    [pytest.param(Delta, marks=pytest.mark.long), Iceberg],
    ids=lambda made: str(made.using),
    indirect=True,
)
def test_all_tables_are_read_as_of_one_time(
    session: SparkSession,
    table_format: TableFormat,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def process() -> Mirrors:
        return Mirrors(
            on_disk(tmp_path), "orders", table_format, properties={"delta.checkpointInterval": "4"}
        )

    def cut_at(time: datetime | None) -> Cut:
        return Mirrors(on_disk(tmp_path), "orders", type(table_format)()).as_of(session, time)

    def die_at(owner: object, step: str) -> None:
        monkeypatch.setattr(owner, step, Mock(side_effect=OSError("no space")))
        with pytest.raises(OSError, match="no space"):
            epochs.write()

    mirror = tmp_path / "T"
    epochs = Epochs(session, process(), {"Id": "INT64", "A": "STRING"})
    with pytest.raises(AsOfTimeError, match="no low watermark yet"):
        cut_at(None)
    looks: list[tuple[datetime, list[tuple[Any, ...]]]] = []

    def change(table: str, mod_type: str, value: str | None) -> None:
        epochs.table = table
        epochs.change(mod_type, "1", **({} if value is None else {"A": value}))

    def write(*row: str | None) -> None:
        looks.append((epochs.low_watermark, [(1, *row)]))
        epochs.write()

    change("T", "INSERT", "t0")
    first = epochs.low_watermark
    epochs.write()
    change("U", "INSERT", "u1")
    write("t0", "u1")
    # In two epochs only one of the tables changes.
    change("T", "UPDATE", "t2")
    write("t2", "u1")
    change("U", "UPDATE", "u3")
    write("t2", "u3")
    # The column has another type, so that the mirror changes before the epoch's merge. The process
    # dies after the merge: no reader sees it, and it is not published.
    epochs.types["A"] = "INT64"
    change("T", "UPDATE", "4")
    die_at(epochs.sink._watermarks, "add")
    assert joined(session, cut_at(None)) == looks[-1][1]
    # Its successor dies between the log's line and the publication.
    epochs.sink = process()
    looks.append((epochs.low_watermark, [(1, "4", "u3")]))
    die_at(epochs.sink, "_publish_watermark")
    assert joined(session, cut_at(None)) == looks[-1][1]
    epochs.sink = process()
    epochs.write()
    # A former owner publishes what it had merged, and files are compacted.
    epochs.sink._access(session, "T").publish_watermark(MergeId(application_of("orders"), first))
    epochs.sink._maintain(session, str(mirror))
    for time, rows_then in looks:
        cut = cut_at(time + timedelta(milliseconds=400))
        assert cut.low_watermark == time
        assert joined(session, cut) == rows_then, time
    # U was made later.
    cut = cut_at(first)
    assert [table.version is None for table in cut.tables] == [False, True]
    assert joined(session, cut) == [(1, "t0", None)]
    with pytest.raises(AsOfTimeError, match="no low watermark at or before") as caught:
        cut_at(START)
    assert datetime_to_rfc3339(first) in caught.value.hint
    forget_history(session, table_format, mirror)

    def require_last_only() -> None:
        assert joined(session, cut_at(None)) == looks[-1][1]
        with pytest.raises(AsOfTimeError, match="/T can't be read") as caught:
            cut_at(first)
        assert datetime_to_rfc3339(looks[-1][0]) in caught.value.hint

    require_last_only()
    if table_format.using == "delta":
        remove_commits(mirror)
        require_last_only()


VALUES = {
    "A": ("NUMERIC", "1.5"),
    "B": ("BOOL", True),
    "C": ("FLOAT64", 0.5),
    "D": ("DATE", "2026-01-31"),
    "E": ("BYTES", "YQ=="),
    "F": ("JSON", "{}"),
    "G": ("INT64", "7"),
}


def test_mirrors_are_what_bigquery_asks_for(
    session: SparkSession, table_format: TableFormat, tmp_path: Path
) -> None:
    """BigQuery's documentation lists what it asks for; docs/bigquery.md what matters of it."""
    properties = {"delta.checkpointInterval": "1"}
    sink = Mirrors(on_disk(tmp_path), "orders", table_format, properties=properties)
    codes = {name: code for name, (code, _) in VALUES.items()}
    epochs = Epochs(session, sink, {"At": "TIMESTAMP"} | codes)
    at, values = "2026-01-31T09:00:00.123456789Z", {n: value for n, (_, value) in VALUES.items()}
    epochs.change("INSERT", at, **values)
    epochs.change("INSERT", "2026-01-31T10:00:00Z", **values)
    epochs.write()
    epochs.change("UPDATE", at, G="8")
    epochs.write()
    mirror = tmp_path / "T"
    if table_format.using == "delta":
        table = deltalake.DeltaTable(mirror)
        protocol = table.protocol()
        assert (protocol.min_reader_version, protocol.reader_features) == (1, None)
        assert "delta.columnMapping.mode" not in table.metadata().configuration
        checkpoints = [file.name for file in (mirror / "_delta_log").glob("[0-9]*.checkpoint.*")]
        assert checkpoints
        assert all(re.fullmatch(r"\d{20}\.checkpoint\.parquet", name) for name in checkpoints)
        data = physical_types(mirror.glob("*.parquet"))
    else:
        iceberg = iceberg_at(mirror)
        assert iceberg.format_version == 2
        assert all(s.manifest_list.startswith(f"file://{mirror}/") for s in iceberg.snapshots())
        files = iceberg.inspect.files().to_pylist()
        assert {(file["content"], file["file_format"]) for file in files} == {(0, "PARQUET")}
        # Each snapshot that as-of names is the current one of a metadata file.
        (version,) = {table.version for table in sink.as_of(session, None).tables}
        metadata = [json.loads(f.read_text()) for f in mirror.glob("metadata/*.metadata.json")]
        assert version in {one.get("current-snapshot-id") for one in metadata}
        data = physical_types(mirror.glob("data/**/*.parquet"))
    columns = {name: types for name, types in data.items() if "." not in name}
    assert {name: physical for name, ((physical, _),) in columns.items()} == {
        "At": "INT64",
        NANOSECONDS: "INT32",
        "A": "FIXED_LEN_BYTE_ARRAY",
        "B": "BOOLEAN",
        "C": "DOUBLE",
        "D": "INT32",
        "E": "BYTE_ARRAY",
        "F": "BYTE_ARRAY",
        "G": "INT64",
    }
    (at_type,), (numeric,), (text,) = columns["At"], columns["A"], columns["F"]
    assert "isAdjustedToUTC=true, timeUnit=microseconds" in at_type[1]
    assert numeric[1] == "Decimal(precision=38, scale=9)"
    assert text[1] == "String"


def test_parquet_epochs_are_what_bigquery_asks_for(
    session: SparkSession, tmp_path: Path, delta: TableFormat
) -> None:
    epochs = Epochs(session, Mirrors(on_disk(tmp_path), "orders", delta), {"Id": "INT64"})
    epochs.change("INSERT", "1")
    sink = make_sink(tmp_path)
    sink.position(session)
    summary = sink.stage(epochs.records(), 0)
    sink.publish(session, 0, summary, epochs.low_watermark)
    (epoch,) = tmp_path.glob("epoch=*")
    assert epoch.name == "epoch=20260131T090000.500000Z"
    types = physical_types(epoch.glob("*.parquet"))
    assert "INT96" not in {physical for ((physical, _),) in types.values()}
    assert "mods.list.element.keys" in types
    ((_, at_type),) = types["commit_timestamp"]
    assert "isAdjustedToUTC=true, timeUnit=microseconds" in at_type
