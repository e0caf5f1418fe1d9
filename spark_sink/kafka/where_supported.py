"""Delivery exactly once where the broker has transactions, and at least once elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from slackwater.spark_sink.errors import TransactionsUnsupportedError
from slackwater.spark_sink.kafka.delivery import ClosingMessage, Delivery, Mark
from slackwater.spark_sink.sink import OutputPosition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)


class WhereSupported:
    """Chooses when the broker is first asked; see Delivery.

    Args:
        exactly_once: the way that needs transactions.
        at_least_once: the other way.
    """

    def __init__(self, exactly_once: Delivery, at_least_once: Delivery) -> None:
        self._chosen: Delivery | None = None
        self._exactly_once, self._at_least_once = exactly_once, at_least_once

    def send(self, message_rows: DataFrame, changes: DataFrame, mark: Mark) -> Collection[str]:
        """Send messages; see Delivery."""
        return self._choose(message_rows.sparkSession).send(message_rows, changes, mark)

    def close(self, spark: SparkSession, messages: Sequence[ClosingMessage], mark: Mark) -> None:
        """Send what follows; see Delivery."""
        self._choose(spark).close(spark, messages, mark)

    def partition_counts(self, spark: SparkSession, topics: Collection[str]) -> dict[str, int]:
        """Return the number of partitions of each topic; see Delivery."""
        return self._choose(spark).partition_counts(spark, topics)

    def size_max(self, spark: SparkSession, topic: str | None) -> int:
        """Return the size of the largest message that is taken; see Delivery."""
        return self._choose(spark).size_max(spark, topic)

    def position(self, spark: SparkSession) -> OutputPosition | None:
        """Return how far everything was sent; see Delivery."""
        if self._chosen is None:
            try:
                position = self._exactly_once.position(spark)
            except TransactionsUnsupportedError as error:
                _log.warning("sending at least once, not exactly once: %s", error.message)
                self._chosen = self._at_least_once
                return None
            self._chosen = self._exactly_once
            return position
        return self._chosen.position(spark)

    def _choose(self, spark: SparkSession) -> Delivery:
        if self._chosen is None:
            self.position(spark)
            assert self._chosen is not None  # noqa: S101 - chosen by position()
        return self._chosen
