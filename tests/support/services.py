"""The settings of services under test."""

from pathlib import Path
from typing import Any

from slackwater.reader.change_stream import ChangeStream


def settings(stream: ChangeStream, folder: Path, start: str) -> dict[str, Any]:
    """Return the settings of a pipeline orders with all files in a folder."""
    return {
        "pipeline": "orders",
        "source": {
            "project": stream.project,
            "instance": stream.instance,
            "database": stream.database,
            "change_stream": stream.change_stream,
            "start": start,
        },
        "epoch": {},
        "sink": {"path": str(folder / "changes"), "checkpoint": str(folder / "checkpoint")},
        "state": {"url": f"sqlite:///{folder / 'state.db'}"},
        "spark": {"master": "local[2,4]"},
    }
