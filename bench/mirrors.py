"""What an epoch that changes many mirrors takes, and one that changes a few rows of a large one.

Each epoch is written twice, by turns: as the pipeline writes it, and folded by Spark, as one is
that is too large for the driver. Counted is what the sink does: staging an epoch and publishing
it, without reading it from Spanner. In PostgreSQL the second way is a loop of psycopg's with a
statement a row, as connectors have it that know no epoch.

    python -m bench.mirrors [--format delta] [--tables 100] [--rows 50] [--epochs 3]
        [--large 10000000] [--json FILE]
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
from pyspark.sql import DataFrame, SparkSession

from bench.figures import tell
from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import start_spark, stop_spark
from slackwater.spark_sink.output.application import application_of
from slackwater.spark_sink.sinks.mirrors import Mirrors
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.iceberg import Iceberg
from slackwater.spark_sink.tables.in_postgresql.database import Database
from slackwater.spark_sink.tables.postgresql import Postgresql
from slackwater.spark_sink.tables.table_format import TableFormat
from tests.support.epoch_rows import START, Record, frame, on_disk, record
from tests.support.merge_epochs import FoldedBySpark
from tests.support.postgres import running_server
from tests.support.read_tables import sql_name

COLUMNS: Final = {"Id": "INT64", "Name": "STRING", "Price": "FLOAT64", "At": "TIMESTAMP"}
LARGE_TABLE: Final = "Large"
_CHANGED_OF_LARGE: Final = 1_000
# Coprime to all sizes here: changed keys are spread over the table.
_STRIDE: Final = 7_919
_FORMATS: Final[Mapping[str, type[TableFormat]]] = {"delta": Delta, "iceberg": Iceberg}
POSTGRESQL: Final = "postgresql"
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


class InPostgresql(Way):
    """Mirrors in a database, as the pipeline writes them."""

    def __init__(self, session: SparkSession, path: Path, url: str) -> None:
        self._session = session
        self._path = path
        self._database = Database(url, "bench")
        self._sink = Mirrors(
            on_disk(path), "bench", Postgresql(url, on_disk(path), application_of("bench"))
        )
        self._sink.position(session)
        self._epoch = 0

    def fill(self, rows: int) -> None:
        """Give the large mirror so many rows, in the order of their keys."""
        self._database.run(
            f"INSERT INTO \"{LARGE_TABLE}\" SELECT n, 'name ' || n, n, to_timestamp(n)"
            f" FROM generate_series(1, {rows - 1}) AS n"
        )

    def bytes_written(self) -> Mapping[Path, int]:
        """Return nothing: the server has the files."""
        return {}


class RowByRow(Way):
    """The same rows by a statement each, in one transaction an epoch."""

    def __init__(self, url: str, tables: Sequence[str]) -> None:
        self._connection = psycopg.connect(url)
        for table in tables:
            self._connection.execute(
                f'CREATE TABLE "rows {table}" ("Id" bigint PRIMARY KEY, "Name" text,'
                ' "Price" double precision, "At" timestamptz)'
            )

    def write(self, changes: DataFrame) -> float:
        """Write an epoch, and return how many seconds it took."""
        rows = changes.collect()
        begun = time.monotonic()
        with self._connection.transaction(), self._connection.cursor() as cursor:
            for row in rows:
                [mod] = row["mods"]
                values = {**json.loads(mod["keys"]), **json.loads(mod["new_values"])}
                names = ", ".join(f'"{name}"' for name in values)
                sets = ", ".join(f'"{name}" = excluded."{name}"' for name in values)
                places = ", ".join("%s" for _ in values)
                cursor.execute(
                    f'INSERT INTO "rows {row["table_name"]}" ({names}) VALUES ({places})'
                    f' ON CONFLICT ("Id") DO UPDATE SET {sets}',
                    list(values.values()),
                )
        return time.monotonic() - begun

    def fill(self, rows: int) -> None:
        """Give the large table so many rows, in the order of their keys."""
        self._connection.execute(
            f"INSERT INTO \"rows {LARGE_TABLE}\" SELECT n, 'name ' || n, n, to_timestamp(n)"
            f" FROM generate_series(1, {rows - 1}) AS n"
        )
        self._connection.commit()

    def bytes_written(self) -> Mapping[Path, int]:
        """Return nothing: the server has the files."""
        return {}


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


@contextmanager
def _ways(
    session: SparkSession, file_format: str, tables: Sequence[str]
) -> Iterator[dict[str, Way]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if file_format == POSTGRESQL:
            url = stack.enter_context(running_server()).replace("+psycopg", "")
            ours = InPostgresql(session, folder / "now", url)
            yield {"now": ours, "row_by_row": RowByRow(url, tables)}
            return
        made = _FORMATS[file_format]
        yield {
            "now": Way(session, folder / "now", made(), Mirrors),
            "spark_folds": Way(session, folder / "folded", made(), FoldedBySpark),
        }


def _session(file_format: str) -> SparkSession:
    find_java()
    return start_spark(["bench"], "local[2]", {}, [f for f in _FORMATS if f == file_format])


def measure_many(file_format: str, tables: int, rows: int, epochs: int) -> dict[str, Any]:
    """Measure epochs that change so many rows of so many tables."""
    names = [f"sales.T{number:03d}" for number in range(tables)]
    spent: dict[str, list[float]] = {}
    session = _session(file_format)
    with _ways(session, file_format, names) as ways:
        for minute in range(_WARM_UP_EPOCHS + epochs):
            changes = frame(session, list(records(names, range(rows), minute)))
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
    session = _session(file_format)
    with _ways(session, file_format, [LARGE_TABLE]) as ways:
        for name, way in ways.items():
            way.write(frame(session, list(records([LARGE_TABLE], [0], 0))))
            way.fill(rows)
            total = sum(way.bytes_written().values())
            for epoch in range(1, epochs + 1):
                keys = [(epoch + n * _STRIDE) * _STRIDE % rows for n in range(_CHANGED_OF_LARGE)]
                changes = frame(session, list(records([LARGE_TABLE], keys, epoch)))
                before = way.bytes_written().keys()
                spent.setdefault(name, []).append(way.write(changes))
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
    parser.add_argument("--format", choices=(*_FORMATS, POSTGRESQL), default="delta")
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
