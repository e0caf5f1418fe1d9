"""Compaction: from time to time the many small files of epochs become few large ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.java import java_call_failed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


class Compaction:
    """Compacts tables at intervals, between two epochs.

    Args:
        compact: compacts one table; see TableFormat.compact().
        every_s: seconds between two compactions; None for never.
    """

    def __init__(self, compact: Callable[[SparkSession, str], None], every_s: float | None) -> None:
        self._compact = compact
        self._every_s = every_s
        self._last_s = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the interval has passed."""
        return self._every_s is not None and time.monotonic() - self._last_s >= self._every_s

    def run(self, spark: SparkSession, paths: Iterable[str]) -> None:
        """Compact the tables; one that fails is tried again at the next interval."""
        from pyspark.errors import PySparkException

        for path in paths:
            try:
                self._compact(spark, path)
            except (PublishError, PySparkException, java_call_failed()) as error:
                _log.warning("%s was not compacted: %s", path, str(error).partition("\n")[0])
        self._last_s = time.monotonic()
