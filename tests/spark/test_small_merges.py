"""A small epoch that the driver merges does to a mirror what Spark's MERGE does."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.table import TableMerger
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.application import application_of
from slackwater.spark_sink.output.iceberg.rewrite import Rewrite
from slackwater.spark_sink.sinks.former_rows import GoneRows
from slackwater.spark_sink.sinks.mirrors import Mirrors
from slackwater.spark_sink.tables.by_driver.delta_by_driver import DeltaByDriver
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.iceberg import Iceberg
from slackwater.spark_sink.tables.table_format import TableFormat
from slackwater.timestamp import datetime_to_us
from tests.epoch_rows import START, Record, on_disk
from tests.merge_epochs import (
    COLUMNS,
    FOLDER,
    KEY,
    Change,
    one,
    operations,
    publish,
    record,
    value,
)
from tests.mirrors import current, iceberg_table
from tests.typed_values import VALUES

# Not names that a plain SQL statement may have.
NAMES = ("select", 'a"quoted"', "With.Dot", "Ünï`code", "s.A")
TIMES = (None, "2026-01-31T09:00:00.000001001Z", "2026-01-31T09:00:00.000001002Z")
CAPTURES = ("OLD_AND_NEW_VALUES", "NEW_ROW")


class DeltaBySpark(Delta):
    """Delta tables into which only Spark merges."""

    def merges_rows(self, *_: Any) -> bool:
        return False


class IcebergBySpark(Iceberg):
    """Iceberg tables into which only Spark merges."""

    def merges_rows(self, *_: Any) -> bool:
        return False


BY_SPARK: Mapping[type[TableFormat], type[TableFormat]] = {
    Delta: DeltaBySpark,
    Iceberg: IcebergBySpark,
    DeltaByDriver: DeltaBySpark,
}
both_formats = pytest.mark.parametrize(
    "format_class",
    [Delta, Iceberg, pytest.param(DeltaByDriver, marks=pytest.mark.long)],
    ids=["delta", "iceberg", "driver"],
)


def by_driver(format_class: type[TableFormat]) -> TableFormat:
    return format_class.from_settings(None)


def by_spark(format_class: type[TableFormat]) -> TableFormat:
    return BY_SPARK[format_class].from_settings(None)


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
def test_random_epochs_leave_the_rows_that_spark_leaves(
    session: SparkSession, tmp_path: Path, format_class: type[TableFormat], *, keeps_deleted: bool
) -> None:
    columns = {**KEY, **dict.fromkeys(NAMES, "STRING")}
    rows = GoneRows(are_kept=keeps_deleted)
    ways = {"driver": by_driver(format_class), "spark": by_spark(format_class)}
    sinks = {
        way: Mirrors(on_disk(tmp_path / way), "orders", table_format, gone_rows=rows)
        for way, table_format in ways.items()
    }
    at = 0
    for epoch, changes in enumerate(random_epochs(seed=7)):
        records = [record(at + place, change, columns) for place, change in enumerate(changes)]
        at += len(records)
        for sink in sinks.values():
            publish(session, sink, epoch, records)
        looks = [current(tmp_path / way / FOLDER).rows for way in sinks]
        of_driver, of_spark = (sorted(map(repr, look)) for look in looks)
        assert of_driver == of_spark, epoch
        assert of_driver
    for way in sinks:
        by = "driver" if format_class is Iceberg else way
        assert operations(tmp_path / way / FOLDER) == [by] * 4


@both_formats
def test_values_of_all_types_are_those_that_spark_writes(
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
    for way in (by_driver(format_class), by_spark(format_class)):
        path = tmp_path / type(way).__name__
        sink = Mirrors(on_disk(path), "orders", way)
        publish(session, sink, 1, _named(inserts))
        first = sorted(map(repr, current(path / FOLDER).rows))
        publish(session, sink, 2, _named(swapped))
        looks.append((first, sorted(map(repr, current(path / FOLDER).rows))))
    assert looks[0] == looks[1]
    assert looks[0][0] != looks[0][1]
    assert operations(tmp_path / format_class.__name__ / FOLDER) == ["driver"] * 2


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
        return iceberg_table(path).properties
    return DeltaTable(path).metadata().configuration


TAKEN_OVER = "at the same time|taken the pipeline over"


def before_merge(monkeypatch: pytest.MonkeyPatch, interlude: Callable[[], None]) -> None:
    """Do something between reading a table and committing to it, once."""
    steps: tuple[tuple[Any, str], ...] = ((TableMerger, "execute"), (Rewrite, "commit"))
    for owner, name in steps:
        step = getattr(owner, name)

        def late(*args: Any, owner: Any = owner, name: str = name, step: Any = step) -> Any:
            monkeypatch.setattr(owner, name, step)
            interlude()
            return step(*args)

        monkeypatch.setattr(owner, name, late)


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
    former = Mirrors(on_disk(tmp_path), "orders", by_driver(format_class))
    publish(session, former, 1, one(1, "one"))
    delete: Change = ("DELETE", {"Id": "1"}, {}, "NEW_ROW")
    epoch = _nothing(3) if kind != "delete" else [record(3, delete, COLUMNS, "T")]

    def succeed() -> None:
        successor = Mirrors(on_disk(tmp_path), "orders", by_driver(format_class))
        successor.position(session.newSession())
        publish(session.newSession(), successor, 3, epoch)

    before_merge(monkeypatch, succeed)
    with pytest.raises(PublishError, match=TAKEN_OVER):
        publish(session, former, 2, one(2, "former"))
    expected = [] if kind == "delete" else ["one"]
    assert [row["A"] for row in current(tmp_path / "T").rows] == expected
    # Nor if it wakes before it has loaded the table.
    with suppress(PublishError):
        publish(session, former, 2, one(2, "former"))
    assert [row["A"] for row in current(tmp_path / "T").rows] == expected


@both_formats
def test_a_former_owner_that_has_read_the_table_merges_nothing(
    session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format_class: type[TableFormat],
) -> None:
    former = Mirrors(on_disk(tmp_path), "orders", by_driver(format_class))
    publish(session, former, 1, one(1, "one"))
    late = former
    if format_class is Delta:
        # In Iceberg it would be the owner.
        late = Mirrors(on_disk(tmp_path), "orders", by_driver(format_class))
        late.position(session)

    def succeed() -> None:
        successor = Mirrors(on_disk(tmp_path), "orders", by_driver(format_class))
        successor.position(session.newSession())
        publish(session.newSession(), successor, 2, one(2, "two"))
        publish(session.newSession(), successor, 3, one(3, "three"))

    before_merge(monkeypatch, succeed)
    with pytest.raises(PublishError, match=TAKEN_OVER):
        publish(session, former, 2, one(2, "former"))
    assert value(tmp_path) == "three"
    # Woken before it has loaded the table, it has nothing to do, or is refused.
    with suppress(PublishError):
        publish(session, late, 2, one(2, "former"))
    assert value(tmp_path) == "three"
    assert properties(tmp_path / "T")["slackwater.low_watermark"] == "2026-01-31T09:00:03.000000Z"


@both_formats
def test_files_that_were_compacted_meanwhile_send_the_epoch_round_again(
    session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format_class: type[TableFormat],
) -> None:
    sink = Mirrors(on_disk(tmp_path), "orders", by_driver(format_class))
    publish(session, sink, 1, one(1, "one"))
    keys = [("INSERT", {"Id": str(key)}, {"A": "other"}, "NEW_ROW") for key in (2, 3)]
    for epoch, change in enumerate(keys, 2):
        publish(session, sink, epoch, [record(epoch, change, COLUMNS, "T")])
    table = by_driver(format_class)

    def compact() -> None:
        table.maintain(session, str(tmp_path / "T"), "slackwater orders", None)

    before_merge(monkeypatch, compact)
    # Into Iceberg it is merged once more at once: others' commits are common in a catalog.
    conflict = pytest.raises(PublishError, match="at the same time")
    with conflict if isinstance(table, Delta) else nullcontext():
        publish(session, sink, 4, one(4, "four"))
    publish(session, sink, 4, one(4, "four"))
    assert sorted(row["A"] for row in current(tmp_path / "T").rows) == ["four", "other", "other"]


@pytest.mark.long
def test_many_epochs_leave_checkpoints_and_a_table_that_spark_goes_on_with(
    session: SparkSession, tmp_path: Path
) -> None:
    sink = Mirrors(on_disk(tmp_path), "orders", Delta())
    for epoch in range(1, 36):
        publish(session, sink, epoch, one(epoch, f"e{epoch}"))
    log = tmp_path / "T" / "_delta_log"
    assert len(list(log.glob("*.checkpoint.parquet"))) == 2
    by_spark = Mirrors(on_disk(tmp_path), "orders", DeltaBySpark())
    assert by_spark.position(session).complete == START + timedelta(seconds=35)
    publish(session, by_spark, 35, one(35, "again"))
    assert value(tmp_path) == "e35"
    publish(session, by_spark, 36, one(36, "by Spark"))
    publish(session, sink, 36, one(36, "again"))
    assert value(tmp_path) == "by Spark"
    publish(session, sink, 37, one(37, "e37"))
    rows = session.read.format("delta").load(str(tmp_path / "T")).collect()
    assert [row["A"] for row in rows] == ["e37"]


def test_a_commit_that_was_made_before_its_failure_is_not_made_again(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver may be told that a commit failed which is there."""
    sink = Mirrors(on_disk(tmp_path), "orders", Delta())
    publish(session, sink, 1, one(1, "one"))
    execute = TableMerger.execute

    def failing(merger: TableMerger) -> Any:
        execute(merger)
        raise OSError("no answer")

    monkeypatch.setattr(TableMerger, "execute", failing)
    publish(session, sink, 2, one(2, "two"))
    assert value(tmp_path) == "two"
    assert operations(tmp_path / "T") == ["driver", "driver"]


def test_a_table_with_another_pipelines_transactions_is_merged_into(
    session: SparkSession, tmp_path: Path
) -> None:
    sink = Mirrors(on_disk(tmp_path), "orders", Delta())
    publish(session, sink, 1, one(1, "one"))
    later = Transaction(application_of("other"), datetime_to_us(START + timedelta(days=1)))
    DeltaTable(tmp_path / "T").alter.set_table_properties(
        {"a": "b"},
        raise_if_not_exists=False,
        commit_properties=CommitProperties(app_transactions=[later]),
    )
    publish(session, sink, 2, one(2, "two"))
    assert value(tmp_path) == "two"


def test_spark_takes_over_a_table_with_a_feature_that_others_do_not_know(
    session: SparkSession, tmp_path: Path
) -> None:
    sink = Mirrors(on_disk(tmp_path), "orders", Delta())
    publish(session, sink, 1, one(1, "one"))
    widening = "'delta.enableTypeWidening' = 'true'"
    session.sql(f"ALTER TABLE delta.`{tmp_path}/T` SET TBLPROPERTIES ({widening})")
    publish(session, sink, 2, one(2, "two"))
    rows = session.read.format("delta").load(str(tmp_path / "T")).collect()
    assert [row["A"] for row in rows] == ["two"]
    assert operations(tmp_path / "T") == ["driver", "spark"]


@both_formats
def test_a_query_for_large_numbers_finds_the_rows_that_are_not_numbers(
    session: SparkSession, tmp_path: Path, format_class: type[TableFormat]
) -> None:
    """For Spark NaN is larger than all others, and it skips files by their statistics."""
    columns = {"Id": "INT64", "D": "FLOAT64"}
    sink = Mirrors(on_disk(tmp_path), "orders", by_driver(format_class))
    inserts = [("INSERT", {"Id": str(n)}, {"D": d}, "NEW_ROW") for n, d in ((1, "NaN"), (2, 0.5))]
    publish(session, sink, 1, [record(1, change, columns, "T") for change in inserts])
    assert operations(tmp_path / "T") == ["driver"]
    name = by_driver(format_class).name(session, str(tmp_path / "T"))
    assert [row["Id"] for row in session.table(name).where("D > 1").collect()] == [1]
