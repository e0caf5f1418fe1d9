"""An initial scan is left and gone on with, without Spark, Spanner or a store."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from slackwater.pipeline import initial_scan
from slackwater.pipeline.initial_scan import InitialScan
from slackwater.pipeline.progress import Progress
from slackwater.state.models import DesiredState, Scan, ScanPart

RUN, PAUSE = DesiredState.RUNNING, DesiredState.PAUSED
SCAN = Scan("orders", 1_500, "", b"", "{}")
PARTS = [ScanPart(number, number, "T", b"") for number in range(4)]
STEPS = ["begin", *(f for n in range(4) for f in (f"chunk {n}", f"{25 * (n + 1)} %")), "end"]


class ScriptedPoller:
    """What is desired, look by look; then the pipeline is to run."""

    def __init__(self, *desired: DesiredState) -> None:
        self._desired = list(desired)

    def current(self) -> DesiredState:
        return self._desired.pop(0) if self._desired else RUN


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[bool, list[str]]]:
    """Return a function that runs a scan of four chunks: what it returned, and what it did."""

    def run(*desired: DesiredState) -> tuple[bool, list[str]]:
        calls: list[str] = []
        poller: Any = ScriptedPoller(*desired)
        nothing: Any = None
        sink: Any = SimpleNamespace(begin_scan=lambda *_: calls.append("begin"))
        observer: Any = SimpleNamespace(
            scanned=lambda _, progress: calls.append(f"{progress.percent} %")
        )
        scan = InitialScan(nothing, nothing, nothing, nothing, sink, nothing, poller, None)
        monkeypatch.setattr(initial_scan, "register_source", lambda *_: None)
        monkeypatch.setattr(scan, "_begun", lambda: (SCAN, PARTS))
        monkeypatch.setattr(scan, "_add", lambda _, chunk, parts: calls.append(f"chunk {chunk}"))
        monkeypatch.setattr(scan, "_end", lambda _: calls.append("end"))
        return scan.run(observer), calls

    return run


def test_the_rest_takes_as_long_as_what_was_done_since_it_was_resumed() -> None:
    assert Progress(120, 48, 0, 60.0).percent == 40
    assert Progress(120, 48, 0, 60.0).left_s == 90.0
    assert Progress(120, 60, 48, 12.0).left_s == 60.0
    assert Progress(120, 48, 48, 9.0).left_s is None
    assert Progress(120, 119, 0, 9.0).percent == 99
    assert (Progress(0, 0, 0, 0.0).percent, Progress(0, 0, 0, 0.0).left_s) == (100, 0.0)


def test_a_scan_adds_every_chunk(scanned: Callable[..., tuple[bool, list[str]]]) -> None:
    assert scanned() == (True, STEPS)


@pytest.mark.parametrize("looks", range(7))
def test_a_pause_that_is_soon_resumed_skips_nothing(
    scanned: Callable[..., tuple[bool, list[str]]], looks: int
) -> None:
    """The scan is left at the first look that sees the pause, and is gone on with later."""
    is_over, calls = scanned(*[RUN] * looks, PAUSE)
    done = [step for step in STEPS if "%" not in step][: max(0, looks - 1)]
    assert (is_over, [call for call in calls if "%" not in call]) == (False, done)
