"""Freshness in an object store that takes its time: from a commit until its records are there.

The store is a stand-in in this process, whose answers come some milliseconds later than they could.
All else is as in bench.freshness.

    python -m bench.object_freshness [--store s3|gs|az] [--format parquet|delta] [--kind mirror]
        [--delay-ms 30]
"""

import argparse
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.freshness import (
    KINDS,
    WARM_UP_SECONDS,
    ages,
    commits_of,
    logged_watermark_s,
    percentile,
    stage_seconds,
)
from bench.service import service_settings
from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.state.epochs import last_epochs
from slackwater.state.store import Store
from tests.support.emulators import own_database
from tests.support.object_stores import STORES, ServedStore, nothing

_OUTPUT: Final = "out"
_LOG: Final = f"{_OUTPUT}/_watermarks/"


@dataclass
class SlowStore:
    """Delays a store's answers, and notes when objects were put there.

    Attributes:
        store: the store.
        delay_s: before each answer.
        put_s: since the Unix epoch, by name.
    """

    store: ServedStore
    delay_s: float
    put_s: dict[str, float] = field(default_factory=dict)

    def before(self, method: str, name: str) -> None:
        """Wait, as the way to the store and back takes its time."""
        del method, name
        time.sleep(self.delay_s)

    def after(self, method: str, name: str) -> None:
        """Note an object that is readable now."""
        if method == "PUT":
            self.put_s.setdefault(name, time.time())

    def looks(self) -> list[tuple[float, float]]:
        """Return each low watermark with the time at which it was there, in seconds since 1970."""
        found = [
            (at, put_s)
            for name, put_s in self.put_s.items()
            if name.startswith(_LOG)
            and (at := logged_watermark_s([name.removeprefix(_LOG)])) is not None
        ]
        return sorted(found)


def measure(
    store_name: str, file_format: str, kind: str, delay_s: float, seconds: int, rate: float
) -> dict[str, Any]:
    """Measure the freshness of records written after a warm-up, and the requests of an epoch."""
    with (
        tempfile.TemporaryDirectory() as name,
        own_database(partition_alive_seconds=2) as stream,
        STORES[store_name]() as store,
    ):
        folder, slow = Path(name), SlowStore(store, delay_s)
        store.before, store.after = slow.before, slow.after
        connection = Connection(stream)
        start_ns = connection.strong_read_timestamp_ns()
        settings = service_settings(folder, stream, start_ns)
        settings["sink"] = {
            "kind": kind,
            "format": file_format,
            "path": f"{store.path}/{_OUTPUT}",
            "storage_options": store.options,
        }
        service = Service(settings, folder, os.environ)
        service.start()
        service.wait_for_watermark(start_ns, seconds_max=180)
        load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=1)
        load.run(transactions_per_second=rate, seconds=WARM_UP_SECONDS)
        from_s, requests = time.time(), len(store.requests)
        load.run(transactions_per_second=rate, seconds=seconds)
        asked = Counter(method for method, _ in store.requests[requests:])
        to_s = time.time()
        end_ns = connection.strong_read_timestamp_ns()
        service.wait_for_watermark(end_ns, seconds_max=180)
        service.drain()
        store.before = store.after = nothing
        fresh = ages(slow.looks(), commits_of(stream, from_s, end_ns))
        epochs_store = Store.open(settings["state"]["url"], migrate=False)
        epochs = [
            epoch.seconds
            for epoch in last_epochs(epochs_store, "bench", limit=10_000)
            if from_s * 1e9 < epoch.start_ns < to_s * 1e9
        ]
        epochs_store.close()
        stages = stage_seconds(service.log.read_text(errors="replace"))
    return {
        "store": store_name,
        "format": file_format,
        "kind": kind,
        "delay_seconds": delay_s,
        "records": len(fresh),
        "median_seconds": statistics.median(fresh),
        "p99_seconds": percentile(fresh, 0.99),
        "worst_seconds": fresh[-1],
        "epochs": len(epochs),
        "epoch_median_seconds": statistics.median(epochs),
        "requests_an_epoch": _an_epoch(asked, len(epochs)),
        "stage_median_seconds": stages,
    }


def _an_epoch(asked: Mapping[str, int], epochs: int) -> dict[str, float]:
    return {method: round(count / epochs, 2) for method, count in sorted(asked.items())}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", choices=tuple(STORES), default="s3")
    parser.add_argument("--format", choices=("parquet", "delta"), default="parquet")
    parser.add_argument("--kind", choices=KINDS, default="changelog")
    parser.add_argument("--delay-ms", type=float, default=30)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rate", type=float, default=20)
    options = parser.parse_args()
    delay_s = options.delay_ms / 1e3
    figures = measure(
        options.store, options.format, options.kind, delay_s, options.seconds, options.rate
    )
    print(
        f"{options.kind} in {options.format} in {options.store}, {options.delay_ms:g} ms a request:"
        f" freshness of {figures['records']} records: median {figures['median_seconds']:.3f} s, p99"
        f" {figures['p99_seconds']:.3f} s, worst {figures['worst_seconds']:.3f} s"
    )
    print(f"{figures['epochs']} epochs, median {figures['epoch_median_seconds']:.3f} s, of which")
    for stage, value in figures["stage_median_seconds"].items():
        print(f"  {stage:16} {value:.3f} s")
    print(f"requests an epoch: {figures['requests_an_epoch']}")


if __name__ == "__main__":
    main()
