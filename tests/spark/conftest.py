"""No test leaves a service running that others would have to share the machine with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil
import pytest


@pytest.fixture(autouse=True)
def _no_service_is_left() -> Iterator[None]:
    yield
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "slackwater.cli" in child.cmdline():
                for process in (child, *child.children(recursive=True)):
                    process.kill()
