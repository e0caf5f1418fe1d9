"""The settings of services that are measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slackwater.reader.change_stream import ChangeStream
from slackwater.timestamp import format_rfc3339


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
