"""Observers: objects that are told of initial scans, committed epochs and failures."""

from collections.abc import Sequence

from slackwater.pipeline.epochs.report import EpochReport
from slackwater.pipeline.progress import Progress


class Observer:
    """An observer of pipelines; each call comes from a thread of the pipeline's own.

    A class of observers overrides what it has a use for.
    """

    def scanned(self, pipeline: str, progress: Progress) -> None:
        """Note the progress of the initial scan; its parts are those that Spanner made."""

    def epoch_committed(self, pipeline: str, report: EpochReport) -> None:
        """Note an epoch that is durable and recorded."""

    def failed(self, pipeline: str) -> None:
        """Note that the pipeline has failed; its state says whether it is tried again."""


class Observers(Observer):
    """Several observers that act as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def scanned(self, pipeline: str, progress: Progress) -> None:
        """Tell each observer the progress of the initial scan."""
        for observer in self._observers:
            observer.scanned(pipeline, progress)

    def epoch_committed(self, pipeline: str, report: EpochReport) -> None:
        """Tell each observer of an epoch that is durable and recorded."""
        for observer in self._observers:
            observer.epoch_committed(pipeline, report)

    def failed(self, pipeline: str) -> None:
        """Tell each observer that the pipeline has failed."""
        for observer in self._observers:
            observer.failed(pipeline)
