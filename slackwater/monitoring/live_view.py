"""Shows a running pipeline on a terminal."""

from __future__ import annotations

from collections import deque
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from slackwater.pipeline.epochs.report import EpochReport

_SHOWN: Final = 12
_COLUMNS: Final = (
    ("epoch", "epoch"),
    ("low_watermark", "low watermark"),
    ("lag_seconds", "lag (s)"),
    ("records", "records"),
    ("transactions", "transactions"),
    ("partitions", "partitions"),
    ("seconds", "seconds"),
)


class LiveView:
    """A table of the last epochs, redrawn whenever one is committed; an Observer."""

    def __init__(self, pipeline: str, console: Console) -> None:
        self._pipeline = pipeline
        self._reports: deque[EpochReport] = deque(maxlen=_SHOWN)
        self._records = 0
        self._live = Live(self._table(), console=console, auto_refresh=False)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.__exit__(None, None, None)

    def epoch_committed(self, pipeline: str, report: EpochReport) -> None:
        """Add the epoch to the table."""
        del pipeline
        self._reports.append(report)
        self._records += report.records
        self._live.update(self._table(), refresh=True)

    def failed(self, pipeline: str) -> None:
        """Do nothing: the log shows it."""

    def _table(self) -> Table:
        table = Table(title=f"{self._pipeline}: {self._records} records since the start")
        table.caption = self._reports[-1].catch_up.text() if self._reports else None
        for _, heading in _COLUMNS:
            table.add_column(heading, justify="right")
        for report in self._reports:
            fields = report.fields()
            table.add_row(*(str(fields[name]) for name, _ in _COLUMNS))
        return table
