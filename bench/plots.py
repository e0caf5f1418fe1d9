"""The plots of docs/performance.md, drawn from the figures that python -m bench saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_SIZE: Final = (6.4, 3.6)


def draw(figures: Mapping[str, Any], into: Path) -> None:
    """Draw the plots that there are figures for, each as a PNG.

    Args:
        figures: by section, as bench.__main__ keeps them.
        into: a directory.
    """
    if "landing" in figures:
        runs = figures["landing"]["runs"]
        sizes = [run["records_an_epoch"] for run in runs]
        axes = _axes("records in an epoch", "MiB of a Python worker at most")
        axes.plot(sizes, [run["python_worker_mib_max"] for run in runs], marker="o")
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        _save(axes, into / "memory.png")
    if "partitions" in figures:
        runs = [
            run
            for run in figures["partitions"]["runs"]
            if not (run["churn"] or run.get("moves_per_second"))
        ]
        axes = _axes("idle partitions", "seconds an epoch, median")
        for store in dict.fromkeys(run["store"] for run in runs):
            mine = [run for run in runs if run["store"] == store]
            counts = [run["partitions"] for run in mine]
            seconds = [run["epoch_median_seconds"] for run in mine]
            axes.plot(counts, seconds, marker="o", label=store)
        axes.set_xscale("log")
        axes.set_yscale("log")
        _save(axes, into / "partitions.png")
    if "freshness" in figures:
        axes = _axes("seconds from commit to readable", "share of the records")
        for run in figures["freshness"]["runs"]:
            axes.plot(run["percentiles_seconds"], _shares(run), label=run["format"])
        axes.set_xlim(left=0)
        _save(axes, into / "freshness.png")


def _shares(run: Mapping[str, Any]) -> Sequence[float]:
    count = len(run["percentiles_seconds"]) - 1
    return [number / count for number in range(count + 1)]


def _axes(x: str, y: str) -> Axes:
    axes: Axes = Figure(figsize=_SIZE, layout="constrained").subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, alpha=0.3)
    return axes


def _save(axes: Axes, path: Path) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    assert isinstance(axes.figure, Figure)
    axes.figure.savefig(path, dpi=110)
