"""Wire to Arrow: records per CPU second of the reading process, compared with the plain client.

All read the same records from a synthetic server, which is a process of its own: our reader in all
columns of the output's contract and audited, google-cloud-spanner in the loop that Spanner's
documents suggest, and spanner-change-streams-tail as JSON to nowhere, where its path is given.

    python -m bench.reading [--rounds 3] [--go PATH] [--json FILE]
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from google.cloud.spanner_v1 import param_types
from google.cloud.spanner_v1.types import ChangeStreamRecord

from bench.patterns import START_US, pattern_script
from bench.service import synthetic_stream
from slackwater.reader.change_stream import ChangeStream, Dialect, PartitionMode
from slackwater.reader.decode.arrow import to_record_batch
from slackwater.reader.query.batch_decoder import BatchDecoder, Owners
from slackwater.reader.query.partition_query import PartitionQuery
from slackwater.reader.transport.connection import Connection
from slackwater.reader.transport.receive_loop import receive_loop
from slackwater.scheduler.audit import PartialTransactions, PartitionAudit, task_counts
from slackwater.scheduler.epoch import cut_of, watermark_for_end
from slackwater.scheduler.tasks.cut_filter import CutFilter
from slackwater.state.models import Plan
from slackwater.testing.emulator_database import database_of
from slackwater.timestamp import format_rfc3339
from tests.synthetic.script import Script
from tests.synthetic.server import CHANGE_STREAM, synthetic_process

GO_VERSION: Final = "0.4.2"


@dataclass(frozen=True, slots=True)
class Case:
    """A case to read; each record has one mod and about 600 bytes on the wire.

    With mutable key ranges these hold a ChangeStreamRecord in base64.
    """

    name: str
    dialect: Dialect
    partitions: int
    records: int
    rows_per_message: int
    mode: PartitionMode = PartitionMode.IMMUTABLE_KEY_RANGE

    @property
    def is_mutable(self) -> bool:
        """True with mutable key ranges."""
        return self.mode is PartitionMode.MUTABLE_KEY_RANGE

    def script(self) -> Script:
        """Return its change stream, with all records in the past and no partition's end."""
        return pattern_script(
            self.dialect, self.mode, self.partitions, self.records, 10, self.rows_per_message
        )

    @property
    def end_ns(self) -> int:
        """The time after the last record."""
        return watermark_for_end((START_US + 10 * self.records) * 1_000)


_MUTABLE: Final = PartitionMode.MUTABLE_KEY_RANGE
CASES: Final = (
    Case("one row a message", Dialect.GOOGLE_STANDARD_SQL, 1, 60_000, 1),
    Case("20 rows a message", Dialect.GOOGLE_STANDARD_SQL, 1, 200_000, 20),
    Case("16 partitions, one row", Dialect.GOOGLE_STANDARD_SQL, 16, 64_000, 1),
    Case("16 partitions, 20 rows", Dialect.GOOGLE_STANDARD_SQL, 16, 192_000, 20),
    Case("PostgreSQL, one row", Dialect.POSTGRESQL, 1, 60_000, 1),
    Case("PostgreSQL, 20 rows", Dialect.POSTGRESQL, 1, 200_000, 20),
    Case("mutable key ranges, one row", Dialect.GOOGLE_STANDARD_SQL, 1, 60_000, 1, _MUTABLE),
    Case("mutable key ranges, 20 rows", Dialect.GOOGLE_STANDARD_SQL, 1, 200_000, 20, _MUTABLE),
)
Reader = Callable[[Case, ChangeStream], int]
_ChangeRecordPb: Any = ChangeStreamRecord.pb(ChangeStreamRecord()).__class__


def ours(case: Case, stream: ChangeStream) -> int:
    """Read with our reader as a Spark task does, and return the number of rows."""
    plan = Plan("plan", "bench", START_US * 1_000 - 500, case.end_ns)
    partial_transactions = PartialTransactions()
    connection = Connection(stream)
    rows = 0

    def deliver(batch: pa.RecordBatch, owners: Owners) -> None:
        nonlocal rows
        rows += to_record_batch(batch, owners, low_watermark_ns=plan.end_ns).num_rows

    decoder = BatchDecoder(deliver)

    def read(number: int) -> PartitionAudit:
        token = f"p{number}"
        query = PartitionQuery(
            connection,
            case.dialect,
            partition_token=token,
            start_timestamp_ns=START_US * 1_000,
            end_timestamp_ns=plan.end_ns,
            heartbeat_ms=10_000,
            mode=case.mode,
        )
        audit = PartitionAudit(token, cut_of(plan), partial_transactions)
        query.run(decoder, CutFilter(token, cut_of(plan), audit))
        decoder.when_decoded(audit.end)
        return audit

    audits: list[PartitionAudit] = []
    with receive_loop(case.partitions) as loop:
        for number in range(case.partitions):
            loop.submit(lambda of: audits.append(read(of)), number)
    decoder.flush()
    decoder.deliver_remaining()
    counted = task_counts(audits, partial_transactions)
    connection.close()
    assert counted.records == rows, "the audit counted other records"
    assert not counted.violations, counted.violations
    return rows


def client(case: Case, stream: ChangeStream) -> int:
    """Read with the loop that Spanner's documentation suggests."""
    database = database_of(stream)
    is_postgresql = case.dialect is Dialect.POSTGRESQL
    sql = (
        f'SELECT * FROM "spanner"."read_json_{CHANGE_STREAM}"($1, $2, $3, $4, null)'
        if is_postgresql
        else f"SELECT ChangeRecord FROM READ_{CHANGE_STREAM}(start_timestamp => @p1,"
        " end_timestamp => @p2, partition_token => @p3, heartbeat_milliseconds => @p4)"
    )
    kinds = (param_types.TIMESTAMP,) * 2 + (param_types.STRING, param_types.INT64)
    names = ("p1", "p2", "p3", "p4")

    def read(number: int) -> int:
        cut = (format_rfc3339(START_US * 1_000), format_rfc3339(case.end_ns))
        values = (*cut, f"p{number}", 10_000)
        count = 0
        with database.snapshot() as snapshot:
            for row in snapshot.execute_sql(
                sql,
                params=dict(zip(names, values, strict=True)),
                param_types=dict(zip(names, kinds, strict=True)),
            ):
                if case.is_mutable:
                    # The cheapest form of a message that has its fields.
                    count += _ChangeRecordPb.FromString(row[0]).HasField("data_change_record")
                elif is_postgresql:
                    count += "data_change_record" in row[0]
                else:
                    count += sum(len(change[0]) for change in row[0])
        return count

    with ThreadPoolExecutor(case.partitions) as pool:
        return sum(pool.map(read, range(case.partitions)))


def go_command(path: str, stream: ChangeStream, start_ns: int) -> list[str]:
    """Return the command by which spanner-change-streams-tail writes JSON from a time on."""
    return [
        path, "-p", stream.project, "-i", stream.instance, "-d", stream.database,
        "-s", stream.change_stream, "-f", "json", "--start", format_rfc3339(start_ns),
    ]  # fmt: skip


def go(path: str, case: Case, stream: ChangeStream) -> float:
    """Return the CPU seconds of spanner-change-streams-tail for the same records."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [*go_command(path, stream, START_US * 1_000), "--end", format_rfc3339(case.end_ns)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    records = done.stdout.count(b'"commit_timestamp"')
    if records != case.records:
        raise SystemExit(f"spanner-change-streams-tail wrote {records} of {case.records} records")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def cpu_seconds(reader: Reader, case: Case, stream: ChangeStream) -> float:
    """Return the CPU seconds of this process for a reader."""
    before = time.process_time()
    records = reader(case, stream)
    spent = time.process_time() - before
    if records != case.records:
        raise SystemExit(f"{reader.__name__} read {records} of {case.records} records")
    return spent


def measure(case: Case, rounds: int, go_path: str | None) -> dict[str, Any]:
    """Measure the CPU seconds of each round, all sides in turn; return medians and ratios."""
    by_side: dict[str, list[float]] = {}
    with synthetic_process(case.script()) as host:
        os.environ["SPANNER_EMULATOR_HOST"] = host
        stream = synthetic_stream(host)
        for _ in range(rounds):
            by_side.setdefault("ours", []).append(cpu_seconds(ours, case, stream))
            by_side.setdefault("client", []).append(cpu_seconds(client, case, stream))
            if go_path and case.dialect is Dialect.GOOGLE_STANDARD_SQL:
                by_side.setdefault("go", []).append(go(go_path, case, stream))
        del os.environ["SPANNER_EMULATOR_HOST"]
    result: dict[str, Any] = {"case": case.name, "records": case.records}
    for side, seconds in by_side.items():
        result[f"{side}_records_per_cpu_second"] = round(case.records / statistics.median(seconds))
        if side != "ours":
            ratios = [s / o for s, o in zip(seconds, by_side["ours"], strict=True)]
            result[f"ours_to_{side}"] = round(statistics.median(ratios), 1)
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--go", help=f"path of spanner-change-streams-tail {GO_VERSION}")
    parser.add_argument("--case", type=int, help="one of them only, counted from 0")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cases = CASES if options.case is None else CASES[options.case : options.case + 1]
    results = []
    for case in cases:
        results.append(measure(case, options.rounds, options.go))
        print(" | ".join(f"{name}: {value}" for name, value in results[-1].items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
