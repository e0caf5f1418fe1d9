"""CPU to read 20,000 single-row records: the Spark source against the plain client's loop.

Both read the same records of one emulator in one run, in turn, over several rounds. The source's
bill holds everything that works on an epoch: the Python workers and Spark's JVM, from the start of
the epoch that holds the records until Spark has every value of them; the query runs on from round
to round, as a service does. The client's bill is its loop alone. The emulator is on nobody's bill.

    python -m bench.read_cpu [--records 20000] [--rounds 3] [--json FILE]
"""

import argparse
import contextlib
import json
import os
import queue
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from google.cloud.spanner_v1 import param_types
from pyspark.sql import DataFrame

from bench.service import processes_of
from slackwater.pipeline.spark.session import start_spark, stop_spark
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.database.change_stream_info import partitions_alive
from slackwater.reader.transport.connection import Connection
from slackwater.testing.emulator_database import database_of
from slackwater.timestamp import format_rfc3339
from tests.support.emulators import own_database

# The JVM compiles what runs often; a service has long been past that.
WARM_UP_ROUNDS = 3
# Partitions that stay, and long chops: or the emulator takes longer than those that read.
EMULATOR = (
    "--enable_change_stream_churning=false",
    "--change_streams_partition_query_chop_interval=5s",
)
DDL = (
    "CREATE TABLE T (Id INT64 NOT NULL, Name STRING(MAX), Balance NUMERIC) PRIMARY KEY (Id)",
    "CREATE CHANGE STREAM S FOR ALL",
)


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants, including ended ones.

    The emulator is left out; what is added up never goes back while the tree's upper part lives.
    """
    total = 0.0
    for process in processes_of(os.getpid()):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() != "emulator_main":
                total += sum(process.cpu_times()[:4])
    return total


def write(stream: ChangeStream, records: int, number: int) -> None:
    """Write each record in its own transaction, so that it is its own data change record."""
    database = database_of(stream)
    for i in range(records):
        with database.batch() as batch:
            batch.insert(
                "T", ("Id", "Name", "Balance"), [[number * records + i, f"name {i}", f"{i}.5"]]
            )


def read_by_client(stream: ChangeStream, start: str, end: str, tokens: list[str]) -> int:
    """Read with the loop that Spanner's documentation suggests."""
    database = database_of(stream)
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


class Epochs:
    """A sink that starts each epoch on request, and counts and times it."""

    def __init__(self) -> None:
        self._go = threading.Semaphore(0)
        self.waiting = threading.Event()
        self.done: queue.Queue[tuple[int, float]] = queue.Queue()

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        del epoch
        self.waiting.set()
        self._go.acquire()
        before = cpu_seconds()
        # The hash of all columns makes Spark take every value.
        rows = batch.selectExpr("xxhash64(*) AS h").groupBy().count().collect()
        self.done.put((rows[0][0], cpu_seconds() - before))

    def let_all_go(self) -> None:
        """Let all further epochs run; a query whose sink waits can't be stopped."""
        self._go.release(1_000_000)

    def next(self) -> tuple[int, float]:
        """Let the waiting epoch run; return its records and the CPU seconds that it took."""
        self.waiting.wait(60)
        self.waiting.clear()
        self._go.release()
        return self.done.get(timeout=60)


def measure(records: int, rounds: int) -> dict[str, Any]:
    """Measure the CPU seconds of each round, both sides in turn."""
    with (
        own_database(
            statements=DDL, change_stream="S", partition_alive_seconds=None, arguments=EMULATOR
        ) as stream,
        tempfile.TemporaryDirectory() as folder,
    ):
        spark = start_spark(["bench"], "local[2,4]", {}, ["parquet"])
        epochs = Epochs()
        query = (
            spark.readStream.format("spanner_changes")
            .options(
                project=stream.project,
                instance=stream.instance,
                database=stream.database,
                change_stream=stream.change_stream,
                endpoint=stream.endpoint.target,
                plaintext=True,
                tasks="2",
            )
            .load()
            .writeStream.foreachBatch(epochs)
            .option("checkpointLocation", folder)
            .start()
        )
        connection = Connection(stream)
        by_side: dict[str, list[float]] = {"client": [], "source": []}
        for number in range(WARM_UP_ROUNDS + rounds):
            spent = one_round(stream, connection, epochs, records, number)
            if number >= WARM_UP_ROUNDS:
                for side, seconds in spent.items():
                    by_side[side].append(seconds)
        epochs.let_all_go()
        query.stop()
        stop_spark(spark)
    ratios = [b / a for a, b in zip(by_side["client"], by_side["source"], strict=True)]
    return {
        "records": records,
        "client_cpu_seconds": by_side["client"],
        "source_cpu_seconds": by_side["source"],
        "source_to_client": statistics.median(ratios),
    }


def one_round(
    stream: ChangeStream, connection: Connection, epochs: Epochs, records: int, number: int
) -> dict[str, float]:
    """Write the records, then let both sides read them."""
    epochs.waiting.wait(60)
    start_ns = connection.strong_read_timestamp_ns()
    write(stream, records, number)
    end_ns = connection.strong_read_timestamp_ns()
    # The waiting epoch was cut before the records were written; the next one holds them.
    got, _ = epochs.next()
    if got == 0:
        got, source = epochs.next()
    if got != records:
        sys.exit(f"the source read {got} records instead of {records}")
    tokens = partitions_alive(
        connection, Dialect.GOOGLE_STANDARD_SQL, start_ns, heartbeat_ms=10_000
    )
    before = time.process_time()
    got = read_by_client(stream, format_rfc3339(start_ns), format_rfc3339(end_ns), tokens)
    client = time.process_time() - before
    if got != records:
        sys.exit(f"the client read {got} records instead of {records}")
    return {"source": source, "client": client}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = measure(options.records, options.rounds)
    for side in ("client", "source"):
        spent = figures[f"{side}_cpu_seconds"]
        print(
            f"{side:7} {statistics.median(spent):6.2f} CPU s for {figures['records']} records"
            f" (from {min(spent):.2f} to {max(spent):.2f})"
        )
    print(f"source / client: {figures['source_to_client']:.2f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
