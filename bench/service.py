"""Services that are measured: their settings, their change stream, the CPU of processes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream
from slackwater.timestamp import format_rfc3339
from tests.synthetic.server import CHANGE_STREAM


def synthetic_stream(host: str) -> ChangeStream:
    """Return the change stream of a synthetic server."""
    return ChangeStream("bench-project", "bench", "bench", CHANGE_STREAM, endpoint=plaintext(host))


def server_process() -> psutil.Process:
    """Return the process of the synthetic server, the only one that this process has spawned."""
    [server] = [p for p in psutil.Process().children() if "spawn_main" in " ".join(p.cmdline())]
    return server


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process, with those of its children that have ended."""
    try:
        return sum(process.cpu_times()[:4])
    except psutil.NoSuchProcess:
        return 0.0


def processes_of(pid: int) -> list[psutil.Process]:
    """Return a process and all that it has started.

    Raises:
        NoSuchProcess: of psutil; it has ended.
    """
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def service_settings(
    folder: Path,
    stream: ChangeStream,
    start_ns: int,
    *,
    end_ns: int | None = None,
    epoch: Mapping[str, Any] | None = None,
    state_url: str | None = None,
    file_format: str = "parquet",
    conf: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the settings of a pipeline bench without pauses and with all files in a folder."""
    return {
        "pipeline": "bench",
        "source": {
            "project": stream.project,
            "instance": stream.instance,
            "database": stream.database,
            "change_stream": stream.change_stream,
            "start": format_rfc3339(start_ns),
            "end": None if end_ns is None else format_rfc3339(end_ns),
        },
        "epoch": {"trigger": "0s", **(epoch or {})},
        "sink": {
            "format": file_format,
            "path": str(folder / "changes"),
            "checkpoint": str(folder / "checkpoint"),
        },
        "state": {"url": state_url or f"sqlite:///{folder / 'state.db'}"},
        "spark": {"master": "local[2,4]", "conf": dict(conf or {})},
    }
