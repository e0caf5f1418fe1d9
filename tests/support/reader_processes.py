"""The reader processes that run on this machine."""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.support.running_processes import running

_SECONDS_MAX: Final = 300
_MODULE: Final = "slackwater.scheduler.continuous.reader_process"


def readers(folder: Path | None = None) -> list[psutil.Process]:
    """The reader processes with their sockets below a folder; None for all."""
    return [process for process in running() if _is_reader(process, folder)]


@pytest.fixture
def sockets(short_folder: Path) -> Iterator[Path]:
    """Return a folder for sockets, whose reader processes end with the test."""
    yield short_folder
    for process in readers(short_folder):
        process.terminate()
        process.wait(_SECONDS_MAX)
    assert readers(short_folder) == []


def _is_reader(process: psutil.Process, folder: Path | None) -> bool:
    with suppress(psutil.Error):
        words = process.cmdline()
        is_there = process.status() != psutil.STATUS_ZOMBIE and _MODULE in words
        return is_there and (folder is None or any(str(folder) in word for word in words))
    return False


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Return a folder with a short path, as sockets need; a test's own may be too long."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)
