"""What this process remembers of the epochs that it committed, beyond what the store keeps."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from slackwater.pipeline.epoch_report import EpochReport
from slackwater.timestamp import ns_to_seconds

_KEPT: Final = 2_000


class EpochHistory:
    """The details of the last epochs of each pipeline; an observer of their runs."""

    def __init__(self) -> None:
        self._reports: dict[str, deque[EpochReport]] = {}

    def epoch_committed(self, pipeline: str, report: EpochReport) -> None:
        """See slackwater.observer."""
        self._reports.setdefault(pipeline, deque(maxlen=_KEPT)).append(report)

    def failed(self, pipeline: str) -> None:
        """See slackwater.observer; the state says it."""

    def details(self, pipeline: str) -> dict[int, dict[str, Any]]:
        """Of each remembered epoch by its low watermark, as JSON shows them."""
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


def _median(found: list[tuple[float, int]]) -> float | None:
    """Of values that were each seen so often; None where there are none."""
    half = sum(count for _, count in found) / 2
    for value, count in sorted(found):
        half -= count
        if half <= 0:
            return round(value, 3)
    return None
