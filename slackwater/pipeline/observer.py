"""Who hears of what a pipeline's run does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slackwater.pipeline.epoch_report import EpochReport


class Observer(Protocol):
    """Is told of one pipeline, each call on a thread of the pipeline's own."""

    def epoch_committed(self, pipeline: str, report: EpochReport) -> None:
        """An epoch is durable and noted."""

    def failed(self, pipeline: str) -> None:
        """The pipeline has failed; whether it will try again is in its state."""


class Observers:
    """Several observers as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def epoch_committed(self, pipeline: str, report: EpochReport) -> None:
        """See Observer."""
        for observer in self._observers:
            observer.epoch_committed(pipeline, report)

    def failed(self, pipeline: str) -> None:
        """See Observer."""
        for observer in self._observers:
            observer.failed(pipeline)
