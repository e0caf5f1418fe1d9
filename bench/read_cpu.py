"""CPU to read 20,000 single-row records: the Spark source against the plain client's loop.

Both read the same records of one emulator in one run, in turn, several times. CPU is the user and
system time of all processes of the side that is measured: for the source that is Spark's JVM, the
planner and the Python workers, once they have started; the emulator is on nobody's bill.

    python -m bench.read_cpu [--records 20000] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner
from google.cloud.spanner_v1 import param_types
from pyspark.sql import DataFrame, SparkSession

from reader.change_stream import ChangeStream, Dialect
from reader.connection import Connection
from reader.database import partitions_alive
from reader.timestamp import format_rfc3339
from slackwater.emulator import running_emulator
from slackwater.emulator_database import create_database

DDL = (
    "CREATE TABLE T (Id INT64 NOT NULL, Name STRING(MAX), Balance NUMERIC) PRIMARY KEY (Id)",
    "CREATE CHANGE STREAM S FOR ALL",
)


def cpu_seconds() -> float:
    """Of this process and all below it that live, and of those that ended and were waited for."""
    me = psutil.Process()
    total = 0.0
    for process in [me, *me.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        if process.name() != "emulator_main":
            total += times.user + times.system
    return total


def write(stream: ChangeStream, records: int) -> None:
    """One transaction a record, so that each is a data change record of its own."""
    client = spanner.Client(project=stream.project, credentials=AnonymousCredentials())
    database = client.instance(stream.instance).database(stream.database)
    for i in range(records):
        with database.batch() as batch:
            batch.insert("T", ("Id", "Name", "Balance"), [[i, f"name {i}", f"{i}.5"]])


def read_by_client(stream: ChangeStream, start: str, end: str, tokens: list[str]) -> int:
    """The loop that Spanner's documents suggest."""
    client = spanner.Client(project=stream.project, credentials=AnonymousCredentials())
    database = client.instance(stream.instance).database(stream.database)
    sql = (
        f"SELECT ChangeRecord FROM READ_{stream.change_stream}(start_timestamp => @s,"
        " end_timestamp => @e, partition_token => @t, heartbeat_milliseconds => 10000)"
    )
    kinds = {"s": param_types.TIMESTAMP, "e": param_types.TIMESTAMP, "t": param_types.STRING}
    count = 0
    for token in tokens:
        with database.snapshot() as snapshot:
            values = {"s": start, "e": end, "t": token}
            for row in snapshot.execute_sql(sql, params=values, param_types=kinds):
                count += sum(len(change[0]) for change in row[0])
    return count


def read_by_source(spark: SparkSession, stream: ChangeStream, start: str, end: str) -> int:
    """One epoch of the source, every column of every record taken over by Spark."""
    counts: list[int] = []

    def take(batch: DataFrame, epoch: int) -> None:
        del epoch
        # The hash of all columns makes Spark take every value.
        rows = batch.selectExpr("xxhash64(*) AS h").groupBy().count().collect()
        counts.append(rows[0][0])

    options = {
        "project": stream.project,
        "instance": stream.instance,
        "database": stream.database,
        "change_stream": stream.change_stream,
        "emulator_host": str(stream.emulator_host),
        "start": start,
        "end": end,
        "tasks": "2",
    }
    with tempfile.TemporaryDirectory() as folder:
        query = (
            spark.readStream.format("spanner_changes")
            .options(**options)
            .load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", folder)
            .start()
        )
        query.processAllAvailable()
        query.stop()
    return sum(counts)


def timed(work: Callable[[], int], expected: int) -> float:
    """CPU seconds of work, which has to read as many records as expected."""
    before = cpu_seconds()
    got = work()
    spent = cpu_seconds() - before
    if got != expected:
        sys.exit(f"read {got} records instead of {expected}")
    return spent


def measure(records: int, rounds: int) -> dict[str, Any]:
    """The CPU seconds of each round, both sides in turn."""
    with running_emulator(arguments=["--enable_change_stream_churning=false"]) as emulator:
        os.environ.update(emulator.environment())
        stream = ChangeStream(
            "bench-project", "bench-instance", f"db-{time.time_ns() % 10**9}", "S",
            emulator_host=emulator.host,
        )  # fmt: skip
        create_database(stream, Dialect.GOOGLE_STANDARD_SQL, DDL)
        connection = Connection(stream)
        start_ns = connection.strong_read_timestamp_ns()
        write(stream, records)
        start = format_rfc3339(start_ns)
        end = format_rfc3339(connection.strong_read_timestamp_ns())
        tokens = partitions_alive(
            connection, Dialect.GOOGLE_STANDARD_SQL, start_ns, heartbeat_ms=10_000
        )
        os.environ["PYSPARK_PYTHON"] = sys.executable
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("OFF")
        sides: dict[str, Callable[[], int]] = {
            "client": lambda: read_by_client(stream, start, end, tokens),
            "source": lambda: read_by_source(spark, stream, start, end),
        }
        for side in sides.values():
            timed(side, records)
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, side in sides.items():
                found[name].append(timed(side, records))
        spark.stop()
    ratios = [b / a for a, b in zip(found["client"], found["source"], strict=True)]
    return {
        "records": records,
        "client_cpu_seconds": found["client"],
        "source_cpu_seconds": found["source"],
        "source_to_client": statistics.median(ratios),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = measure(given.records, given.rounds)
    for side in ("client", "source"):
        spent = found[f"{side}_cpu_seconds"]
        print(
            f"{side:7} {statistics.median(spent):6.2f} CPU s for {found['records']} records"
            f" (from {min(spent):.2f} to {max(spent):.2f})"
        )
    print(f"source / client: {found['source_to_client']:.2f}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
