"""The plots of docs/performance.md, drawn from the figures that python -m bench saves."""

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
    if "freshness" in figures:
        axes = _axes("seconds from commit to readable", "share of the records")
        for run in figures["freshness"]["runs"]:
            label = f"{run['format']}, {run['kind']}"
            axes.plot(run["percentiles_seconds"], _shares(run), label=label)
        axes.set_xlim(left=0)
        _save(axes, into / "freshness.png")


def draw_panels(
    samples: Sequence[Mapping[str, float]],
    panels: Sequence[tuple[str, Sequence[str]]],
    path: Path,
) -> None:
    """Draw samples over the minutes of a run as one PNG, with two panels a row.

    Args:
        samples: each with its minute.
        panels: for each the title, and the names of its figures.
        path: the file; its directory is made.
    """
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(10, 3 * rows), layout="constrained")
    minutes = [sample["minute"] for sample in samples]
    for axes, (title, names) in zip(figure.subplots(rows, 2).flat, panels, strict=True):
        for name in names:
            axes.plot(minutes, [sample[name] for sample in samples], label=name.partition("_")[0])
        axes.set_title(title, fontsize=10)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        if len(names) > 1:
            axes.legend(fontsize=8)
    figure.supxlabel("minutes", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


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
