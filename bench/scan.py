"""The initial scan: rows per CPU second, compared with a plain client that only reads them.

A table on the emulator is read into durable Parquet by `slackwater run` with source.initial_scan
only; all processes of the service are counted, the start of Spark among them. Because a start takes
as long as hundreds of thousands of rows, a small scan is run before, and what is beyond it is told
as well. Then the plain client reads the same table into Python's lists.

    python -m bench.scan [--rows 1000000] [--json FILE]
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds
from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner
from google.cloud.spanner_v1 import KeySet

from bench.figures import tell
from bench.landing import Watched
from bench.service import service_settings
from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream
from slackwater.reader.transport.connection import Connection
from tests.support.emulators import own_database

_COLUMNS: Final = ("Id", "Name", "Amount", "Payload")
_DDL: Final = (
    "CREATE TABLE T (Id INT64 NOT NULL, Name STRING(MAX), Amount FLOAT64, Payload STRING(MAX))"
    " PRIMARY KEY (Id)",
    "CREATE CHANGE STREAM S FOR ALL",
)
_ROWS_A_COMMIT: Final = 5_000
_SECONDS_MAX: Final = 1_800


def measure(rows: int) -> dict[str, Any]:
    """Fill, scan and read the table, and return the figures of both."""
    with (
        tempfile.TemporaryDirectory() as name,
        own_database(statements=_DDL, change_stream="S", partition_alive_seconds=None) as stream,
    ):
        client = spanner.Client(project=stream.project, credentials=AnonymousCredentials())
        database = client.instance(stream.instance).database(stream.database)
        small: dict[str, Any] = {}
        for first in range(0, rows, _ROWS_A_COMMIT):
            with database.batch() as batch:
                batch.insert("T", _COLUMNS, [_row(i) for i in range(first, first + _ROWS_A_COMMIT)])
            small = small or _scan(stream, Path(name, "small"), _ROWS_A_COMMIT)
        scanned = _scan(stream, Path(name, "whole"), rows)
        cpu_s = [made["python_cpu_seconds"] + made["java_cpu_seconds"] for made in (small, scanned)]
        began, cpu = time.monotonic(), time.process_time()
        with database.snapshot() as snapshot:
            read = sum(1 for _ in snapshot.read("T", _COLUMNS, KeySet(all_=True)))
        assert read == rows
        spent, seconds = time.process_time() - cpu, time.monotonic() - began
    return {
        "rows": rows,
        **scanned,
        "rows_per_cpu_second_beyond_the_start": round(
            (rows - _ROWS_A_COMMIT) / (cpu_s[1] - cpu_s[0])
        ),
        "client_rows_per_second": round(rows / seconds),
        "client_rows_per_cpu_second": round(rows / spent),
        "ratio_to_client": round(scanned["rows_per_cpu_second"] * spent / rows, 2),
    }


def _row(number: int) -> list[Any]:
    return [number, f"customer {number}", number / 7, "x" * 400]


def _scan(stream: ChangeStream, folder: Path, rows: int) -> dict[str, Any]:
    start_ns = Connection(stream).strong_read_timestamp_ns()
    pipeline_settings = service_settings(folder, stream, start_ns)
    pipeline_settings["source"] |= {"initial_scan": "only", "start": "now"}
    service = Service(pipeline_settings, folder, os.environ)
    began = time.monotonic()
    service.start()
    watched = Watched(service.pid)
    watched.start()
    code = service.wait(_SECONDS_MAX)
    seconds = time.monotonic() - began
    python, java = watched.look()
    rows_landed = ds.dataset(folder / "changes", format="parquet").count_rows()
    if code or rows_landed != rows:
        raise SystemExit(f"exit code {code}, {rows_landed} of {rows} rows landed")
    return {
        "seconds": round(seconds, 1),
        "rows_per_second": round(rows / seconds),
        "rows_per_cpu_second": round(rows / (python + java)),
        "python_cpu_seconds": round(python, 1),
        "java_cpu_seconds": round(java, 1),
        "python_worker_mib_max": round(watched.worker_bytes_max / 2**20),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    tell(measure(options.rows), options.json)


if __name__ == "__main__":
    main()
