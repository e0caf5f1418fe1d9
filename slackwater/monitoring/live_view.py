"""The view of a running pipeline on a terminal."""

from collections import deque
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from slackwater.pipeline.catch_up import Pace, readable_duration
from slackwater.pipeline.epochs.report import EpochReport
from slackwater.pipeline.observer import Observer
from slackwater.pipeline.progress import Progress
from slackwater.printing import in_one_line

_SHOWN: Final = 12
_BAR_WIDTH: Final = 60
_COLUMNS: Final = (
    ("epoch", "epoch"),
    ("low_watermark", "low watermark"),
    ("lag_seconds", "lag (s)"),
    ("records", "records"),
    ("transactions", "transactions"),
    ("partitions", "partitions"),
    ("seconds", "seconds"),
)


class LiveView(Observer):
    """A table of the last epochs, redrawn whenever one is committed.

    There is a bar while the initial scan runs, and while the pipeline catches up.
    """

    def __init__(self, pipeline: str, console: Console) -> None:
        self._pipeline = pipeline
        self._reports: deque[EpochReport] = deque(maxlen=_SHOWN)
        self._records = 0
        # The largest since it last kept up.
        self._lag_max_s = 0.0
        self._live = Live(self._table(), console=console, auto_refresh=False)

    def __enter__(self) -> "LiveView":
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(None, None, None)

    def scanned(self, pipeline: str, progress: Progress) -> None:
        """Show the progress of the initial scan."""
        del pipeline
        seconds = progress.remaining_s
        remaining = "" if seconds is None else f", about {readable_duration(seconds)} left"
        text = f"initial scan: {progress.percent} %{remaining}"
        self._live.update(_bar(text, progress.done, progress.total), refresh=True)

    def epoch_committed(self, pipeline: str, report: EpochReport) -> None:
        """Add the epoch to the table."""
        del pipeline
        self._reports.append(report)
        self._records += report.records
        catch_up = report.catch_up
        if catch_up.pace is Pace.KEEPS_UP:
            self._lag_max_s = 0.0
            shown = Group(self._table(), Text(in_one_line(catch_up.text())))
        else:
            lag_s = catch_up.lag_s or 0.0
            self._lag_max_s = max(self._lag_max_s, lag_s)
            bar = _bar(catch_up.text(), self._lag_max_s - lag_s, self._lag_max_s)
            shown = Group(self._table(), bar)
        self._live.update(shown, refresh=True)

    def _table(self) -> Table:
        table = Table(title=Text(f"{self._pipeline}: {self._records} records since the start"))
        for _, heading in _COLUMNS:
            table.add_column(heading, justify="right")
        for report in self._reports:
            fields = report.fields()
            table.add_row(*(str(fields[name]) for name, _ in _COLUMNS))
        return table


def _bar(text: str, done: float, total: float) -> Group:
    return Group(
        Text(in_one_line(text)), ProgressBar(total=total, completed=done, width=_BAR_WIDTH)
    )
