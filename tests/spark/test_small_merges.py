"""A small epoch that the driver merges does to a mirror what Spark's MERGE does."""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import ObjectStoreError, PublishError
from slackwater.spark_sink.output.application import application_of
from slackwater.spark_sink.output.delta.delta_log import DeltaLog
from slackwater.spark_sink.output.iceberg.rewrite import Rewrite
from slackwater.spark_sink.sinks.former_rows import DeletePolicy
from slackwater.spark_sink.sinks.mirrors import Mirrors
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.iceberg import Iceberg
from slackwater.spark_sink.tables.table_format import TableFormat
from slackwater.timestamp import datetime_to_us
from tests.support.epoch_rows import START, Record, on_disk, write
from tests.support.merge_epochs import (
    COLUMNS,
    FOLDER,
    KEY,
    Change,
    FoldedBySpark,
    one,
    operations,
    record,
    value,
)
from tests.support.mirror_looks import current
from tests.support.read_tables import iceberg_at, sql_name
from tests.support.typed_values import VALUES

# Not names that a plain SQL statement may have.
NAMES = ("select", 'a"quoted"', "With.Dot", "Ünï`code", "s.A")
TIMES = (None, "2026-01-31T09:00:00.000001001Z", "2026-01-31T09:00:00.000001002Z")
CAPTURES = ("OLD_AND_NEW_VALUES", "NEW_ROW")


both_formats = pytest.mark.parametrize(
    "format_class",
    [Delta, Iceberg],
    ids=["delta", "iceberg"],
)


def random_epochs(seed: int) -> Iterator[list[Change]]:
    """Yield epochs of random but possible changes of a few rows."""
    rng = random.Random(seed)
    keys = [
        {"Id": number, "At": at, "Order": order}
        for number in (None, "1", "-2")
        for at in TIMES
        for order in ("a'b", None)
    ]
    there = [False] * len(keys)
    for _ in range(4):
        changes: list[Change] = []
        for _ in range(60):
            chosen = rng.randrange(len(keys))
            capture = rng.choice(CAPTURES)
            everything = {name: rng.choice([None, "x", "ÿ'\\"]) for name in NAMES}
            some = {name: everything[name] for name in rng.sample(NAMES, 2)}
            if not there[chosen]:
                changes.append(("INSERT", keys[chosen], everything, capture))
            elif rng.random() < 0.25:
                changes.append(("DELETE", keys[chosen], {}, capture))
            else:
                values = everything if capture == "NEW_ROW" else some
                changes.append(("UPDATE", keys[chosen], values, capture))
            there[chosen] = changes[-1][0] != "DELETE"
        yield changes


@pytest.mark.parametrize(
    ("format_class", "keeps_deleted"),
    [
        (Delta, False),
        (Iceberg, True),
        pytest.param(Delta, True, marks=pytest.mark.long),
        pytest.param(Iceberg, False, marks=pytest.mark.long),
    ],
)
def test_random_epochs_leave_the_rows_of_a_model_whoever_folds_them(
    session: SparkSession, tmp_path: Path, format_class: type[TableFormat], *, keeps_deleted: bool
) -> None:
    columns = {**KEY, **dict.fromkeys(NAMES, "STRING")}
    rows = DeletePolicy(are_kept=keeps_deleted)
    sinks = {
        way: sink(on_disk(tmp_path / way), "orders", format_class(), None, rows)
        for way, sink in (("driver", Mirrors), ("spark", FoldedBySpark))
    }
    at = 0
    model: dict[tuple[Any, ...], dict[str, Any]] = {}
    for epoch, changes in enumerate(random_epochs(seed=7)):
        records = [record(at + place, change, columns) for place, change in enumerate(changes)]
        at += len(records)
        for sink in sinks.values():
            write(session, sink, epoch, *records)
        for change in changes:
            apply(model, change)
        looks = [current(tmp_path / way / FOLDER).rows for way in sinks]
        of_driver, of_spark = (sorted(map(repr, look)) for look in looks)
        assert of_driver == of_spark, epoch
        there = [row for row in looks[0] if not row.get("_is_deleted")]
        assert {_key(row): {name: row[name] for name in NAMES} for row in there} == model
        assert len(there) == len(model) > 0
    for way in sinks:
        assert operations(tmp_path / way / FOLDER) == ["driver"] * 4


def apply(model: dict[tuple[Any, ...], dict[str, Any]], change: Change) -> None:
    """Do to rows what a change does."""
    mod_type, key, values, capture = change
    at = key["At"]
    of_row = (
        None if key["Id"] is None else int(key["Id"]),
        at and at[:26],
        at and int(at[26:29]),
        key["Order"],
    )
    if mod_type == "DELETE":
        del model[of_row]
    elif mod_type == "INSERT" or capture == "NEW_ROW":
        model[of_row] = dict.fromkeys(NAMES) | dict(values)
    else:
        model[of_row] |= values


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    at = row["At"]
    text = at and at.strftime("%Y-%m-%dT%H:%M:%S.%f")
    return row["Id"], text, row["_At_nanoseconds"], row["Order"]


@both_formats
def test_values_of_all_types_are_the_same_whoever_folds_them(
    session: SparkSession, tmp_path: Path, format_class: type[TableFormat]
) -> None:
    columns = {"Id": "INT64", **{f"c{n}": kind for n, (kind, _, _) in enumerate(VALUES)}}
    values = {f"c{n}": value for n, (_, value, _) in enumerate(VALUES)}
    nothing = dict.fromkeys(values)
    inserts = [
        record(n, ("INSERT", {"Id": str(n)}, row, "NEW_ROW"), columns)
        for n, row in enumerate((values, nothing))
    ]
    # Of one row all values become others, and of the other one none.
    swapped = [
        record(9, ("UPDATE", {"Id": "0"}, nothing, "OLD_AND_NEW_VALUES"), columns),
        record(9, ("UPDATE", {"Id": "1"}, {"c6": True}, "OLD_AND_NEW_VALUES"), columns),
    ]
    looks = []
    for way in (Mirrors, FoldedBySpark):
        path = tmp_path / way.__name__
        sink = way(on_disk(path), "orders", format_class())
        write(session, sink, 1, *_named(inserts))
        first = sorted(map(repr, current(path / FOLDER).rows))
        write(session, sink, 2, *_named(swapped))
        looks.append((first, sorted(map(repr, current(path / FOLDER).rows))))
    assert looks[0] == looks[1]
    assert looks[0][0] != looks[0][1]
    assert operations(tmp_path / "Mirrors" / FOLDER) == ["driver"] * 2


def _named(records: Sequence[Record]) -> list[Record]:
    """Return records whose types are names of types, as the information schema has them."""
    return [
        (
            *values[:5],
            [(n, json.loads(kind)["code"], key, at) for n, kind, key, at in values[5]],
            *values[6:],
        )
        for values in records
    ]


def properties(path: Path) -> Mapping[str, str]:
    """Return a table's properties."""
    if (path / "metadata").exists():
        return iceberg_at(path).properties
    return DeltaTable(path).metadata().configuration


TAKEN_OVER = "at the same time|taken the pipeline over"


def before_merge(monkeypatch: pytest.MonkeyPatch, interlude: Callable[[], None]) -> None:
    """Do something between reading a table and committing to it, once."""
    steps: tuple[tuple[Any, str], ...] = ((DeltaLog, "commit"), (Rewrite, "commit"))
    for owner, name in steps:
        monkeypatch.setattr(owner, name, _late(monkeypatch, owner, name, interlude))


def _late(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, interlude: Callable[[], None]
) -> Callable[..., Any]:
    step = getattr(owner, name)

    def late(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, step)
        interlude()
        return step(*args, **options)

    return late


def _nothing(at: int) -> list[Record]:
    """Return an epoch of a row that comes and goes."""
    key, row = {"Id": "7"}, {"A": "gone"}
    changes: list[Change] = [("INSERT", key, row, "NEW_ROW"), ("DELETE", key, {}, "NEW_ROW")]
    return [record(at + n, change, COLUMNS, "T") for n, change in enumerate(changes)]


@both_formats
@pytest.mark.parametrize("kind", ["insert and delete", "delete"])
def test_a_former_owner_merges_nothing_after_an_epoch_that_adds_no_row(
    session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format_class: type[TableFormat],
    kind: str,
) -> None:
    """Its epoch ends earlier than its successor's."""
    former = Mirrors(on_disk(tmp_path), "orders", format_class())
    write(session, former, 1, *one(1, "one"))
    delete: Change = ("DELETE", {"Id": "1"}, {}, "NEW_ROW")
    epoch = _nothing(3) if kind != "delete" else [record(3, delete, COLUMNS, "T")]

    def succeed() -> None:
        successor = Mirrors(on_disk(tmp_path), "orders", format_class())
        successor.position(session.newSession())
        write(session.newSession(), successor, 3, *epoch)

    before_merge(monkeypatch, succeed)
    with pytest.raises(PublishError, match=TAKEN_OVER):
        write(session, former, 2, *one(2, "former"))
    expected = [] if kind == "delete" else ["one"]
    assert [row["A"] for row in current(tmp_path / "T").rows] == expected
    # Nor if it wakes before it has loaded the table.
    with suppress(PublishError):
        write(session, former, 2, *one(2, "former"))
    assert [row["A"] for row in current(tmp_path / "T").rows] == expected


@both_formats
def test_a_former_owner_that_has_read_the_table_merges_nothing(
    session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format_class: type[TableFormat],
) -> None:
    former = Mirrors(on_disk(tmp_path), "orders", format_class())
    write(session, former, 1, *one(1, "one"))

    def succeed() -> None:
        successor = Mirrors(on_disk(tmp_path), "orders", format_class())
        successor.position(session.newSession())
        write(session.newSession(), successor, 2, *one(2, "two"))
        write(session.newSession(), successor, 3, *one(3, "three"))

    before_merge(monkeypatch, succeed)
    with pytest.raises(PublishError, match=TAKEN_OVER):
        write(session, former, 2, *one(2, "former"))
    assert value(tmp_path) == "three"
    # Woken before it has loaded the table, it has nothing to do, or is refused.
    with suppress(PublishError):
        write(session, former, 2, *one(2, "former"))
    assert value(tmp_path) == "three"
    assert properties(tmp_path / "T")["slackwater.low_watermark"] == "2026-01-31T09:00:03.000000Z"


@both_formats
def test_an_epoch_whose_files_were_compacted_meanwhile_is_merged_again_at_once(
    session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format_class: type[TableFormat],
) -> None:
    sink = Mirrors(on_disk(tmp_path), "orders", format_class())
    write(session, sink, 1, *one(1, "one"))
    keys = [("INSERT", {"Id": str(key)}, {"A": "other"}, "NEW_ROW") for key in (2, 3)]
    for epoch, change in enumerate(keys, 2):
        write(session, sink, epoch, record(epoch, change, COLUMNS, "T"))
    before_merge(monkeypatch, lambda: sink._maintain(session, str(tmp_path / "T")))
    write(session, sink, 4, *one(4, "four"))
    assert sorted(row["A"] for row in current(tmp_path / "T").rows) == ["four", "other", "other"]
    # What the refused attempt had written is gone.
    folder = tmp_path / "T" / ("data" if format_class is Iceberg else "")
    assert len(list(folder.glob("*.parquet"))) == 5


def test_many_epochs_leave_checkpoints_and_a_table_that_spark_reads(
    session: SparkSession, tmp_path: Path
) -> None:
    sink = Mirrors(on_disk(tmp_path), "orders", Delta())
    for epoch in range(1, 36):
        write(session, sink, epoch, *one(epoch, f"e{epoch}"))
    log = tmp_path / "T" / "_delta_log"
    assert len(list(log.glob("*.checkpoint.parquet"))) == 2
    rows = session.read.format("delta").load(str(tmp_path / "T")).collect()
    assert [row["A"] for row in rows] == ["e35"]


def test_a_table_with_another_pipelines_transactions_is_merged_into(
    session: SparkSession, tmp_path: Path
) -> None:
    sink = Mirrors(on_disk(tmp_path), "orders", Delta())
    write(session, sink, 1, *one(1, "one"))
    later = Transaction(application_of("other"), datetime_to_us(START + timedelta(days=1)))
    DeltaTable(tmp_path / "T").alter.set_table_properties(
        {"a": "b"},
        raise_if_not_exists=False,
        commit_properties=CommitProperties(app_transactions=[later]),
    )
    write(session, sink, 2, *one(2, "two"))
    assert value(tmp_path) == "two"


def test_a_table_with_a_feature_that_is_not_known_is_refused(
    session: SparkSession, tmp_path: Path
) -> None:
    sink = Mirrors(on_disk(tmp_path), "orders", Delta())
    write(session, sink, 1, *one(1, "one"))
    widening = "'delta.enableTypeWidening' = 'true'"
    session.sql(f"ALTER TABLE delta.`{tmp_path}/T` SET TBLPROPERTIES ({widening})")
    with pytest.raises(ObjectStoreError, match="typeWidening"):
        write(session, sink, 2, *one(2, "two"))
    with pytest.raises(ObjectStoreError, match="typeWidening"):
        sink.position(session)


@both_formats
def test_a_query_for_large_numbers_finds_the_rows_that_are_not_numbers(
    session: SparkSession, tmp_path: Path, format_class: type[TableFormat]
) -> None:
    """For Spark NaN is larger than all others, and it skips files by their statistics."""
    columns = {"Id": "INT64", "D": "FLOAT64"}
    sink = Mirrors(on_disk(tmp_path), "orders", format_class())
    inserts = [("INSERT", {"Id": str(n)}, {"D": d}, "NEW_ROW") for n, d in ((1, "NaN"), (2, 0.5))]
    write(session, sink, 1, *[record(1, change, columns, "T") for change in inserts])
    assert operations(tmp_path / "T") == ["driver"]
    name = sql_name(session, format_class(), tmp_path / "T")
    assert [row["Id"] for row in session.table(name).where("D > 1").collect()] == [1]
