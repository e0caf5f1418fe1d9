"""The reader processes that run on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest

_MODULE: Final = "slackwater.scheduler.continuous.reader_process"


def readers(folder: Path) -> list[psutil.Process]:
    """The reader processes with their sockets below a folder."""
    running = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or ()
        if process.info["status"] != psutil.STATUS_ZOMBIE and _MODULE in words:
            running += [process] if any(str(folder) in word for word in words) else []
    return running


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Return a folder with a short path, as sockets need; a test's own may be too long."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)
