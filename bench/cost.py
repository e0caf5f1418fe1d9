"""How cost grows: CPU-seconds of an epoch, a task, a partition's query, a record and a byte.

Each case is a service that reads live from a synthetic server, as bench.ceiling has it. The terms
are those that fit the CPU of all cases best, and none is below zero. By these terms it tells how
many cores a load takes.

    python -m bench.cost [--seconds 45] [--partitions 100000 --records 1000000 --bytes 1000
        --every 30] [--json FILE]
"""

import argparse
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.ceiling import Load
from bench.figures import tell
from bench.service import cpu_s, processes_of, service_settings, synthetic_stream
from slackwater.demo.service import Service
from slackwater.state.epochs import last_epochs
from slackwater.state.store import Store
from tests.synthetic.server import synthetic_process

# The JVM compiles meanwhile.
WARM_UP_S: Final = 75.0


@dataclass(frozen=True)
class Case:
    """A load, with the number of tasks among which its partitions are divided."""

    partitions: int
    records_per_s: int
    record_bytes: int
    tasks: int


# Far apart in each of the terms.
CASES: Final = (
    Case(2, 20, 600, 1),
    Case(2, 20, 600, 4),
    Case(1_000, 1_000, 600, 1),
    Case(1_000, 1_000, 600, 2),
    Case(1_000, 1_000, 600, 4),
    Case(10_000, 1_000, 600, 2),
    Case(100, 30_000, 300, 2),
    Case(100, 30_000, 2_000, 2),
)


# Whose cores are told: far beyond what two of them carry.
LOAD: Final = Case(100_000, 1_000_000, 1_000, 200)
EVERY_S: Final = 30.0


@dataclass(frozen=True)
class Spent:
    """What a service did in some time, and the CPU-seconds of all its processes."""

    epochs: int
    tasks: int
    queries: int
    records: int
    wire_bytes: int
    cpu_s: float


TERMS: Final = ("epochs", "tasks", "queries", "records", "wire_bytes")


def terms_of(spent: Sequence[Spent]) -> dict[str, float]:
    """Return the CPU-seconds of one of each, by the name of the count.

    Each case weighs the same: what is fitted are the shares of its CPU. A term that would be
    negative is left out.
    """
    names = list(TERMS)
    while True:
        shares = [[getattr(case, name) / case.cpu_s for name in names] for case in spent]
        fitted = np.linalg.lstsq(np.array(shares), np.ones(len(spent)), rcond=None)[0]
        lowest = int(fitted.argmin())
        if fitted[lowest] >= 0:
            return dict.fromkeys(TERMS, 0.0) | dict(zip(names, map(float, fitted), strict=True))
        names.pop(lowest)


def cores(terms: Mapping[str, float], load: Case, every_s: float) -> float:
    """Return how many cores a load keeps busy, with an epoch every so many seconds."""
    an_epoch = (
        terms["epochs"] + terms["tasks"] * load.tasks + terms["queries"] * load.partitions
    ) / every_s
    a_record = terms["records"] + terms["wire_bytes"] * load.record_bytes
    return an_epoch + a_record * load.records_per_s


def measure(case: Case, seconds: float) -> Spent:
    """Run a service for some time after its warm-up, and return what it did."""
    start_us = time.time_ns() // 1_000 + 2_000_000
    load = Load(case.partitions, case.records_per_s, case.record_bytes, 0, 60 + WARM_UP_S + seconds)
    with ExitStack() as stack:
        host = stack.enter_context(synthetic_process(load.script(start_us)))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = service_settings(folder, synthetic_stream(host), start_us * 1_000)
        settings["spark"]["master"] = f"local[{case.tasks},4]"
        service = Service(settings, folder, os.environ | {"SPANNER_EMULATOR_HOST": host})
        service.start()
        stack.callback(service.kill)
        service.wait_for_watermark(start_us * 1_000, seconds_max=120)
        time.sleep(WARM_UP_S)
        store = Store.open(settings["state"]["url"], migrate=False)
        stack.callback(store.close)
        since_ns, before_s = service.low_watermark_ns() or 0, _cpu_s(service)
        time.sleep(seconds)
        until_ns, after_s = service.low_watermark_ns() or 0, _cpu_s(service)
        epochs = [
            epoch
            for epoch in last_epochs(store, "bench", limit=10_000)
            if since_ns < epoch.end_ns <= until_ns
        ]
    records = sum(epoch.records for epoch in epochs)
    return Spent(
        len(epochs),
        len(epochs) * min(case.tasks, case.partitions),
        sum(epoch.partitions for epoch in epochs),
        records,
        records * case.record_bytes,
        after_s - before_s,
    )


def _cpu_s(service: Service) -> float:
    return sum(map(cpu_s, processes_of(service.pid)))


def fitted(seconds: float, load: Case = LOAD, every_s: float = EVERY_S) -> dict[str, Any]:
    """Measure all cases for so long; return the terms, how well they fit, and what a load takes."""
    spent = [measure(case, seconds) for case in CASES]
    terms = terms_of(spent)
    return {
        "microseconds": {name: round(term * 1e6, 4) for name, term in terms.items()},
        "fitted_share": [
            round(sum(terms[name] * getattr(case, name) for name in TERMS) / case.cpu_s, 2)
            for case in spent
        ],
        "load": asdict(load),
        "every_seconds": every_s,
        "cores": round(cores(terms, load, every_s), 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--partitions", type=int, default=LOAD.partitions)
    parser.add_argument("--records", type=int, default=LOAD.records_per_s, help="a second")
    parser.add_argument("--bytes", type=int, default=LOAD.record_bytes, help="of a record")
    parser.add_argument("--tasks", type=int, default=LOAD.tasks)
    parser.add_argument("--every", type=float, default=EVERY_S, help="seconds from epoch to epoch")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load = Case(options.partitions, options.records, options.bytes, options.tasks)
    tell(fitted(options.seconds, load, options.every), options.json)


if __name__ == "__main__":
    main()
