"""Soak: an hour of a pipeline's life under churn, load waves and faults: does anything grow?

    python -m bench.soak [--minutes 60] [--into docs/soak]

The service runs as a process against an emulator behind a proxy that breaks queries, lets some fall
silent, and refuses everything for twenty seconds now and then. The load keeps a log of its own of
what it committed, and that is what the output is held against. Every few seconds the memory and the
open files of all processes, the rows of the store, the checkpoint's files and the lag are noted.
"""

import argparse
import json
import math
import os
import random
import sqlite3
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import grpc
import psutil
import pyarrow.dataset as ds
from google.cloud.spanner_v1 import KeySet

from bench.plots import draw_panels
from bench.service import service_settings
from slackwater.demo.service import Service
from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream
from slackwater.reader.transport.connection import Connection
from slackwater.testing.emulator_database import database_of
from tests.faults.proxy import Breaks, FaultProxy, Refuses, Stalls
from tests.support.emulators import own_database

CHANGE_STREAM: Final = "SoakStream"
ALIVE_SECONDS: Final = 15
EVERY_S: Final = 5.0
WARM_UP_S: Final = 600.0
KEEP: Final = "10m"
_DDL: Final = (
    "CREATE TABLE Items (Id INT64 NOT NULL, Payload STRING(MAX)) PRIMARY KEY (Id)",
    "CREATE TABLE Events (Id INT64 NOT NULL, Payload STRING(MAX)) PRIMARY KEY (Id)",
    f"CREATE CHANGE STREAM {CHANGE_STREAM} FOR ALL",
)
_ITEMS_MAX: Final = 500
# Commit timestamp in microseconds, table, mod type, key.
Change = tuple[int, str, str, int]


class LoggedLoad:
    """Writes transactions in waves, and logs what each committed."""

    def __init__(self, stream: ChangeStream, *, seed: int) -> None:
        self._database = database_of(stream)
        self._random = random.Random(seed)
        self._items: list[int] = []
        self._next = 0
        self.committed: Counter[Change] = Counter()

    def run(self, seconds: float) -> None:
        """Write 5 to 25 transactions a second, and 60 in a burst every ten minutes."""
        began = time.monotonic()
        done = due = 0.0
        last = began
        while (now := time.monotonic()) - began < seconds:
            elapsed = now - began
            rate = 60.0 if elapsed % 600 > 570 else 15 + 10 * math.sin(elapsed * math.tau / 240)
            due, last = due + (now - last) * rate, now
            if done < due:
                self._transaction()
                done += 1
            else:
                time.sleep(0.002)

    def _transaction(self) -> None:
        changes: list[tuple[str, str, int]] = []
        with self._database.batch() as batch:
            for _ in range(self._random.randint(1, 3)):
                self._next += 1
                batch.insert("Events", ("Id", "Payload"), [(self._next, self._text())])
                changes.append(("Events", "INSERT", self._next))
            if self._items and self._random.random() < 0.5:
                item = self._random.choice(self._items)
                batch.update("Items", ("Id", "Payload"), [(item, self._text())])
                changes.append(("Items", "UPDATE", item))
            elif len(self._items) < _ITEMS_MAX:
                self._next += 1
                batch.insert("Items", ("Id", "Payload"), [(self._next, self._text())])
                self._items.append(self._next)
                changes.append(("Items", "INSERT", self._next))
            else:
                item = self._items.pop(self._random.randrange(len(self._items)))
                batch.delete("Items", KeySet(keys=[[item]]))
                changes.append(("Items", "DELETE", item))
        at_us = round(batch.committed.timestamp() * 1_000_000)
        self.committed.update((at_us, *change) for change in changes)

    def _text(self) -> str:
        return self._random.randbytes(100).hex()


def output_of(path: Path) -> Counter[Change]:
    """Read the written changes with pyarrow."""
    columns = ["commit_timestamp", "table_name", "mod_type", "mods"]
    changes: Counter[Change] = Counter()
    for batch in ds.dataset(path, format="parquet").to_batches(columns=columns):
        for row in batch.to_pylist():
            at_us = round(row["commit_timestamp"].timestamp() * 1_000_000)
            changes.update(
                (at_us, row["table_name"], row["mod_type"], int(json.loads(mod["keys"])["Id"]))
                for mod in row["mods"]
            )
    return changes


def sample(service: Service, folder: Path) -> dict[str, float]:
    """Return the figures that could grow."""
    driver = psutil.Process(service.pid)
    figures = {"driver_mib": driver.memory_info().rss / 2**20, "jvm_mib": 0.0, "workers_mib": 0.0}
    files = driver.num_fds()
    for child in driver.children(recursive=True):
        try:
            kind = "jvm_mib" if child.name() == "java" else "workers_mib"
            figures[kind] += child.memory_info().rss / 2**20
            files += child.num_fds()
        except psutil.NoSuchProcess:
            continue
    checkpoint = [path for path in (folder / "checkpoint").rglob("*") if path.is_file()]
    watermark_ns = service.low_watermark_ns() or 0
    return {
        **figures,
        "open_files": files,
        "store_rows": store_rows(folder / "state.db"),
        "store_kib": (folder / "state.db").stat().st_size / 2**10,
        "checkpoint_files": len(checkpoint),
        "checkpoint_kib": sum(_size(path) for path in checkpoint) / 2**10,
        "lag_seconds": time.time() - watermark_ns / 1e9,
    }


def store_rows(path: Path) -> int:
    """Count the rows of all tables."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
    try:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return sum(
            connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for (name,) in names
        )
    finally:
        connection.close()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def faults(proxy: FaultProxy, stop: threading.Event) -> None:
    """Break queries all the time; every ten minutes silence some, then refuse everything."""
    usual = [Breaks(likely=0.02)]
    proxy.rules = list(usual)
    while not stop.wait(300):
        proxy.rules = [*usual, Stalls(likely=0.3, times=1)]
        if stop.wait(20):
            return
        proxy.rules = list(usual)
        if stop.wait(260):
            return
        proxy.rules = [Refuses(grpc.StatusCode.UNAVAILABLE)]
        stop.wait(20)
        proxy.rules = list(usual)


def measure(minutes: float, into: Path | None) -> dict[str, Any]:
    """Run the soak, and return the samples, their growth and the comparison."""
    with (
        tempfile.TemporaryDirectory() as name,
        own_database(
            statements=_DDL, change_stream=CHANGE_STREAM, partition_alive_seconds=ALIVE_SECONDS
        ) as stream,
        FaultProxy(stream.endpoint.target) as proxy,
    ):
        folder = Path(name)
        connection = Connection(stream)
        start_ns = connection.strong_read_timestamp_ns()
        behind = replace(stream, endpoint=plaintext(proxy.host))
        pipeline_settings = service_settings(
            folder, behind, start_ns, epoch={"trigger": "1s", "heartbeat": "2s"}
        )
        pipeline_settings["state"]["keep"] = KEEP
        pipeline_settings["http"] = {"listen": "127.0.0.1:0"}
        service = Service(
            pipeline_settings, folder, os.environ | {"SPANNER_EMULATOR_HOST": proxy.host}
        )
        service.start()
        service.wait_for_watermark(start_ns, seconds_max=90)
        load, stop = LoggedLoad(stream, seed=1), threading.Event()
        writer = threading.Thread(target=load.run, args=(minutes * 60,))
        breaker = threading.Thread(target=faults, args=(proxy, stop))
        samples = list(_watched(service, folder, (writer, breaker), stop, into))
        end_ns = connection.strong_read_timestamp_ns()
        service.wait_for_watermark(end_ns, seconds_max=300)
        code = service.drain()
        output = output_of(folder / "changes")
        injected = dict(proxy.injected)
    missing, unexpected = load.committed - output, output - load.committed
    figures = {
        "minutes": minutes,
        "changes": load.committed.total(),
        "equal": (load.committed & output).total(),
        "missing": missing.total(),
        "unexpected": unexpected.total(),
        "exit_code": code,
        "faults": injected,
        "growth": growth(samples),
        "samples": samples,
    }
    if into is not None:
        save(figures, into)
    return figures


def _watched(
    service: Service,
    folder: Path,
    threads: Sequence[threading.Thread],
    stop: threading.Event,
    into: Path | None,
) -> Iterator[dict[str, float]]:
    """Yield samples from the start of the threads until the first, the load, has ended."""
    began = time.monotonic()
    for thread in threads:
        thread.start()
    samples: list[dict[str, float]] = []
    while threads[0].is_alive():
        latest = {"minute": (time.monotonic() - began) / 60, **sample(service, folder)}
        samples.append(latest)
        yield latest
        if into is not None and len(samples) % 60 == 0:
            draw(samples, into)
        time.sleep(EVERY_S)
    stop.set()
    threads[1].join()


def growth(samples: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return each figure's median in the last ten minutes over that of the first ten."""
    settled = [s for s in samples if s["minute"] * 60 >= WARM_UP_S] or list(samples)
    first = [s for s in settled if s["minute"] < settled[0]["minute"] + 10]
    last = [s for s in settled if s["minute"] > settled[-1]["minute"] - 10]
    return {
        name: round(
            statistics.median(s[name] for s in last)
            / max(1e-9, statistics.median(s[name] for s in first)),
            3,
        )
        for name in samples[0]
        if name != "minute"
    }


def draw(samples: Sequence[Mapping[str, float]], into: Path) -> None:
    """Draw the plots as one PNG."""
    panels = (
        ("resident memory, MiB", ("driver_mib", "jvm_mib", "workers_mib")),
        ("open files of all processes", ("open_files",)),
        ("rows in the metadata store", ("store_rows",)),
        ("size of the metadata store, KiB", ("store_kib",)),
        ("files in the checkpoint", ("checkpoint_files",)),
        ("lag, s", ("lag_seconds",)),
    )
    draw_panels(samples, panels, into / "soak.png")


def save(figures: Mapping[str, Any], into: Path) -> None:
    """Save the plots, and the figures as JSON."""
    draw(figures["samples"], into)
    # A sample a minute is enough to keep.
    thinned = {**figures, "samples": figures["samples"][:: round(60 / EVERY_S)]}
    (into / "soak.json").write_text(json.dumps(thinned, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--into", type=Path, default=None)
    options = parser.parse_args()
    figures = measure(options.minutes, options.into)
    print(json.dumps({name: value for name, value in figures.items() if name != "samples"}))
    is_well = not (figures["missing"] or figures["unexpected"] or figures["exit_code"])
    raise SystemExit(0 if is_well else 1)


if __name__ == "__main__":
    main()
