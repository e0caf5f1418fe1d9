"""Continuous reading compared with bounded queries: what each costs, and how fresh the output is.

The service runs on a synthetic server with a number of partitions, first with one and then with the
other. Counted are partition queries and bytes at the server, CPU seconds of the service (without
its reader process, and of that alone) and of the server, and the time from a record's commit until
it is readable.

    python -m bench.continuous [--partitions 1000] [--every 1] [--records 1000] [--seconds 30]
        [--heartbeat 1]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from bench.figures import tell
from bench.freshness import percentile
from bench.service import (
    cpu_s,
    processes_of,
    server_process,
    service_settings,
    synthetic_stream,
)
from slackwater.demo.service import Service
from slackwater.reader.change_stream import Dialect
from slackwater.scheduler.read_options import Reading
from slackwater.state.epochs import last_epochs
from slackwater.state.store import Store
from slackwater.testing.compare import freshness_seconds
from tests.support.reader_processes import readers
from tests.synthetic.rows import PatternRows
from tests.synthetic.script import Script, ScriptedPartition
from tests.synthetic.server import synthetic_process

_WARM_UP_S: Final = 40


@dataclass(frozen=True, slots=True)
class Load:
    """What is read.

    Attributes:
        partitions: how many there are.
        every_s: epoch.trigger, seconds.
        records_per_s: of all partitions together.
        heartbeat_s: epoch.heartbeat with continuous reading, seconds.
    """

    partitions: int
    every_s: int
    records_per_s: int
    heartbeat_s: int

    def script(self, start_us: int) -> Script:
        """Return the change stream, whose records come at even distances for an hour."""
        every_us = 1_000_000 * self.partitions // self.records_per_s
        partitions = [
            ScriptedPartition(
                f"p{number:06}",
                start_us - 10_000_000,
                rows=PatternRows(
                    number,
                    start_us + every_us * number // self.partitions,
                    every_us,
                    3_600_000_000 // every_us,
                ),
            )
            for number in range(self.partitions)
        ]
        return Script(Dialect.GOOGLE_STANDARD_SQL, tuple(partitions))


def measure(load: Load, reading: Reading, seconds: int) -> dict[str, Any]:
    """Measure one way of reading on a server of its own, after a warm-up."""
    counts = multiprocessing.get_context("spawn").Array("q", 2, lock=False)
    start_ns = time.time_ns() // 1_000 * 1_000
    with (
        synthetic_process(load.script(start_ns // 1_000), counts) as host,
        tempfile.TemporaryDirectory() as name,
    ):
        folder = Path(name)
        server = server_process()
        stream = synthetic_stream(host)
        epoch = {"trigger": f"{load.every_s}s", "reading": reading.value}
        if reading is Reading.CONTINUOUS:
            epoch["heartbeat"] = f"{load.heartbeat_s}s"
        settings = service_settings(folder, stream, start_ns, epoch=epoch)
        service = Service(settings, folder, os.environ | {"SPANNER_EMULATOR_HOST": host})
        with _running(service):
            service.wait_for_watermark(start_ns, seconds_max=120)
            time.sleep(_WARM_UP_S)
            before, before_s = _Spent.now(service, server, counts), time.time()
            time.sleep(seconds)
            after, after_s = _Spent.now(service, server, counts), time.time()
            service.wait_for_watermark(int(after_s * 1e9), seconds_max=120)
        fresh = freshness_seconds(folder / "changes", committed_from=before_s)
        store = Store.open(settings["state"]["url"], migrate=False)
        epochs = [e for e in last_epochs(store, "bench", limit=10_000) if e.end_ns > before_s * 1e9]
        store.close()
    return {
        **after.per_second(before, after_s - before_s),
        "epoch_median_seconds": round(statistics.median(e.seconds for e in epochs), 3),
        "freshness_median_seconds": round(statistics.median(fresh), 3),
        "freshness_p99_seconds": round(percentile(fresh, 0.99), 3),
    }


@dataclass(frozen=True, slots=True)
class _Spent:
    """What was counted so far; CPU in seconds."""

    queries: int
    wire_bytes: int
    service_cpu: float
    reader_cpu: float
    server_cpu: float
    reader_mib: int

    @staticmethod
    def now(service: Service, server: psutil.Process, counts: Sequence[int]) -> _Spent:
        reading = readers()
        others = [p for p in processes_of(service.pid) if p not in reading]
        return _Spent(
            counts[0],
            counts[1],
            sum(map(cpu_s, others)),
            sum(map(cpu_s, reading)),
            cpu_s(server),
            sum(p.memory_info().rss for p in reading) >> 20,
        )

    def per_second(self, before: _Spent, seconds: float) -> dict[str, Any]:
        """Return the differences to an earlier count, a second."""
        return {
            "queries_per_second": round((self.queries - before.queries) / seconds, 2),
            "bytes_per_second": round((self.wire_bytes - before.wire_bytes) / seconds),
            "service_cpu": round((self.service_cpu - before.service_cpu) / seconds, 3),
            "reader_cpu": round((self.reader_cpu - before.reader_cpu) / seconds, 3),
            "server_cpu": round((self.server_cpu - before.server_cpu) / seconds, 3),
            "reader_mib": self.reader_mib,
        }


@contextmanager
def _running(service: Service) -> Iterator[None]:
    service.start()
    try:
        yield
    finally:
        service.kill()


def compare(load: Load, seconds: int) -> dict[str, Any]:
    """Measure both ways of reading, one after the other."""
    figures: dict[str, Any] = {
        "partitions": load.partitions,
        "epoch_seconds": load.every_s,
        "records_asked_per_second": load.records_per_s,
        "heartbeat_seconds": load.heartbeat_s,
    }
    return figures | {reading.value: measure(load, reading, seconds) for reading in Reading}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--every", type=int, default=1, help="seconds")
    parser.add_argument("--records", type=int, default=1_000, help="a second")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--heartbeat", type=int, default=1, help="seconds")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load = Load(options.partitions, options.every, options.records, options.heartbeat)
    tell(compare(load, options.seconds), options.json)


if __name__ == "__main__":
    main()
