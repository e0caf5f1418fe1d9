"""Writing an epoch: staged, audited, made visible; Spark calls it for each micro-batch."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

import structlog
from pyspark.sql import DataFrame, SparkSession
from structlog.contextvars import bound_contextvars

from slackwater.own_error import OwnError
from slackwater.pipeline.epochs.audit import AuditedEpoch, audit_written, planned_epoch
from slackwater.pipeline.failures import encoded
from slackwater.pipeline.lease_holder import LeaseHolder
from slackwater.scheduler.audit import SinkCounts
from slackwater.scheduler.read_options import AuditMode
from slackwater.spark_sink.output.dead_letters import spark_errors
from slackwater.spark_sink.sink import EpochSummary, Sink
from slackwater.state.models import Plan
from slackwater.state.store import Store
from slackwater.timestamp import datetime_to_ns, ns_to_datetime, seconds_to_ms

_log = structlog.get_logger("slackwater.pipeline.epochs.writer")

# Errors with a sufficient text; any other needs its stack to find the cause.
_EXPECTED: Final = (OwnError, *spark_errors())


@dataclass(frozen=True, slots=True)
class WrittenEpoch:
    """An epoch that is visible, and that Spark has not yet reported as committed.

    Attributes:
        summary: of its records.
        audited: the result of its audit.
        read_ms: how long its records took to be read and staged.
        sink_ms: how long the audit and the sink took to make it visible.
        durable_at_ns: when it was visible, by this machine's clock.
    """

    summary: EpochSummary
    audited: AuditedEpoch
    read_ms: int
    sink_ms: int
    durable_at_ns: int


class EpochWatch(Protocol):
    """An observer of each epoch, before and after it becomes visible."""

    def inspect(self, plan: Plan) -> None:
        """Inspect an epoch that is about to be published, by the plan that was audited."""

    def published(self, end_ns: int) -> None:
        """Act on an epoch that is visible, by its low watermark."""


class EpochWriter:
    """The writer of one pipeline's epochs into its sink.

    Args:
        spark: a session.
        pipeline: its name.
        sink: where epochs go.
        store: the metadata store.
        lease: the pipeline's, asked before an epoch becomes visible. The writer belongs to the
            lease that is held now: it is refused under any other one, also of this process.
        audit: the treatment of an epoch that fails the audit.
        watches: inspect each epoch.
        is_cut_by_time: an epoch holds the changes of a time, and no others.

    Raises:
        LeaseLostError: this process does not own the pipeline.
    """

    def __init__(
        self,
        spark: SparkSession,
        pipeline: str,
        sink: Sink,
        store: Store,
        lease: LeaseHolder,
        audit: AuditMode,
        watches: Sequence[EpochWatch] = (),
        *,
        is_cut_by_time: bool = True,
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._sink = sink
        self._store = store
        self._lease = lease
        self._generation = lease.generation
        self._audit = audit
        self._watches = watches
        self._is_cut_by_time = is_cut_by_time
        self._written: dict[int, WrittenEpoch] = {}
        self._writing = threading.Lock()

    def write(self, changes: DataFrame, epoch: int) -> None:
        """Write an epoch; writing it again after a failure leaves it there once.

        Raises:
            LeaseLostError: another process owns the pipeline; nothing was made visible.
            AuditError: the epoch breaks a promise, and the mode is to stop.
            StoreBehindError: the store was set back meanwhile.
            SinkError, StateError: the sink or the store failed.
            ReaderError: the schema can't be read, or the stream leaves changes out.
        """
        context = bound_contextvars(pipeline=self._pipeline, epoch=epoch)
        with self._writing, context:
            try:
                self._write(changes, epoch)
            except Exception as error:  # noqa: BLE001 - Spark gets it, in a form that it can read
                is_expected = isinstance(error, _EXPECTED)
                (_log.debug if is_expected else _log.error)("epoch failed", exc_info=True)
                raise encoded(error) from None

    def _write(self, changes: DataFrame, epoch: int) -> None:
        begun_s = time.monotonic()
        plan = planned_epoch(self._store, self._pipeline)
        summary = self._sink.stage(changes, epoch)
        read_s = time.monotonic()
        self._lease.check(self._generation)
        audited = audit_written(
            self._store,
            plan,
            _as_written(summary, has_times=self._is_cut_by_time),
            self._audit,
            generation=self._generation,
        )
        watermark = ns_to_datetime(plan.end_ns)
        for watch in self._watches:
            watch.inspect(plan)
        self._sink.publish(self._spark, epoch, summary, watermark)
        durable_at_ns, visible_s = time.time_ns(), time.monotonic()
        for watch in self._watches:
            watch.published(plan.end_ns)
        self._written[epoch] = WrittenEpoch(
            summary,
            audited,
            read_ms=seconds_to_ms(read_s - begun_s),
            sink_ms=seconds_to_ms(visible_s - read_s),
            durable_at_ns=durable_at_ns,
        )

    def pop_written(self, epoch: int) -> WrittenEpoch | None:
        """Return an epoch that this process wrote, once; None if another one wrote it."""
        return self._written.pop(epoch, None)

    def wait_until_idle(self, seconds_max: float) -> None:
        """Wait until the sink is not being written to, but no longer than seconds_max."""
        if self._writing.acquire(timeout=seconds_max):
            self._writing.release()


def _as_written(summary: EpochSummary, *, has_times: bool) -> SinkCounts:
    """Return the sink's counts of an epoch, for the audit."""
    if not has_times:
        return SinkCounts(summary.records, None, None)
    first, last = summary.commit_timestamp_min, summary.commit_timestamp_max
    return SinkCounts(summary.records, _ns(first), _ns(last))


def _ns(timestamp: datetime | None) -> int | None:
    return None if timestamp is None else datetime_to_ns(timestamp)
