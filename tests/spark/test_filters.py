"""A filter keeps the same records whether Spark or Python applies it, and loses no count."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from reader.change_stream import Dialect
from reader.connection import Connection
from reader.timestamp import format_rfc3339
from slackwater.demo.load import Load
from slackwater.demo.service import Service
from spark_sink.filters import Filter, ModType
from tests.emulators import NewDatabase
from tests.epochs import EpochLoop
from tests.spark.sessions import spark as spark
from tests.spark.test_exactly_once import settings

TABLES = (
    "Orders",
    "orders",
    "sales.Orders",
    "sales_Orders",
    "Or\nders",
    "Orders2",
    "Großkunden",
    "",
)
TAGS = ("", "batch", "app=a,job=b", "batch\nnight", "(x|y)", "a.b")
FILTERS = [
    Filter(),
    Filter(tables=("Orders",)),
    Filter(tables=("sales.*", "Or?ers*")),
    Filter(tables=("*ß*",)),
    Filter(tables=("sales.Orders|Orders",)),
    Filter(exclude_tables=("*Orders", "")),
    Filter(tables=("*s*",), exclude_tables=("sales.*",)),
    Filter(mod_types=(ModType.INSERT, ModType.DELETE)),
    Filter(transaction_tags=("batch*", "(x|y)")),
    Filter(exclude_transaction_tags=("a?b", "")),
    Filter(system_transactions=False),
    Filter(("*",), (), (ModType.UPDATE,), ("*a*",), ("batch",), system_transactions=False),
]


def test_spark_and_python_keep_the_same(spark: SparkSession) -> None:
    names = ("table_name", "mod_type", "transaction_tag", "is_system_transaction")
    rows = [
        dict(zip(names, row, strict=True))
        for row in itertools.product(TABLES, [str(m) for m in ModType], TAGS, (True, False))
    ]
    frame = spark.createDataFrame([tuple(row.values()) for row in rows], list(names))
    kept_of = []
    for given in FILTERS:
        found = [row.asDict() for row in frame.where(given.condition()).collect()]
        kept = [row for row in rows if given.keeps(row)]
        assert sorted(found, key=repr) == sorted(kept, key=repr), given
        kept_of.append(len(kept))
    assert kept_of[0] == len(rows)
    # A glob has no alternatives.
    assert kept_of[4] == 0
    assert all(0 < count < len(rows) for count in kept_of[1:4] + kept_of[5:])


def test_a_pipeline_writes_what_its_filter_keeps_and_audits_all(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database()
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=4).run(transactions_per_second=20, seconds=3)
    end_ns = connection.strong_read_timestamp_ns()
    given = settings(stream, tmp_path, format_rfc3339(start_ns))
    given["source"]["end"] = format_rfc3339(end_ns)
    given["filter"] = {"exclude_tables": ["Cust*"], "mod_types": ["INSERT", "UPDATE"]}
    service = Service(given, tmp_path, os.environ)
    service.start()
    assert service.wait(120) == 0, service.log.read_text()[-2_000:]
    found = ds.dataset(tmp_path / "changes", format="parquet", partitioning="hive").to_table()
    loop = EpochLoop(stream, f"sqlite:///{tmp_path / 'other.db'}", start_ns=start_ns)
    everything = pa.concat_tables(loop.epochs(end_ns)).to_pylist()
    loop.close()
    others = [row for row in everything if row["table_name"] != "Customers"]
    kept = [row for row in others if row["mod_type"] != "DELETE"]
    assert sorted(map(place, found.to_pylist())) == sorted(map(place, kept))
    assert 0 < len(kept) < len(others) < len(everything)
    assert {row["mod_type"] for row in everything} == {"INSERT", "UPDATE", "DELETE"}


def place(row: dict[str, Any]) -> tuple[str, str]:
    return row["server_transaction_id"], row["record_sequence"]
