"""What mirrors do with keys, types and tables that don't behave: the sink with real Spark.

The emulator drops fractions of seconds from the values in records, so the records are made here.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import start_spark, stop_spark
from slackwater.reader.schema import ddl
from slackwater.spark_sink.sinks.mirrors import Mirrors
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.iceberg import Iceberg
from slackwater.spark_sink.tables.table_format import TableFormat
from tests.mirrors import current

START = datetime(2026, 1, 31, 9, tzinfo=UTC)
NANOSECONDS = "_At_nanoseconds"
Change = tuple[str, Mapping[str, Any], Mapping[str, Any]]


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    find_java()
    spark = start_spark(["mirrors"], "local[2]", {}, ["delta", "iceberg"])
    yield spark
    stop_spark(spark)


@pytest.fixture(params=[Delta, Iceberg], ids=lambda made: str(made.using))
def table_format(request: pytest.FixtureRequest) -> TableFormat:
    made: TableFormat = request.param()
    return made


class Epochs:
    """Writes epochs of one table `T` into mirrors; its records are as Spanner writes them.

    Args:
        types: the codes of the table's columns by their names, the key first.
    """

    def __init__(self, spark: SparkSession, sink: Mirrors, types: Mapping[str, str]) -> None:
        self._spark = spark
        self._sink = sink
        self.types = dict(types)
        self._number = 0
        self._rows: list[Any] = []

    def change(self, mod_type: str, key: Any, **values: Any) -> datetime:
        """Add a change to the epoch, at its own commit timestamp, which is returned."""
        at = START + timedelta(seconds=self._number, microseconds=len(self._rows))
        name, *_ = self.types
        types = [
            {
                "name": column,
                "type": json.dumps({"code": code}),
                "is_primary_key": column == name,
                "ordinal_position": position,
            }
            for position, (column, code) in enumerate(self.types.items(), 1)
            if column == name or column in values
        ]
        mod = {
            "keys": json.dumps({name: key}),
            "new_values": json.dumps(values),
            "old_values": "{}",
        }
        transaction = f"t{self._number}-{len(self._rows)}"
        self._rows.append(
            (
                *(at, transaction, "00000000", True, "T", types, [mod], mod_type),
                *("OLD_AND_NEW_VALUES", 1, 1, "", False, "p", at),
            )
        )
        return at

    def write(self, *, times: int = 1) -> None:
        """Write the epoch; twice, as after a failure."""
        epoch = self._spark.createDataFrame(self._rows, ddl())
        watermark = START + timedelta(seconds=self._number, milliseconds=500)
        for _ in range(times):
            summary = self._sink.stage(epoch, self._number)
            self._sink.publish(self._spark, self._number, summary, watermark)
        self._rows = []
        self._number += 1


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the mirror's rows in the order of their keys, by readers that are not Spark."""
    return sorted(current(folder / "T").rows, key=lambda row: repr(list(row.values())))


def test_timestamp_keys_that_differ_by_nanoseconds_are_rows_of_their_own(
    session: SparkSession, table_format: TableFormat, tmp_path: Path
) -> None:
    sink = Mirrors(str(tmp_path), "orders", table_format)
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
    sink = Mirrors(str(tmp_path), "orders", table_format)
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
    # Again and again, also by a process that finds the mirror as it is now.
    for number, code in enumerate(("FLOAT64", "INT64")):
        if number:
            sink = Mirrors(str(tmp_path), "orders", table_format)
            epochs._sink = sink
        epochs.types["A"] = code
        epochs.change("UPDATE", "1", A=5 if code == "FLOAT64" else "5")
        epochs.write()
    first, *_ = rows(tmp_path)
    assert (first["A"], first["A_was_double"], first["A_was_bigint"]) == (5, 5.0, None)
    assert set(first) == {"Id", "A", "B", "A_was_string", "A_was_bigint", "A_was_double"}


def test_a_column_that_somebody_altered_is_looked_at_again(
    session: SparkSession, tmp_path: Path
) -> None:
    """A mirror's schema is cached; a pipeline that is resumed must not fail by the cached one."""
    sink = Mirrors(str(tmp_path), "orders", Delta())
    epochs = Epochs(session, sink, {"Id": "INT64", "A": "STRING"})
    epochs.change("INSERT", "1", A="one")
    epochs.write()
    session.sql(f"ALTER TABLE delta.`{tmp_path}/T` ADD COLUMNS (B STRING)")
    epochs.types["B"] = "STRING"
    epochs.change("INSERT", "2", A="two", B="b")
    epochs.write()
    assert [(row["Id"], row["B"]) for row in rows(tmp_path)] == [(1, None), (2, "b")]


def test_a_scanned_timestamp_key_keeps_its_nanoseconds(
    session: SparkSession, tmp_path: Path
) -> None:
    sink = Mirrors(str(tmp_path), "orders", Delta())
    columns = (Column("At", "TIMESTAMP", is_key=True), Column("A", "STRING(MAX)", is_key=False))
    sink.begin_scan(session, {"T": columns})
    epochs = Epochs(session, sink, {"At": "TIMESTAMP", "A": "STRING"})
    for n in (1, 2):
        epochs.change("INSERT", f"2026-01-31T09:00:00.12345600{n}Z", A=f"{n}")
    sink.add_scanned(session.createDataFrame(epochs._rows, ddl()), 0, START)
    sink.end_scan(session, 2, START)
    assert [(row[NANOSECONDS], row["A"]) for row in rows(tmp_path)] == [(1, "1"), (2, "2")]
