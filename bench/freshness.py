"""Freshness: from a transaction's commit until its records are readable in the output.

The service runs as a process with trigger 0 on local[2] against an emulator whose partitions
churn every 2 s, while 20 transactions a second are written. A reader looks for the output's low
watermark every few milliseconds.

    python -m bench.freshness [--seconds 60] [--rate 20] [--format delta] [--kind mirror]
        [--json FILE]
"""

import argparse
import json
import os
import re
import statistics
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from bench.service import service_settings
from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.state.epochs import last_epochs
from slackwater.state.store import Store
from slackwater.timestamp import parse_rfc3339
from tests.support.emulators import own_database
from tests.support.postgres import running_server
from tests.support.truths import truth_of

POSTGRESQL = "postgresql"
KINDS = ("changelog", "changelogs", "mirror")
# A JVM that has just started takes longer for an epoch.
WARM_UP_SECONDS = 60


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile of sorted values."""
    return values[min(len(values) - 1, int(len(values) * share))]


def measure(
    seconds: int,
    rate: float,
    file_format: str = "parquet",
    kind: str = "changelog",
    conf: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Measure the freshness of records written after a warm-up, and the epochs' seconds."""
    with (
        tempfile.TemporaryDirectory() as name,
        own_database(partition_alive_seconds=2) as stream,
        ExitStack() as stack,
    ):
        folder = Path(name)
        connection = Connection(stream)
        start_ns = connection.strong_read_timestamp_ns()
        state = f"sqlite:///{folder / 'state.db'}"
        values = service_settings(
            folder, stream, start_ns, state_url=state, file_format=file_format, conf=conf
        )
        values["sink"]["kind"] = kind
        if file_format == POSTGRESQL:
            values["sink"]["path"] = stack.enter_context(running_server()).replace("+psycopg", "")
        service = Service(values, folder, os.environ)
        service.start()
        service.wait_for_watermark(start_ns, seconds_max=90)
        load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=1)
        load.run(transactions_per_second=rate, seconds=WARM_UP_SECONDS)
        from_s = time.time()
        with looking(_look_at(values["sink"], stack)) as looks:
            load.run(transactions_per_second=rate, seconds=seconds)
            end_ns = connection.strong_read_timestamp_ns()
            service.wait_for_watermark(end_ns, seconds_max=60)
        service.drain()
        fresh = ages(looks, commits_of(stream, from_s, end_ns))
        store = Store.open(state, migrate=False)
        epochs = [e for e in last_epochs(store, "bench", limit=10_000) if e.start_ns > from_s * 1e9]
        store.close()
        stages = stage_seconds(service.log.read_text(errors="replace"))
    return {
        "format": file_format,
        "kind": kind,
        "records": len(fresh),
        "median_seconds": statistics.median(fresh),
        "p99_seconds": percentile(fresh, 0.99),
        "worst_seconds": fresh[-1],
        "percentiles_seconds": [round(percentile(fresh, n / 100), 3) for n in range(101)],
        "epochs": len(epochs),
        "epoch_median_seconds": statistics.median(e.seconds for e in epochs),
        "stage_median_seconds": stages,
    }


def _look_at(sink: Mapping[str, str], stack: ExitStack) -> Callable[[], float | None]:
    """Return what asks an output for its low watermark, in seconds since 1970."""
    if sink["format"] != POSTGRESQL:
        return lambda: logged_watermark_s(os.listdir(f"{sink['path']}/_watermarks"))
    connection = stack.enter_context(psycopg.connect(sink["path"], autocommit=True))

    def look() -> float | None:
        [[at]] = connection.execute("SELECT low_watermark FROM _slackwater")
        return None if at is None else float(at.timestamp())

    return look


def logged_watermark_s(names: Iterable[str]) -> float | None:
    """Return the last low watermark by the names of a log's files, in seconds since 1970."""
    times = [name[: name.index("Z")] for name in names if "Z" in name]
    if not times:
        return None
    return datetime.strptime(max(times), "%Y%m%dT%H%M%S.%f").replace(tzinfo=UTC).timestamp()


def commits_of(stream: ChangeStream, from_s: float, end_ns: int) -> list[float]:
    """Return when the records of a time were committed, in seconds since 1970."""
    truth = truth_of(stream, int(from_s * 1e9), end_ns)
    return [parse_rfc3339(record.commit_timestamp) / 1e9 for record in truth.records]


@contextmanager
def looking(look: Callable[[], float | None]) -> Iterator[list[tuple[float, float]]]:
    """Ask for the low watermark again and again, and note each with the time it was seen.

    Yields:
        Pairs of seconds since 1970: the low watermark, and when a reader saw it first.
    """
    looks: list[tuple[float, float]] = []
    is_over = threading.Event()

    def note() -> None:
        at = look()
        if at is not None and (not looks or at > looks[-1][0]):
            looks.append((at, time.time()))

    def go_on() -> None:
        while not is_over.wait(0.005):
            note()
        note()

    looker = threading.Thread(target=go_on)
    looker.start()
    try:
        yield looks
    finally:
        is_over.set()
        looker.join()


def ages(looks: Sequence[tuple[float, float]], commits: Sequence[float]) -> list[float]:
    """Return each commit's age in seconds when a reader saw it, sorted."""
    seen = [bisect_left(looks, (commit, 0.0)) for commit in commits]
    return sorted(looks[at][1] - commit for at, commit in zip(seen, commits, strict=True))


def stage_seconds(log: str) -> dict[str, float]:
    """Return the median of each stage in the epochs' log lines."""
    by_stage: dict[str, list[float]] = {}
    for line in log.splitlines():
        if "event=epoch" in line:
            for stage, value in re.findall(r"(\w+)_ms=(\d+)", line):
                by_stage.setdefault(stage, []).append(int(value) / 1000)
    return {stage: statistics.median(values) for stage, values in by_stage.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--format", choices=("parquet", "delta", POSTGRESQL), default="parquet")
    parser.add_argument("--kind", choices=KINDS, default="changelog")
    parser.add_argument("--conf", nargs="*", default=[], help="settings of Spark, key=value")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    conf = dict(setting.split("=", 1) for setting in options.conf)
    figures = measure(options.seconds, options.rate, options.format, options.kind, conf)
    print(
        f"freshness of {figures['records']} records: median {figures['median_seconds']:.3f} s,"
        f" p99 {figures['p99_seconds']:.3f} s, worst {figures['worst_seconds']:.3f} s"
    )
    print(f"{figures['epochs']} epochs, median {figures['epoch_median_seconds']:.3f} s, of which")
    for stage, value in figures["stage_median_seconds"].items():
        print(f"  {stage:16} {value:.3f} s")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
