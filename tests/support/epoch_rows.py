"""Epochs made by hand: rows of the output's contract, and the sinks that take them."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from slackwater.reader.schema import SCHEMA, ddl
from slackwater.spark_sink.envelopes.envelope import Origin
from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.output.disk_place import Disk
from slackwater.spark_sink.output.staged_file import IN_MEMORY_MAX
from slackwater.spark_sink.sink import Sink
from slackwater.spark_sink.sinks.registry import parse_sink_settings

START = datetime(2026, 1, 31, 9, tzinfo=UTC)
PIPELINE = "orders"
Record = tuple[Any, ...]
# Up to this size Spark makes a frame of the rows themselves, and computes with them as it plans.
_AS_ROWS_MAX = "spark.sql.execution.arrow.localRelationThreshold"
Mods = Sequence[tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]]


def record(
    mod_type: str,
    mods: Mods,
    columns: Mapping[str, str],
    *,
    at: int,
    table: str = "sales.Orders",
    capture: str = "OLD_AND_NEW_VALUES",
    key: str = "Id",
) -> Record:
    """Return a row of the output's contract.

    Args:
        mod_type, table, capture: as in the record.
        key: the name of the key's column.
        mods: keys, new values and old values of each.
        columns: type codes by name.
        at: the commit timestamp, in microseconds after START.
    """
    types = [
        (name, json.dumps({"code": kind}), name == key, place)
        for place, (name, kind) in enumerate(columns.items(), 1)
    ]
    moment = START + timedelta(microseconds=at)
    texts = [tuple(map(json.dumps, mod)) for mod in mods]
    of_transaction = (mod_type, capture, 1, 1, "tag", False, "partition", START)
    return (moment, f"t{at}", "00000000", True, table, types, texts, *of_transaction)


def inserts(*ids: int, at: int, table: str = "sales.Orders") -> Record:
    """Return a record that inserts rows with these ids, one mod each."""
    mods: Mods = [({"Id": str(number)}, {"Name": f"n{number}"}, {}) for number in ids]
    return record("INSERT", mods, {"Id": "INT64", "Name": "STRING"}, at=at, table=table)


def of_two_tables(epoch: int) -> list[Record]:
    """Return records of several mods, of two tables."""
    return [
        inserts(2 * epoch, 2 * epoch + 1, at=epoch, table="sales.Orders"),
        inserts(epoch, at=epoch, table="Keys"),
    ]


def large_records() -> list[Record]:
    """Return four records, each larger than a file that a task hands to the driver."""
    text = "".join(f"{number:x}" for number in range(IN_MEMORY_MAX))
    mods: Mods = [({"Id": "1"}, {"Name": text}, {})]
    columns = {"Id": "INT64", "Name": "STRING"}
    return [record("INSERT", mods, columns, at=1, table=f"T{number}") for number in range(4)]


def make_sink(path: Path | str, **settings: Any) -> Sink:
    """Return a new sink, as a process makes it from its settings."""
    parsed = parse_sink_settings(
        {"path": str(path), "checkpoint": f"{path}-checkpoint", **settings}
    )
    origin = Origin(PIPELINE, "p", "i", "d", "Stream")
    made: Sink = parsed.make_sink(origin, RecordFilter())
    return made


def on_disk(path: Path | str) -> Disk:
    """Return a folder as the place of a sink."""
    return Disk(Path(path), str(path))


def low_watermark(epoch: int) -> datetime:
    """Return the low watermark of an epoch made by hand."""
    return START + timedelta(seconds=epoch)


def frame(spark: SparkSession, records: Sequence[Record]) -> DataFrame:
    """Return records as an epoch has them, in two partitions.

    In Arrow, as they come from tasks: tuples would go through Python workers whenever Spark reads
    them, which took as long as what the tests are about.
    """
    if not records:
        return spark.createDataFrame([], ddl())
    middle = len(records) // 2
    table = pa.concat_tables(map(table_of, filter(None, (records[:middle], records[middle:]))))
    spark.conf.set(_AS_ROWS_MAX, "0")
    try:
        return spark.createDataFrame(table)
    finally:
        spark.conf.unset(_AS_ROWS_MAX)


def table_of(records: Sequence[Record]) -> pa.Table:
    """Return records in Arrow, of the contract's columns."""
    columns = zip(zip(*records, strict=True), SCHEMA, strict=True)
    return pa.Table.from_arrays(
        [pa.array(values, field.type) for values, field in columns], schema=SCHEMA
    )


def write(spark: SparkSession, sink: Sink, epoch: int, *records: Record) -> None:
    """Stage and publish an epoch."""
    summary = sink.stage(frame(spark, records), epoch)
    sink.publish(spark, epoch, summary, low_watermark(epoch))


def require_one_owner(
    spark: SparkSession, former: Sink, successor: Sink, refusal: str | None = None
) -> None:
    """Require that epochs 1 to 3, of two records each, are written once, the last two together.

    Args:
        spark: the session.
        former, successor: sinks of one new output; the second takes over after epoch 1.
        refusal: what the former one is told when it writes after that.
    """
    former.position(spark)
    write(spark, former, 1, *of_two_tables(1))
    assert former.position(spark).complete == low_watermark(1)  # type: ignore[union-attr]
    # A replay, as after a crash before Spark's commit.
    write(spark, former, 1, *of_two_tables(1))
    assert successor.position(spark).complete == low_watermark(1)  # type: ignore[union-attr]
    with pytest.raises(PublishError, match=refusal):
        write(spark, former, 2, *of_two_tables(2))
    write(spark, successor, 3, *of_two_tables(2), *of_two_tables(3))
