"""Pipelines that read a table of Bigtable's, with a history that the server makes meanwhile."""

import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from slackwater.demo.service import Service
from slackwater.timestamp import format_rfc3339, us_to_ns
from tests.support.waiting import wait_until
from tests.synthetic.bigtable.history import History, Shape, generate
from tests.synthetic.bigtable.server import bigtable_process

_SECONDS: Final = 20
_SECONDS_MAX: Final = 240


@pytest.fixture(scope="module")
def shape() -> Shape:
    # The stream begins before the pipelines do.
    start_us = time.time_ns() // 1_000
    return Shape(start_us=start_us, seconds=_SECONDS, churn_per_s=1, clusters=2, large=0.05)


@pytest.fixture(scope="module")
def history(shape: Shape) -> History:
    return generate(7, shape)


@pytest.fixture(scope="module")
def host(shape: Shape) -> Iterator[str]:
    with bigtable_process(partial(generate, 7, shape)) as host:
        yield host


def source(host: str) -> dict[str, Any]:
    names = {"project": "project", "instance": "instance", "table": "table"}
    return {"kind": "bigtable", **names, "endpoint": host, "plaintext": True}


def pipelines_of(
    formats: Sequence[str], shape: Shape, host: str, folder: Path
) -> tuple[Path, dict[str, Any]]:
    """Return a file, and settings for it: a pipeline for each format, up to the last change."""
    start, end = us_to_ns(shape.start_us), us_to_ns(shape.end_us + 2_000_000)
    places = {
        name: {"path": str(folder / name), "checkpoint": str(folder / f"{name}-checkpoint")}
        for name in formats
    }
    return folder / "slackwater.yaml", {
        "source": {**source(host), "start": format_rfc3339(start), "end": format_rfc3339(end)},
        "epoch": {"trigger": "500ms"},
        "state": {"url": f"sqlite:///{folder / 'state.db'}"},
        "pipelines": {n: {"sink": {"format": n, **place}} for n, place in places.items()},
    }


def run_with_a_kill(settings: dict[str, Any], folder: Path) -> Service:
    """Run pipelines, kill them when each has an epoch in its output, and run them to their end."""
    service = Service(settings, folder / "service", os.environ, dies_with_parent=True)
    service.start()
    commits = [folder / f"{name}-checkpoint" / "commits" for name in settings["pipelines"]]
    wait_until(lambda: all(list(of_one.glob("[0-9]*")) for of_one in commits))
    service.kill()
    service.start()
    assert service.wait(_SECONDS_MAX) == 0, service.log.read_text()[-3_000:]
    return service
