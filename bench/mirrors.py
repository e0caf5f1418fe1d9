"""What an epoch that changes many mirrors takes, and one that changes a few rows of a large one.

Each epoch is written twice, by turns: as the pipeline writes it, and folded by Spark, as one is
that is too large for the driver. Counted is what the sink does: staging an epoch and publishing
it, without reading it from Spanner.

    python -m bench.mirrors [--format delta] [--tables 100] [--rows 50] [--epochs 3]
        [--large 10000000] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from bench.figures import tell
from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import start_spark, stop_spark
from slackwater.reader.schema import ddl
from slackwater.spark_sink.sinks.mirrors import Mirrors
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.iceberg import Iceberg
from slackwater.spark_sink.tables.table_format import TableFormat
from tests.support.epoch_rows import START, Record, on_disk, record
from tests.support.merge_epochs import FoldedBySpark
from tests.support.read_tables import sql_name

COLUMNS: Final = {"Id": "INT64", "Name": "STRING", "Price": "FLOAT64", "At": "TIMESTAMP"}
LARGE_TABLE: Final = "Large"
_CHANGED_OF_LARGE: Final = 1_000
# Coprime to all sizes here: changed keys are spread over the table.
_STRIDE: Final = 7_919
_FORMATS: Final[Mapping[str, type[TableFormat]]] = {"delta": Delta, "iceberg": Iceberg}
_WARM_UP_EPOCHS: Final = 2


class Way:
    """Mirrors that are written in one of the two ways.

    Args:
        session: with the format's jars.
        path: of the mirrors.
        table_format: theirs.
        sink: writes them.
    """

    def __init__(
        self, session: SparkSession, path: Path, table_format: TableFormat, sink: type[Mirrors]
    ) -> None:
        self._session = session
        self._path = path
        self._format = table_format
        self._sink = sink(on_disk(path), "bench", table_format)
        self._epoch = 0

    def write(self, changes: DataFrame) -> float:
        """Write an epoch, and return how many seconds it took."""
        begun = time.monotonic()
        summary = self._sink.stage(changes, self._epoch)
        low_watermark = START + timedelta(minutes=self._epoch + 1)
        self._sink.publish(self._session, self._epoch, summary, low_watermark)
        self._epoch += 1
        return time.monotonic() - begun

    def fill(self, rows: int) -> None:
        """Give the large mirror so many rows, in the order of their keys."""
        name = sql_name(self._session, self._format, self._path / LARGE_TABLE)
        made = self._session.range(1, rows, numPartitions=8).selectExpr(
            "id AS Id",
            "concat('name ', id) AS Name",
            "CAST(id AS DOUBLE) AS Price",
            "CAST(id AS TIMESTAMP) AS At",
        )
        made.createOrReplaceTempView("made")
        self._session.sql(f"INSERT INTO {name} SELECT * FROM made")

    def bytes_written(self) -> Mapping[Path, int]:
        """Return the sizes of all files of the large mirror, by path."""
        files = (self._path / LARGE_TABLE).rglob("*")
        return {file: file.stat().st_size for file in files if file.is_file()}


def records(tables: Sequence[str], keys: Sequence[int], minute: int) -> Iterator[Record]:
    """Return changes of rows: inserts in the first minute, and then updates of single columns."""
    for table in tables:
        for place, key in enumerate(keys):
            values: dict[str, Any] = {"Name": f"name {key}", "Price": key / 7}
            if minute == 0:
                values["At"] = "2026-01-31T09:00:00Z"
            yield record(
                "INSERT" if minute == 0 else "UPDATE",
                [({"Id": str(key)}, values, {})],
                COLUMNS if minute == 0 else {name: COLUMNS[name] for name in ("Id", *values)},
                at=minute * 60_000_000 + place,
                table=table,
            )


def _ways(session: SparkSession, folder: Path, file_format: str) -> dict[str, Way]:
    made = _FORMATS[file_format]
    return {
        "now": Way(session, folder / "now", made(), Mirrors),
        "spark_folds": Way(session, folder / "folded", made(), FoldedBySpark),
    }


def measure_many(file_format: str, tables: int, rows: int, epochs: int) -> dict[str, Any]:
    """Measure epochs that change so many rows of so many tables."""
    names = [f"sales.T{number:03d}" for number in range(tables)]
    spent: dict[str, list[float]] = {}
    find_java()
    session = start_spark(["bench"], "local[2]", {}, [file_format])
    with tempfile.TemporaryDirectory() as folder:
        ways = _ways(session, Path(folder), file_format)
        for minute in range(_WARM_UP_EPOCHS + epochs):
            changes = session.createDataFrame(list(records(names, range(rows), minute)), ddl())
            for name, way in ways.items():
                seconds = way.write(changes)
                if minute >= _WARM_UP_EPOCHS:
                    spent.setdefault(name, []).append(seconds)
        stop_spark(session)
    return {
        "format": file_format,
        "tables": tables,
        "rows_a_table": rows,
        **{f"seconds_{name}": statistics.median(times) for name, times in spent.items()},
    }


def measure_large(file_format: str, rows: int, epochs: int) -> dict[str, Any]:
    """Measure epochs that change a thousand rows, spread over all of a large table."""
    spent: dict[str, list[float]] = {}
    written: dict[str, list[int]] = {}
    total = 0
    find_java()
    session = start_spark(["bench"], "local[2]", {}, [file_format])
    with tempfile.TemporaryDirectory() as folder:
        for name, way in _ways(session, Path(folder), file_format).items():
            first = session.createDataFrame(list(records([LARGE_TABLE], [0], 0)), ddl())
            way.write(first)
            way.fill(rows)
            total = sum(way.bytes_written().values())
            for epoch in range(1, epochs + 1):
                keys = [(epoch + n * _STRIDE) * _STRIDE % rows for n in range(_CHANGED_OF_LARGE)]
                made = list(records([LARGE_TABLE], keys, epoch))
                before = way.bytes_written().keys()
                spent.setdefault(name, []).append(way.write(session.createDataFrame(made, ddl())))
                after = way.bytes_written()
                new = sum(size for file, size in after.items() if file not in before)
                written.setdefault(name, []).append(new)
        stop_spark(session)
    return {
        "format": file_format,
        "rows": rows,
        "rows_changed": _CHANGED_OF_LARGE,
        "table_bytes": total,
        **{f"seconds_{name}": statistics.median(times) for name, times in spent.items()},
        **{f"bytes_written_{name}": statistics.median(sizes) for name, sizes in written.items()},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", choices=tuple(_FORMATS), default="delta")
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--large", type=int, help="measure a mirror with so many rows instead")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.large:
        tell(measure_large(options.format, options.large, options.epochs), options.json)
    else:
        many = measure_many(options.format, options.tables, options.rows, options.epochs)
        tell(many, options.json)


if __name__ == "__main__":
    main()
