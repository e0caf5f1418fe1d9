"""The streaming query of a pipeline, as Spark runs it."""

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from slackwater.pipeline.epochs.writer import EpochWriter
from slackwater.pipeline.spark.jvm import last_progress, recent_progress
from slackwater.pipeline.spark.session import without_checksums

_LAST_WRITE_S_MAX: Final = 10.0
# Spark asks a source for its columns, and for offsets, in Python processes of their own, and gives
# up if one has not connected within ten seconds. With more of them at once than cores, all
# pipelines of a process would fail, and try again, together.
_STARTING: Final = threading.BoundedSemaphore(os.cpu_count() or 1)
_CONNECTED_S_MAX: Final = 30.0
_POLL_S: Final = 0.05
# Spark's status until a query's source has started.
_INITIALIZING: Final = "Initializing"


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """The settings with which a query is started.

    Attributes:
        name: Spark's name of the query: the pipeline's.
        format: the name of the Spark source.
        options: of the Spark source.
        checkpoint: Spark's checkpoint directory.
        trigger_ms: the time from one epoch's start to the next one's; 0 for no pause.
    """

    name: str
    format: str
    options: Mapping[str, str]
    checkpoint: str
    trigger_ms: int


class SparkQuery:
    """A query of Spark's whose epochs a writer writes; see slackwater.pipeline.query_runner.Query.

    Args:
        query: Spark's.
        writer: writes its epochs.
    """

    def __init__(self, query: StreamingQuery, writer: EpochWriter) -> None:
        self._query = query
        self._writer = writer

    @property
    def is_active(self) -> bool:
        """False when it has ended."""
        return self._query.isActive

    @property
    def is_busy(self) -> bool:
        """True while it works on an epoch, or looks for one."""
        return bool(self._query.status["isTriggerActive"])

    def error(self) -> BaseException | None:
        """Return why it failed; None if it did not."""
        return self._query.exception()

    def stop(self) -> None:
        """End it; a running epoch is left to be replayed."""
        self._query.stop()

    def stop_and_wait(self) -> None:
        """End it, and wait for a while until its last callback has left the sink."""
        self._query.stop()
        self._writer.wait_until_idle(_LAST_WRITE_S_MAX)

    def last_progress(self) -> str | None:
        """Return the JSON of the last progress; None before the first."""
        return last_progress(self._query)

    def recent_progress(self) -> list[str]:
        """Return the JSON of the last few, the newest last."""
        return recent_progress(self._query)


def start_query(spark: SparkSession, settings: QuerySettings, writer: EpochWriter) -> SparkQuery:
    """Start a query over the changes.

    Args:
        spark: a session with the source registered.
        settings: how to start it.
        writer: writes its epochs.
    """
    with _STARTING, without_checksums(spark):
        changes = spark.readStream.format(settings.format).options(**settings.options).load()
        query = (
            changes.writeStream.foreachBatch(writer.write)
            .option("checkpointLocation", settings.checkpoint)
            .trigger(processingTime=f"{settings.trigger_ms} milliseconds")
            .queryName(settings.name)
            .start()
        )
        _await_source(query)
    return SparkQuery(query, writer)


def _await_source(query: StreamingQuery) -> None:
    """Wait until the query's source has connected, or the query has failed."""
    until = time.monotonic() + _CONNECTED_S_MAX
    while (
        query.isActive
        and str(query.status["message"]).startswith(_INITIALIZING)
        and time.monotonic() < until
    ):
        time.sleep(_POLL_S)
