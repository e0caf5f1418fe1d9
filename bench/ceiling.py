"""The size at which others give up: 10,000 partitions with 60,000 records and 60 MiB a second.

Datastream's documentation names these as the limits beyond which it may fall behind. A synthetic
server sends one row a message in real time, while some partitions split and others merge. The
service reads them live. Each epoch has to have exactly the records that the server has between its
ends; then it is removed, since an hour of them fills a disk. With executors, of one core each, the
tasks run in a standalone cluster, and the service's CPU is that of the driver.

    python -m bench.ceiling [--minutes 60] [--partitions 10000] [--records 60000] [--churn 100]
        [--executors 2] [--every 10s] [--format delta] [--reading continuous]
        [--into docs/performance] [--json FILE]
"""

import argparse
import math
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow.parquet as pq
from deltalake import DeltaTable

from bench.figures import tell
from bench.freshness import percentile
from bench.plots import draw_panels
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
from slackwater.state.models import Epoch
from slackwater.state.store import Store
from tests.support.clusters import Cluster
from tests.support.reader_processes import readers
from tests.synthetic.rows import PatternRows
from tests.synthetic.script import Script, ScriptedPartition
from tests.synthetic.server import synthetic_process

EVERY_S: Final = 5.0
# The JVM compiles, and the backlog of the start is read.
WARM_UP_S: Final = 120.0
_BEFORE_US: Final = 10_000_000
# A record waits so long for others of its partition; the server would not keep up with single ones.
_LINGER_US: Final = 200_000
_EPOCHS_KEPT: Final = 5


@dataclass(frozen=True)
class Load:
    """What the server sends.

    Attributes:
        partitions: how many there are at a time.
        records_per_s: of all together, one row each.
        record_bytes: on the wire.
        churn: how many partitions split or merge a minute.
        seconds: how long.
    """

    partitions: int
    records_per_s: int
    record_bytes: int
    churn: int
    seconds: float

    def script(self, start_us: int) -> Script:
        """Return the change stream: as many partitions split as merge, at random."""
        choose = random.Random(1)
        every_us = 1_000_000 * self.partitions // self.records_per_s
        end_us = start_us + round(self.seconds * 1e6)
        began_us = start_us - _BEFORE_US
        alive: list[tuple[str, int, tuple[str, ...]]] = [
            (f"p{number:06}", began_us, ()) for number in range(self.partitions)
        ]
        made: list[ScriptedPartition] = []

        def close(index: int, at_us: int | None) -> str:
            token, began_us, parents = alive[index]
            alive[index] = alive[-1]
            alive.pop()
            first_us = began_us + len(made) % every_us
            count = max(0, -(-((at_us or end_us) - first_us) // every_us))
            rows = PatternRows(len(made), first_us, every_us, count, size_bytes=self.record_bytes)
            made.append(ScriptedPartition(token, began_us, at_us, parents, rows))
            return token

        # Two of each: one splits and two merge.
        changes = round(self.churn / 2 * self.seconds / 60)
        for number in range(changes):
            at_us = start_us + round((number + 0.5) * self.seconds * 1e6 / changes)
            split = close(choose.randrange(len(alive)), at_us)
            merged = tuple(sorted(close(choose.randrange(len(alive)), at_us) for _ in range(2)))
            alive += [(f"s{number:06}{side}", at_us, (split,)) for side in "ab"]
            alive.append((f"m{number:06}", at_us, merged))
        while alive:
            close(0, None)
        return Script(Dialect.GOOGLE_STANDARD_SQL, tuple(made), linger_us=_LINGER_US)


def records_between(script: Script, start_ns: int, end_ns: int) -> int:
    """Return how many records the server has in (start, end]."""
    first, after = (-(-(ns + 1) // 1_000) for ns in (start_ns, end_ns))
    return sum(
        p.rows.first_at(after) - p.rows.first_at(first)
        for p in script.partitions
        if p.start_us < after and (p.end_us is None or p.end_us >= first)
    )


@dataclass
class Watch:
    """A service at work: samples, and its epochs held against what the server has.

    Attributes:
        samples: of lag, CPU, memory and partitions, one every five seconds.
        epochs: those that were compared.
        wrong: those with another number of records, in words.
    """

    service: Service
    script: Script
    folder: Path
    server: psutil.Process
    file_format: str
    cluster: Cluster | None
    samples: list[dict[str, float]] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def run(self, seconds: float, into: Path | None) -> None:
        """Watch for so long."""
        store = Store.open(f"sqlite:///{self.folder / 'state.db'}", migrate=False)
        began, before = time.monotonic(), self._cpu()
        at = began
        while at - began < seconds:
            time.sleep(EVERY_S)
            now, cpu = time.monotonic(), self._cpu()
            self._compare(last_epochs(store, "bench", limit=1_000))
            spent = {f"{name}_cpu": max(0.0, cpu[name] - before[name]) / (now - at) for name in cpu}
            self.samples.append(
                {
                    "minute": (now - began) / 60,
                    "lag_seconds": time.time() - (self.service.low_watermark_ns() or 0) / 1e9,
                    "epoch_seconds": self.epochs[-1].seconds if self.epochs else 0.0,
                    "partitions": self.epochs[-1].partitions if self.epochs else 0,
                    "service_mib": self._bytes() / 2**20,
                    **spent,
                }
            )
            at, before = now, cpu
            if into is not None and len(self.samples) % 12 == 0:
                draw(self.samples, into)
        store.close()

    def _compare(self, latest: Sequence[Epoch]) -> None:
        seen_ns = self.epochs[-1].end_ns if self.epochs else 0
        for epoch in sorted(latest, key=lambda epoch: epoch.end_ns):
            if epoch.end_ns <= seen_ns or not epoch.start_ns:
                continue
            expected = records_between(self.script, epoch.start_ns, epoch.end_ns)
            if epoch.records != expected:
                self.wrong.append(f"{epoch.records} records, not {expected}: {epoch}")
            self.epochs.append(epoch)
        if self.file_format == "parquet":
            for path in sorted((self.folder / "changes").glob("epoch=*"))[:-_EPOCHS_KEPT]:
                shutil.rmtree(path)

    def rows_left(self) -> int:
        """Return how many rows the output has, without those of removed epochs."""
        path = self.folder / "changes"
        if self.file_format == "delta":
            return int(DeltaTable(path).count())
        return sum(pq.read_metadata(file).num_rows for file in path.glob("epoch=*/*.parquet"))

    def _cpu(self) -> dict[str, float]:
        reading = readers()
        others = [each for each in processes_of(self.service.pid) if each not in reading]
        cpu = {
            "service": sum(map(cpu_s, [*others, *reading])),
            "server": cpu_s(self.server),
        }
        if self.cluster is not None:
            # The first one is the master.
            workers = self.cluster.processes[1:]
            cpu["executors"] = sum(cpu_s(each) for one in workers for each in processes_of(one.pid))
        return cpu

    def _bytes(self) -> int:
        total = 0
        for process in processes_of(self.service.pid):
            try:
                total += process.memory_full_info().pss
            except psutil.Error:
                continue
        return total


def freshness(epochs: Sequence[Epoch], *, parts: int = 20) -> list[float]:
    """Return the seconds from commit to readable, of records that come at an even rate."""
    seconds = []
    for epoch in epochs:
        span_ns = epoch.end_ns - epoch.start_ns
        ages = [
            epoch.committed_at_ns - epoch.start_ns - span_ns * (n + 0.5) / parts
            for n in range(parts)
        ]
        weight = max(1, math.ceil(span_ns / 1e8))
        seconds += [age / 1e9 for age in ages for _ in range(weight)]
    return sorted(seconds)


def measure(
    load: Load, file_format: str, epoch: Mapping[str, Any], executors: int, into: Path | None
) -> dict[str, Any]:
    """Run the load, and return the figures after the warm-up."""
    start_us = time.time_ns() // 1_000 + 2_000_000
    script = load.script(start_us)
    with ExitStack() as stack:
        host = stack.enter_context(synthetic_process(script))
        server = server_process()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stream = synthetic_stream(host)
        settings = service_settings(
            folder,
            stream,
            start_us * 1_000,
            epoch=epoch,
            file_format=file_format,
        )
        cluster = None
        if executors:
            cluster = Cluster(folder)
            stack.callback(cluster.stop)
            for _ in range(executors):
                cluster.add_worker()
            cluster.wait_for_workers(executors)
            settings["spark"] = {"master": cluster.master, "conf": cluster.conf}
        service = Service(settings, folder, os.environ | {"SPANNER_EMULATOR_HOST": host})
        time.sleep(max(0.0, start_us / 1e6 - time.time()))
        service.start()
        stack.callback(service.kill)
        service.wait_for_watermark(start_us * 1_000, seconds_max=120)
        watch = Watch(service, script, folder, server, file_format, cluster)
        watch.run(load.seconds - 30, into)
        service.drain()
        rows = watch.rows_left()
    return figures_of(watch, load, rows) | {"format": file_format, "epoch": epoch}


def epoch_settings(reading: Reading, every: str) -> dict[str, Any]:
    """Return the settings of epochs that a user with so many partitions would have."""
    if reading is Reading.BOUNDED:
        return {"trigger": every}
    return {"trigger": every, "reading": reading.value, "heartbeat": "2s", "reader_memory": 1_024}


def figures_of(watch: Watch, load: Load, rows: int) -> dict[str, Any]:
    """Return what is told of a run."""
    began_ns = watch.epochs[0].start_ns + round(WARM_UP_S * 1e9)
    settled = [epoch for epoch in watch.epochs if epoch.start_ns >= began_ns] or watch.epochs
    later = [s for s in watch.samples if s["minute"] * 60 >= WARM_UP_S] or watch.samples
    fresh = freshness(settled)
    seconds = (settled[-1].end_ns - settled[0].start_ns) / 1e9

    def median(name: str) -> float:
        return round(statistics.median(sample[name] for sample in later), 3)

    return {
        "load": {name: getattr(load, name) for name in load.__dataclass_fields__},
        "epochs_compared": len(watch.epochs),
        "epochs_wrong": watch.wrong,
        "rows_left": rows,
        "records_per_second": round(sum(epoch.records for epoch in settled) / seconds),
        "freshness_median_seconds": round(statistics.median(fresh), 2),
        "freshness_p99_seconds": round(percentile(fresh, 0.99), 2),
        "epoch_median_seconds": round(statistics.median(e.seconds for e in settled), 2),
        "lag_max_seconds": round(max(sample["lag_seconds"] for sample in later), 1),
        **{name: median(name) for name in later[0] if name.endswith("_cpu")},
        "service_mib_max": round(max(sample["service_mib"] for sample in later)),
        "samples": watch.samples,
    }


def draw(samples: Sequence[Mapping[str, float]], into: Path) -> None:
    """Draw lag, CPU, memory and partitions over the run as one PNG."""
    panels: Sequence[tuple[str, Sequence[str]]] = (
        ("lag and an epoch, s", ("lag_seconds", "epoch_seconds")),
        ("cores in use", [name for name in samples[0] if name.endswith("_cpu")]),
        ("memory of the service, MiB", ("service_mib",)),
        ("partitions", ("partitions",)),
    )
    draw_panels(samples, panels, into / "ceiling.png")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--records", type=int, default=60_000, help="a second")
    parser.add_argument("--bytes", type=int, default=1_049, help="of a record")
    parser.add_argument("--churn", type=int, default=100, help="splits and merges a minute")
    parser.add_argument("--format", choices=["parquet", "delta"], default="parquet")
    parser.add_argument("--reading", type=Reading, choices=list(Reading), default=Reading.BOUNDED)
    parser.add_argument("--executors", type=int, default=0, help="0: in the service's process")
    parser.add_argument("--every", default="0s", help="epoch.trigger")
    parser.add_argument("--into", type=Path, default=None)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load = Load(
        options.partitions, options.records, options.bytes, options.churn, options.minutes * 60
    )
    epoch = epoch_settings(options.reading, options.every)
    figures = measure(load, options.format, epoch, options.executors, options.into)
    if options.into is not None:
        draw(figures["samples"], options.into)
    tell({name: value for name, value in figures.items() if name != "samples"}, options.json)
    return 1 if figures["epochs_wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
