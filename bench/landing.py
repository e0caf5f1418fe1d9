"""End to end: from a synthetic server to durable files, with all processes of the service.

The service catches up over records that lie in the past, in epochs of a given number of records.
Counted are CPU seconds of the whole tree (Python and Spark's JVM) and the most memory of each
Python worker, from the end of the second epoch on: the JVM compiles what runs often.

    python -m bench.landing [--records 1200000] [--epochs 6] [--partitions 8]
        [--rows-per-message 20] [--format delta|bigquery] [--mode MUTABLE_KEY_RANGE] [--json FILE]

Rows for BigQuery are counted by a server in the process of the measurement, which is not counted.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from bench.patterns import START_US, pattern_script
from bench.service import processes_of, service_settings, synthetic_stream
from slackwater.demo.service import Service
from slackwater.reader.change_stream import Dialect, PartitionMode
from slackwater.spark_sink.formats import BIGQUERY
from tests.support.bigquery import DATASET, PROJECT, BigQueryServer, bigquery_emulator
from tests.synthetic.script import Script
from tests.synthetic.server import synthetic_process

# Of a partition's records; wider apart where an epoch would cover less than a second.
EVERY_US: Final = 80
EPOCH_US_MIN: Final = 1_000_000
_LOOK_EVERY_S: Final = 0.05
_SECONDS_MAX: Final = 300
WARM_UP_EPOCHS: Final = 2


@dataclass
class Watched:
    """Samples the resources used by the processes of a service."""

    pid: int
    cpu: dict[tuple[bool, int], float] = field(default_factory=dict)
    worker_bytes_max: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Sample in the background for as long as the service runs."""

        def run() -> None:
            while psutil.pid_exists(self.pid):
                self.look()
                time.sleep(_LOOK_EVERY_S)

        threading.Thread(target=run, daemon=True).start()

    def look(self) -> tuple[float, float]:
        """Return the CPU seconds of the process tree so far: Python's and Java's."""
        with self.lock:
            return self._look()

    def _look(self) -> tuple[float, float]:
        try:
            tree = processes_of(self.pid)
        except psutil.NoSuchProcess:
            tree = []
        for process in tree:
            try:
                is_java = process.name() == "java"
                self.cpu[is_java, process.pid] = sum(process.cpu_times()[:2])
                # Spark's own processes of Python: planning, and one for each task at once.
                if process.name().startswith("python") and "pyspark" in " ".join(process.cmdline()):
                    size = process.memory_info().rss
                    self.worker_bytes_max = max(self.worker_bytes_max, size)
            except psutil.NoSuchProcess:
                continue
        java = sum(spent for (is_java, _), spent in self.cpu.items() if is_java)
        return sum(self.cpu.values()) - java, java


@dataclass(frozen=True, slots=True)
class Workload:
    """What is read.

    Attributes:
        records: in all, spread evenly over partitions and time.
        partitions: how many, which live throughout.
        epochs: into which the records fall.
        rows_per_message: as the server sends them.
        mode: the change stream's partition mode.
    """

    records: int = 1_200_000
    partitions: int = 8
    epochs: int = 6
    rows_per_message: int = 20
    mode: PartitionMode = PartitionMode.IMMUTABLE_KEY_RANGE

    @property
    def every_us(self) -> int:
        """The microseconds between two records of a partition."""
        return max(EVERY_US, -(-EPOCH_US_MIN * self.partitions * self.epochs // self.records))

    def script(self) -> Script:
        """Return the change stream."""
        return pattern_script(
            Dialect.GOOGLE_STANDARD_SQL,
            self.mode,
            self.partitions,
            self.records,
            self.every_us,
            self.rows_per_message,
        )


class _CountedRows(BigQueryServer):
    """BigQuery, as far as it takes rows."""

    def __init__(self, rest: str) -> None:
        super().__init__(rest)
        self.rows = 0

    def load(self, table: str, rows: pa.Table) -> None:  # noqa: ARG002
        """Count rows that become visible."""
        self.rows += rows.num_rows


@contextmanager
def _output(folder: Path, file_format: str) -> Iterator[tuple[dict[str, Any], Callable[[], int]]]:
    """Yield settings of the sink, and what counts the records that a reader of it sees."""
    if file_format != BIGQUERY:
        yield {}, lambda: _in_files(folder / "changes", file_format)
        return
    with bigquery_emulator() as rest:
        server = _CountedRows(rest)
        with server.door() as door:
            path = f"bq://{PROJECT}/{DATASET}"
            yield {"path": path, "storage_options": server.options(door)}, lambda: server.rows


def _in_files(path: Path, file_format: str) -> int:
    if file_format == "delta":
        rows: int = DeltaTable(path).to_pyarrow_dataset().count_rows()
    else:
        rows = ds.dataset(path, format="parquet", partitioning="hive").count_rows()
    return rows


def measure(workload: Workload, file_format: str = "parquet") -> dict[str, Any]:
    """Measure records per second and per CPU second after the warm-up."""
    records, partitions, epochs = workload.records, workload.partitions, workload.epochs
    every_us = workload.every_us
    span_us = records // partitions * every_us
    last_ns = (START_US + span_us) * 1_000
    with (
        synthetic_process(workload.script()) as host,
        tempfile.TemporaryDirectory() as name,
        _output(Path(name), file_format) as (sink, landed),
    ):
        folder = Path(name)
        stream = synthetic_stream(host)
        settings = service_settings(
            folder,
            stream,
            START_US * 1_000,
            end_ns=last_ns,
            file_format=file_format,
            epoch={
                "max_span": f"{span_us // epochs // 1_000}ms",
                "target_records": 10**9,
                "target_time": "1h",
            },
        )
        settings["sink"] |= sink
        service = Service(settings, folder, os.environ | {"SPANNER_EMULATOR_HOST": host})
        service.start()
        watched = Watched(service.pid)
        warm_up_us = span_us * min(WARM_UP_EPOCHS, epochs - 1) // epochs
        begun_ns = (START_US + warm_up_us) * 1_000 - 1_000_000
        watched.start()
        service.wait_for_watermark(begun_ns, seconds_max=_SECONDS_MAX)
        before_cpu, before = watched.look(), time.monotonic()
        first_ns = service.low_watermark_ns() or 0
        service.wait_for_watermark(last_ns, seconds_max=_SECONDS_MAX)
        spent = time.monotonic() - before
        python, java = (now - then for now, then in zip(watched.look(), before_cpu, strict=True))
        service.wait(60)
        records_landed = landed()
    if records_landed != records:
        raise SystemExit(f"{records_landed} of {records} records landed")
    counted = partitions * (START_US + span_us - first_ns / 1_000) / every_us
    return {
        "format": file_format,
        "records": records,
        "records_an_epoch": records // epochs,
        "partitions": partitions,
        "records_counted": round(counted),
        "records_per_second": round(counted / spent),
        "records_per_cpu_second": round(counted / (python + java)),
        "python_share": round(python / (python + java), 2),
        "python_worker_mib_max": watched.worker_bytes_max >> 20,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_200_000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rows-per-message", type=int, default=20)
    parser.add_argument("--mode", type=PartitionMode, default=PartitionMode.IMMUTABLE_KEY_RANGE)
    parser.add_argument("--format", choices=("parquet", "delta", BIGQUERY), default="parquet")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    workload = Workload(
        options.records,
        options.partitions,
        options.epochs,
        options.rows_per_message,
        options.mode,
    )
    figures = measure(workload, options.format)
    for name, value in figures.items():
        print(f"{name}: {value}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
