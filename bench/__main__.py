"""Runs all measurements: prints a table, and saves the figures as JSON and plots.

    python -m bench [--only SECTION ...] [--go PATH] [--into docs/performance]

A section that is not measured keeps the figures of its last run. All take an hour.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import pyspark
from rich.console import Console
from rich.table import Table

from bench import (
    continuous,
    cost,
    freshness,
    kafka_delivery,
    landing,
    partitions,
    plots,
    read_cpu,
    reading,
    scan,
    start,
    tail,
)

Figures = dict[str, Any]
Run = tuple[Callable[..., Figures], tuple[Any, ...]]
_LANDINGS: Final = tuple(
    landing.Workload(records=an_epoch * epochs, epochs=epochs)
    for an_epoch, epochs in (
        (10_000, 12),
        (50_000, 8),
        (200_000, 6),
        (1_000_000, 3),
        (5_000_000, 1),
    )
)
_OPEN_QUERIES: Final = (
    continuous.Load(10, 1, 1_000, 1),
    continuous.Load(1_000, 1, 1_000, 1),
    continuous.Load(10_000, 10, 1_000, 10),
)
_PARTITIONS: Final = (10, 100, 1_000, 3_000, 10_000)


def sections(go: str | None) -> Mapping[str, list[Run]]:
    """Return the measurements by section: functions and their arguments."""
    return {
        "reading": [(reading.measure, (case, 3, go)) for case in reading.CASES],
        "landing": [(landing.measure, (landed,)) for landed in _LANDINGS],
        "landing_delta": [(landing.measure, (landing.Workload(), "delta"))],
        "partitions": [
            *((partial(partitions.measure, churn=False), (n, "sqlite")) for n in _PARTITIONS),
            (partial(partitions.measure, churn=False), (10_000, "postgresql")),
            (partial(partitions.measure, churn=True), (1_000, "sqlite")),
            (partial(partitions.measure, churn=False, moves=100), (10_000, "sqlite")),
        ],
        "cost": [(cost.fitted, (45.0,))],
        "continuous": [(continuous.compare, (load, 30)) for load in _OPEN_QUERIES],
        "freshness": [
            (freshness.measure, (60, 20, file_format, kind))
            for file_format, kind in (
                *(("parquet", "changelog"), ("delta", "changelog"), ("delta", "changelogs")),
                *(("delta", "mirror"), ("postgresql", "mirror")),
            )
        ],
        "kafka_delivery": [(kafka_delivery.measure, (10, 30))],
        "read_cpu": [(read_cpu.measure, (20_000, 3))],
        "tail": [(tail.measure, (5,))],
        "scan": [(scan.measure, (1_000_000,))],
        "start": [(start.measure, (5,))],
    }


def run(measure: Callable[..., Figures], arguments: tuple[Any, ...]) -> Figures:
    """Run one measurement in its own process, so that it counts only its own resources."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


def plain(figures: Figures) -> Iterator[tuple[str, str]]:
    """Yield the figures that fit in a line of the table."""
    for name, value in figures.items():
        if isinstance(value, dict):
            yield name, ", ".join(f"{key} {figure}" for key, figure in value.items())
        elif not isinstance(value, list):
            yield name, f"{value:,.3f}" if isinstance(value, float) else f"{value}"


def machine() -> dict[str, Any]:
    """Describe the machine and the versions."""
    return {
        "cpus": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "spark": pyspark.__version__,
        "at": datetime.now(UTC).isoformat(timespec="minutes"),
    }


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = sections(None)
    parser.add_argument("--only", nargs="*", choices=list(names), default=list(names))
    parser.add_argument("--go", help="path of spanner-change-streams-tail")
    parser.add_argument("--into", type=Path, default=Path("docs/performance"))
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    file = options.into / "last.json"
    figures: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    console = Console()
    for name, runs in sections(options.go).items():
        if name not in options.only:
            continue
        results = []
        for measure, arguments in runs:
            results.append(run(measure, arguments))
            table = Table(title=name, show_header=False)
            for row in plain(results[-1]):
                table.add_row(*row)
            console.print(table)
            sys.stdout.flush()
        figures[name] = {"machine": machine(), "runs": results}
        file.write_text(json.dumps(figures, indent=1) + "\n")
    plots.draw(figures, options.into)


if __name__ == "__main__":
    main()
