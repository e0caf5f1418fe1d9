"""An initial scan is left and gone on with, without Spark, Spanner or a store."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from slackwater.errors import PipelineFailedError
from slackwater.pipeline import initial_scan
from slackwater.pipeline.initial_scan import InitialScan
from slackwater.pipeline.lifecycle import Lifecycle
from slackwater.pipeline.progress import Progress
from slackwater.pipeline.retries import Retries
from slackwater.pipeline.transitions import Action, RunMode
from slackwater.reader.errors import ReadTooOldError
from slackwater.spark_sink.errors import PublishError
from slackwater.state.models import DesiredState, PipelineState, Scan, ScanPart
from tests.support.pipeline_fakes import World

RUN, PAUSE = DesiredState.RUNNING, DesiredState.PAUSED
SCAN = Scan("orders", 1_500, "", b"", "{}")
PARTS = [ScanPart(number, number, "T", b"") for number in range(4)]
STEPS = ["begin", *(f for n in range(4) for f in (f"chunk {n}", f"{25 * (n + 1)} %")), "end"]


class Calls:
    """A scan of four chunks in a world without Spark, Spanner or a store.

    Args:
        desired: what is desired, look by look; then the pipeline is to run.
        failing: how often the second chunk fails before it is added.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, desired: Sequence[DesiredState], failing: int
    ) -> None:
        self.world = World(RunMode(stays=True))
        self.calls: list[str] = []
        looks = list(desired)
        lifecycle = Lifecycle(
            "orders",
            self.world,
            lambda: looks.pop(0) if looks else RUN,
            self.world.lifecycle.mode,
            self.world.clock,
        )
        lifecycle.without_query()
        sink: Any = SimpleNamespace(
            position=lambda _: None, begin_scan=lambda *_: self.calls.append("begin")
        )
        observer: Any = SimpleNamespace(
            scanned=lambda _, progress: self.calls.append(f"{progress.percent} %"),
            failed=self.world.failed,
        )
        lease: Any = self.world
        nothing: Any = None
        self._failing = failing
        retries = Retries(
            "the scan", lifecycle, self.world.is_lost, observer, "go on", self.world.spark_loss
        )
        self.scan = InitialScan(nothing, nothing, nothing, nothing, sink, lease, observer, retries)
        monkeypatch.setattr(initial_scan, "register_source", lambda *_: None)
        monkeypatch.setattr(self.scan, "_begun", lambda: (SCAN, PARTS))
        monkeypatch.setattr(self.scan, "_add", self._add)
        monkeypatch.setattr(self.scan, "_end", lambda _: self.calls.append("end"))

    def _add(self, _: Scan, chunk: int, parts: Sequence[ScanPart]) -> int:
        if chunk == 1 and self._failing:
            self._failing -= 1
            raise PublishError("the disk is full.", "Make room")
        self.calls.append(f"chunk {chunk}")
        return len(parts)


Run = Callable[..., tuple[Action | None, list[str]]]


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a scan of four chunks: what it returned, and what it did."""

    def run(*desired: DesiredState) -> tuple[Action | None, list[str]]:
        # The first look is that of the start.
        calls = Calls(monkeypatch, [RUN, *desired], 0)
        return calls.scan.run(), calls.calls

    return run


def test_the_rest_takes_as_long_as_what_was_done_since_it_was_resumed() -> None:
    assert Progress(120, 48, 0, 60.0).percent == 40
    assert Progress(120, 48, 0, 60.0).remaining_s == 90.0
    assert Progress(120, 60, 48, 12.0).remaining_s == 60.0
    assert Progress(120, 48, 48, 9.0).remaining_s is None
    assert Progress(120, 119, 0, 9.0).percent == 99
    assert (Progress(0, 0, 0, 0.0).percent, Progress(0, 0, 0, 0.0).remaining_s) == (100, 0.0)


def test_a_scan_adds_every_chunk(scanned: Run) -> None:
    assert scanned() == (None, STEPS)


@pytest.mark.parametrize("looks", range(7))
def test_a_pause_that_is_soon_resumed_skips_nothing(scanned: Run, looks: int) -> None:
    """The scan is left at the first look that sees the pause, and is gone on with later."""
    instead, calls = scanned(*[RUN] * looks, PAUSE, PAUSE)
    done = [step for step in STEPS if "%" not in step][: max(0, looks - 1)]
    assert (instead, [call for call in calls if "%" not in call]) == (Action.WAIT, done)


def test_a_scan_that_fails_to_begin_takes_the_output_over_before_it_tries_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls(monkeypatch, [], failing=0)
    failures = ["the answer was lost"]

    def begin(*_: object) -> None:
        if failures:
            raise PublishError(failures.pop())
        calls.calls.append("begin")

    sink = SimpleNamespace(position=lambda _: calls.calls.append("position"), begin_scan=begin)
    monkeypatch.setattr(calls.scan, "_sink", sink)
    assert calls.scan.run() is None
    assert calls.calls == ["position", *STEPS]


def test_a_chunk_that_fails_is_counted_and_shown_while_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = Calls(monkeypatch, [], failing=4)
    assert calls.scan.run() is None
    assert calls.calls == STEPS
    world = calls.world
    assert world.failures == 4
    assert (
        world.recorded[1:]
        == [
            (PipelineState.FAILED, "the disk is full. Make room"),
            (PipelineState.STARTING, ""),
        ]
        * 4
    )
    # 1, 2, 4 and 8 seconds.
    assert world.clock.now_s == pytest.approx(15, abs=1)


def test_a_scan_whose_time_is_too_old_is_to_be_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, [], failing=0)

    def add(*_: object) -> int:
        raise ReadTooOldError("the rows are gone.", "Name a later time")

    monkeypatch.setattr(calls.scan, "_add", add)
    with pytest.raises(PipelineFailedError, match="the rows are gone") as raised:
        calls.scan.run()
    assert "another pipeline name, path and checkpoint" in raised.value.hint
