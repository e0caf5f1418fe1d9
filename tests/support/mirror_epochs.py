"""Epochs of mirrors whose records are made here, and what tests look for in their tables."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from slackwater.commands.as_of import text_of
from slackwater.commands.options import CutFormat
from slackwater.spark_sink.sink import RecreatedTables
from slackwater.spark_sink.sinks.mirrors import Mirrors
from slackwater.spark_sink.tables.cut import Cut
from slackwater.spark_sink.tables.table_format import TableFormat
from tests.support.epoch_rows import frame
from tests.support.read_tables import sql_name

START: Final = datetime(2026, 1, 31, 9, tzinfo=UTC)


class Epochs:
    """Writes epochs into mirrors; the records are as Spanner writes them.

    Args:
        types: the codes of the tables' columns by their names, the key first.

    Attributes:
        table: the table of the changes that are added.
    """

    def __init__(self, spark: SparkSession, sink: Mirrors, types: Mapping[str, str]) -> None:
        self._spark = spark
        self.sink = sink
        self.table = "T"
        self.types = dict(types)
        self._number = 0
        self._rows: list[Any] = []

    @property
    def sink(self) -> Mirrors:
        """The sink, of a process that has taken the mirrors over."""
        return self._sink

    @sink.setter
    def sink(self, sink: Mirrors) -> None:
        sink.position(self._spark)
        self._sink = sink

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
                *(at, transaction, "00000000", True, self.table, types, [mod], mod_type),
                *("OLD_AND_NEW_VALUES", 1, 1, "", False, "p", at),
            )
        )
        return at

    @property
    def now(self) -> datetime:
        """A time in the epoch, after its changes so far."""
        return START + timedelta(seconds=self._number, milliseconds=400)

    @property
    def low_watermark(self) -> datetime:
        """The epoch's low watermark."""
        return START + timedelta(seconds=self._number, milliseconds=500)

    @property
    def last_low_watermark(self) -> datetime:
        """The low watermark of the epoch that was written last."""
        return self.low_watermark - timedelta(seconds=1)

    def records(self) -> DataFrame:
        """Return the records of the epoch's changes so far."""
        return frame(self._spark, self._rows)

    def write(self, recreated: RecreatedTables | None = None, *, times: int = 1) -> None:
        """Write the epoch; twice, as after a failure.

        If it fails, it can be written again.
        """
        epoch = self.records()
        for _ in range(times):
            summary = self.sink.stage(epoch, self._number)
            self.sink.drop_recreated(recreated or RecreatedTables())
            self.sink.publish(self._spark, self._number, summary, self.low_watermark)
        self._rows = []
        self._number += 1


def joined(session: SparkSession, cut: Cut) -> list[tuple[Any, ...]]:
    """Run the statements of `as-of` in a session of their own, and a query over both tables."""
    own = session.newSession()
    for statement in text_of(cut, CutFormat.SQL).split(";"):
        if statement.strip():
            own.sql(statement)
    # Before a change of its type, the column's values are texts.
    query = "SELECT Id, string(T.A), string(U.A) FROM T FULL JOIN U USING (Id) ORDER BY Id"
    return [tuple(row) for row in own.sql(query).collect()]


def forget_history(session: SparkSession, table_format: TableFormat, path: Path) -> None:
    """Remove the data of a table's earlier versions, as housekeeping does."""
    name = sql_name(session, table_format, path)
    if table_format.using == "delta":
        session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        session.sql(f"VACUUM {name} RETAIN 0 HOURS")
        return
    catalog, table = name.split(".", 1)
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    expire = f"table => '{table}', older_than => TIMESTAMP '{now}', retain_last => 1"
    session.sql(f"CALL {catalog}.system.expire_snapshots({expire})")


def remove_commits(path: Path) -> None:
    """Remove a Delta table's commits before its last checkpoint."""
    log = path / "_delta_log"
    checkpoint = max(log.glob("*.checkpoint.parquet")).name.split(".")[0]
    for commit in log.glob("*.json"):
        if commit.stem < checkpoint:
            commit.unlink()


def physical_types(files: Iterable[Path]) -> dict[str, set[tuple[str, str]]]:
    """Return the physical and logical types in Parquet files by the columns' paths."""
    types: dict[str, set[tuple[str, str]]] = {}
    for file in files:
        schema = pq.ParquetFile(file).schema
        for column in (schema.column(number) for number in range(len(schema))):
            logical = str(column.logical_type)
            types.setdefault(column.path, set()).add((column.physical_type, logical))
    return types
