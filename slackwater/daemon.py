"""The daemon: one pipeline, epoch after epoch, until it is told to drain."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from reader.connection import Connection
from reader.errors import ReaderError
from scheduler.lineage import is_finished
from scheduler.source import FORMAT
from slackwater.epoch_report import EpochReport, Progress, parse_progress
from slackwater.errors import PipelineFailedError
from spark_sink.changelog import Changelog, EpochSummary
from state.epochs import prune_epochs, record_epoch
from state.facts import Epoch, Wanted
from state.store import Store

_POLL_S: Final = 0.05
_LAST_REPORT_S_MAX: Final = 2.0
EPOCHS_KEPT: Final = 10_000
_LAST_LINE: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)+(\w+Error): (.+)$", re.MULTILINE)


class Daemon:
    """Runs one pipeline in this process.

    Args:
        spark: a session with the source registered.
        pipeline: its name.
        options: of the Spark source.
        sink: where epochs go.
        checkpoint: Spark's checkpoint directory.
        trigger_ms: the time from one epoch's start to the next one's; 0 for no pause.
        store: the metadata store.
        connection: for Spanner's clock.
        on_epoch: called with each committed epoch, on a thread of its own.
        until_ns: stop after the epoch that reaches this low watermark; None for never.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        pipeline: str,
        options: Mapping[str, str],
        sink: Changelog,
        checkpoint: str,
        trigger_ms: int,
        store: Store,
        connection: Connection,
        on_epoch: Callable[[EpochReport], None],
        until_ns: int | None,
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._options = dict(options)
        self._sink = sink
        self._checkpoint = checkpoint
        self._trigger_ms = trigger_ms
        self._store = store
        self._connection = connection
        self._on_epoch = on_epoch
        self._until_ns = until_ns
        self._summaries: dict[int, EpochSummary] = {}
        self._reported = -1
        self._reached = threading.Event()
        self._drain = threading.Event()

    def run(self) -> None:
        """Run until the end, a signal or a failure; SIGTERM and SIGINT finish the epoch first.

        Raises:
            PipelineFailedError: the streaming query failed; nothing is lost, it can be run again.
        """
        self._store.set_wanted(self._pipeline, Wanted.RUNNING)
        listener = _Listener(self._committed)
        self._spark.streams.addListener(listener)
        # Spark's own handler would cancel the running epoch.
        former = {sig: signal.signal(sig, self._on_signal) for sig in _SIGNALS}
        try:
            query = self._start()
            self._watch(query)
        finally:
            for sig, handler in former.items():
                signal.signal(sig, handler)
            self._spark.streams.removeListener(listener)

    def _start(self) -> StreamingQuery:
        changes = self._spark.readStream.format(FORMAT).options(**self._options).load()
        return (
            changes.writeStream.foreachBatch(self._write)
            .option("checkpointLocation", self._checkpoint)
            .trigger(processingTime=f"{self._trigger_ms} milliseconds")
            .queryName(self._pipeline)
            .start()
        )

    def _write(self, changes: DataFrame, epoch: int) -> None:
        self._summaries[epoch] = self._sink.write(changes, epoch)

    def _watch(self, query: StreamingQuery) -> None:
        draining = False
        while query.isActive and not self._reached.is_set():
            if self._drain.is_set() and not draining:
                draining = True
                # The source offers no further epoch, so the one that runs is the last.
                self._store.set_wanted(self._pipeline, Wanted.DRAINING)
            if draining and not query.status["isTriggerActive"]:
                break
            time.sleep(_POLL_S)
        if failure := query.exception():
            raise _failure(failure)
        self._wait_for_last_report(query)
        query.stop()

    def _wait_for_last_report(self, query: StreamingQuery) -> None:
        """Spark tells its listeners a moment after it has committed."""
        last = query.lastProgress
        until = time.monotonic() + _LAST_REPORT_S_MAX
        while last is not None and self._reported < last.batchId and time.monotonic() < until:
            time.sleep(_POLL_S)

    def _committed(self, progress: Progress) -> None:
        """Spark has committed an epoch, or found nothing new."""
        try:
            if progress.is_epoch and progress.end_ns is not None:
                summary = self._summaries.pop(progress.epoch, None)
                self._store.commit_watermark(self._pipeline, progress.end_ns)
                if progress.start_ns is not None and summary is not None:
                    self._record(progress, progress.start_ns, progress.end_ns, summary)
        finally:
            self._reported = progress.epoch
            # A store that fails here must not keep the program from ending.
            if self._until_ns is not None and (progress.end_ns or 0) >= self._until_ns:
                self._reached.set()

    def _record(
        self, progress: Progress, start_ns: int, end_ns: int, summary: EpochSummary
    ) -> None:
        lineage = self._store.lineage_at(self._pipeline, end_ns)
        partitions = [p for p in lineage if not is_finished(p, end_ns)]
        report = EpochReport(
            epoch=progress.epoch,
            start_ns=start_ns,
            low_watermark_ns=end_ns,
            records=summary.records,
            transactions=summary.transactions,
            partitions=len(partitions),
            lag_ns=self._lag_ns(end_ns),
            seconds=progress.seconds,
            stages_ms=progress.stages_ms,
        )
        record_epoch(
            self._store,
            Epoch(
                pipeline=self._pipeline,
                start_ns=start_ns,
                end_ns=end_ns,
                records=report.records,
                transactions=report.transactions,
                partitions=report.partitions,
                committed_at_ns=time.time_ns(),
                seconds=report.seconds,
            ),
        )
        if progress.epoch % 1_000 == 0:
            prune_epochs(self._store, self._pipeline, keep=EPOCHS_KEPT)
        self._on_epoch(report)

    def _lag_ns(self, end_ns: int) -> int:
        with suppress(ReaderError):
            return self._connection.strong_read_timestamp_ns() - end_ns
        return time.time_ns() - end_ns

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._drain.set()


_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class _Listener(StreamingQueryListener):
    def __init__(self, on_progress: Callable[[Progress], None]) -> None:
        self._on_progress_parsed = on_progress

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self._on_progress_parsed(parse_progress(json.loads(event.progress.json)))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        pass


def _failure(failure: StreamingQueryException) -> PipelineFailedError:
    """One clear message: our own error where one stands behind Spark's."""
    text = str(failure)
    ours = _LAST_LINE.findall(text)
    message = ours[-1][1] if ours else text.splitlines()[0]
    return PipelineFailedError(
        f"the pipeline failed: {message}",
        "Nothing is lost: run it again when the cause is mended. --debug shows the whole trace",
    )
