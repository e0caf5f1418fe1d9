"""What `run` shows on a terminal: a bar for a scan and for catching up, and the last epochs."""

from io import StringIO

from rich.console import Console

from slackwater.monitoring.live_view import LiveView
from slackwater.pipeline.catch_up import CatchUp, Pace
from slackwater.pipeline.epochs.report import EpochReport
from slackwater.pipeline.progress import Progress
from slackwater.state.task_metrics import TaskMetrics
from slackwater.timestamp import seconds_to_ns

SECOND_NS = seconds_to_ns(1)
BAR = "━"


def epoch(catch_up: CatchUp) -> EpochReport:
    return EpochReport(
        epoch=1,
        start_ns=0,
        low_watermark_ns=SECOND_NS,
        records=7,
        written=7,
        transactions=3,
        late_records=0,
        partitions=2,
        lag_ns=SECOND_NS,
        catch_up=catch_up,
        seconds=0.4,
        stages_ms={},
        read_ms=1,
        sink_ms=1,
        begun_ns=0,
        durable_ns=SECOND_NS,
        measures=TaskMetrics(),
    )


class Screen:
    """A terminal, and what was drawn on it last."""

    def __init__(self) -> None:
        self._out = StringIO()
        console = Console(file=self._out, force_terminal=True, width=100, color_system=None)
        self.view = LiveView("orders", console)
        self.view.__enter__()

    def drawn(self) -> str:
        text = self._out.getvalue()
        self._out.seek(0)
        self._out.truncate()
        return text


def test_a_scan_has_a_bar_with_its_share_and_the_time_left() -> None:
    screen = Screen()
    screen.view.scanned("orders", Progress(total=8, done=2, done_before=0, seconds=30))
    text = screen.drawn()
    assert "initial scan: 25 %, about 90 s left" in text
    assert BAR in text
    screen.view.scanned("orders", Progress(total=8, done=2, done_before=2, seconds=30))
    assert "initial scan: 25 %\n" in screen.drawn()


def test_a_pipeline_that_is_behind_has_a_bar_until_it_has_caught_up() -> None:
    screen = Screen()
    bars = []
    for lag_s in (100.0, 75.0, 25.0):
        behind = CatchUp(Pace.CATCHES_UP, lag_s=lag_s, caught_up_in_s=lag_s / 2)
        screen.view.epoch_committed("orders", epoch(behind))
        text = screen.drawn()
        assert behind.text() in text
        assert "21 records" in text or lag_s > 25.0
        bars.append(text.splitlines()[-1])
    assert 0 == bars[0].count(BAR) < bars[1].count(BAR) < bars[2].count(BAR)
    screen.view.epoch_committed("orders", epoch(CatchUp(Pace.KEEPS_UP, lag_s=1.0)))
    text = screen.drawn()
    assert "Keeps up" in text
    assert BAR not in text.splitlines()[-1]
