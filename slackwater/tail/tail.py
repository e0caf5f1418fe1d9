"""The tail of a change stream on a terminal, like CockroachDB's core changefeeds.

The epochs are those of any pipeline, read in this process and without Spark: an epoch is read,
audited, put into commit order and written; then nothing up to its low watermark is missing. No
state is kept: another tail continues from the last resolved line.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from slackwater.errors import TailOptionError
from slackwater.pipeline.epochs.audit import audit_written, planned_epoch
from slackwater.scheduler.audit import SinkCounts
from slackwater.scheduler.epoch_planner import EpochPlanner
from slackwater.scheduler.epoch_span import EPOCHS_CONSIDERED
from slackwater.scheduler.options import SourceOptions
from slackwater.state.epochs import prune_epochs, record_epoch
from slackwater.state.models import Epoch, Plan
from slackwater.state.store import Store
from slackwater.tail.line_format import LineFormatter
from slackwater.timestamp import floor_to_us, ms_to_seconds, us_to_ns

# The least time from one epoch's start to the next one's: each costs a query per partition.
_EPOCH_S_MIN: Final = 0.2
Scan = Callable[[int], Iterator[pa.RecordBatch]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TailedEpochs(Generic[T]):
    """The epochs of a source; a plan's tasks are of type T.

    Attributes:
        planner: plans them.
        read: reads the records of a task.
        schema: their columns.
        order: the columns that order them, as Arrow's sort_by takes them.
        is_cut_by_time: an epoch holds the records of a time, and no others.
    """

    planner: EpochPlanner[T, Any]
    read: Callable[[T], Iterator[pa.RecordBatch]]
    schema: pa.Schema
    order: Sequence[tuple[str, str]]
    is_cut_by_time: bool = True


class Tail(Generic[T]):
    """A tail, which reads epochs and writes their lines.

    Args:
        options: the source's options, as for Spark.
        epochs: the source's.
        store: the metadata store.
        formatter: turns records into lines.
        write: takes whole lines.
        scan: yields the rows as of a time in nanoseconds, to be written first; None for no
            initial scan.
        is_scan_only: end when the rows are written.
    """

    def __init__(
        self,
        options: SourceOptions[Any],
        epochs: TailedEpochs[T],
        store: Store,
        formatter: LineFormatter,
        write: Callable[[str], None],
        *,
        scan: Scan | None = None,
        is_scan_only: bool = False,
    ) -> None:
        self._options = options
        self._epochs = epochs
        self._planner = epochs.planner
        self._store = store
        self._formatter = formatter
        self._write = write
        self._scan = scan
        self._is_scan_only = is_scan_only
        self._resolved_at: float | None = None
        self._resolved_ns: int | None = None

    def run(self) -> None:
        """Write until the end_time, if there is one, or until interrupted.

        Raises:
            TailOptionError: the end_time lies before the start.
            ReaderError, SchedulerError, StateError: the source or the store failed. The output
                is correct, and complete up to the last resolved line.
        """
        watermark_ns = self._planner.first_watermark_ns()
        end_ns = self._options.end_ns
        if end_ns is not None and end_ns < watermark_ns:
            raise TailOptionError(
                "--end-time has passed, and without --cursor only changes from now on are written.",
                "Use a --cursor before it",
            )
        self._write(self._formatter.header())
        self._planner.plan_first(watermark_ns)
        self._planner.commit(watermark_ns)
        if self._scan is not None:
            self._write_scan(self._scan, watermark_ns)
        while not self._is_over(watermark_ns):
            began = time.monotonic()
            watermark_ns = self._write_epoch(watermark_ns)
            time.sleep(max(0.0, _EPOCH_S_MIN - (time.monotonic() - began)))
        self._write_resolved(watermark_ns, is_last=True)

    def _is_over(self, watermark_ns: int) -> bool:
        end_ns = self._options.end_ns
        return self._is_scan_only or (end_ns is not None and watermark_ns >= end_ns)

    def _write_scan(self, scan: Scan, watermark_ns: int) -> None:
        """Write the rows as of the time after which changes follow: no gap, nothing twice."""
        # Commit timestamps are whole microseconds.
        for batch in scan(floor_to_us(watermark_ns)):
            for text in self._formatter.lines(pa.Table.from_batches([batch])):
                self._write(text)

    def _write_epoch(self, start_ns: int) -> int:
        """Read one epoch, write its lines and return its low watermark."""
        began = time.monotonic()
        end_ns = self._planner.next_watermark_ns(start_ns)
        tasks = self._planner.plan(start_ns, end_ns)
        plan = planned_epoch(self._store, self._options.pipeline)
        records = pa.Table.from_batches(
            [batch for task in tasks for batch in self._epochs.read(task)], self._epochs.schema
        )
        self._audit(plan, records)
        for text in self._formatter.lines(records.sort_by(self._epochs.order)):
            self._write(text)
        self._planner.commit(end_ns)
        self._record(start_ns, end_ns, records.num_rows, time.monotonic() - began)
        self._write_resolved(end_ns)
        return end_ns

    def _audit(self, plan: Plan, records: pa.Table) -> None:
        commits = records["commit_timestamp"].cast(pa.int64())
        times = pc.min_max(commits).as_py() if self._epochs.is_cut_by_time else {}
        first_ns, last_ns = (
            None if (time_us := times.get(end)) is None else us_to_ns(time_us)
            for end in ("min", "max")
        )
        written = SinkCounts(records.num_rows, first_ns, last_ns)
        audit_written(self._store, plan, written, self._options.read.audit)

    def _record(self, start_ns: int, end_ns: int, records: int, seconds: float) -> None:
        """Record an epoch in the store, from which the next one's span is chosen."""
        prune_epochs(self._store, self._options.pipeline, keep=EPOCHS_CONSIDERED)
        if end_ns > start_ns:
            record_epoch(
                self._store,
                Epoch(
                    self._options.pipeline, start_ns, end_ns, records, 0, 0, time.time_ns(), seconds
                ),
            )

    def _write_resolved(self, watermark_ns: int, *, is_last: bool = False) -> None:
        least_ms, now = self._formatter.resolved_ms, time.monotonic()
        if least_ms is None or watermark_ns == self._resolved_ns:
            return
        is_due = self._resolved_at is None or now - self._resolved_at >= ms_to_seconds(least_ms)
        if is_due or is_last:
            self._resolved_at, self._resolved_ns = now, watermark_ns
            self._write(self._formatter.resolved_line(watermark_ns))
