"""Epochs made by hand: rows of the output's contract, and the sinks that take them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from slackwater.reader.schema import ddl
from slackwater.spark_sink.envelopes.message import Origin
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.sink import Sink
from slackwater.spark_sink.sinks.registry import parse_sink_settings

START = datetime(2026, 1, 31, 9, tzinfo=UTC)
PIPELINE = "orders"
Record = tuple[Any, ...]
Mods = Sequence[tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]]


def record(
    mod_type: str,
    mods: Mods,
    columns: Mapping[str, str],
    *,
    at: int,
    table: str = "sales.Orders",
    capture: str = "OLD_AND_NEW_VALUES",
) -> Record:
    """Return a row of the output's contract; the key is Id.

    Args:
        mod_type, table, capture: as in the record.
        mods: keys, new values and old values of each.
        columns: type codes by name.
        at: the commit timestamp, in microseconds after START.
    """
    types = [
        (name, json.dumps({"code": kind}), name == "Id", place)
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


def make_sink(path: Path | str, **settings: Any) -> Sink:
    """Return a new sink, as a process makes it from its settings."""
    parsed = parse_sink_settings(
        {"path": str(path), "checkpoint": f"{path}-checkpoint", **settings}
    )
    origin = Origin(PIPELINE, "p", "i", "d", "Stream")
    made: Sink = parsed.make_sink(origin, RecordFilter())
    return made


def low_watermark(epoch: int) -> datetime:
    """Return the low watermark of an epoch made by hand."""
    return START + timedelta(seconds=epoch)


def write(spark: SparkSession, sink: Sink, epoch: int, *records: Record) -> None:
    """Stage and publish an epoch."""
    summary = sink.stage(spark.createDataFrame(list(records), ddl()), epoch)
    sink.publish(spark, epoch, summary, low_watermark(epoch))
