"""Details of the epochs that this process committed; the store has the rest."""

from collections import deque
from typing import Any, Final

from slackwater.pipeline.epochs.report import EpochReport
from slackwater.pipeline.observer import Observer
from slackwater.timestamp import ns_to_seconds

_EPOCHS_MAX: Final = 2_000


class EpochHistory(Observer):
    """The details of each pipeline's last epochs."""

    def __init__(self) -> None:
        self._reports: dict[str, deque[EpochReport]] = {}

    def epoch_committed(self, pipeline: str, report: EpochReport) -> None:
        """Remember the epoch."""
        self._reports.setdefault(pipeline, deque(maxlen=_EPOCHS_MAX)).append(report)

    def details(self, pipeline: str) -> dict[int, dict[str, Any]]:
        """Return each remembered epoch's details as JSON fields, by its low watermark in ns."""
        return {
            report.low_watermark_ns: {
                "lag_seconds": round(ns_to_seconds(report.lag_ns), 3),
                "size_bytes": report.measures.size_bytes,
                "freshness_seconds": _median(report.freshness_seconds()),
                "stages": {
                    stage: seconds
                    for stage, seconds in report.stage_seconds().items()
                    if stage != "all"
                },
            }
            for report in list(self._reports.get(pipeline, ()))
        }


def _median(counted: list[tuple[float, int]]) -> float | None:
    """Return the median of values, each with its count; None if there are no values."""
    half = sum(count for _, count in counted) / 2
    for value, count in sorted(counted):
        half -= count
        if half <= 0:
            return round(value, 3)
    return None
