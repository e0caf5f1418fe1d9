"""The metrics of one task: counts and times, never a record's values."""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from heapq import nlargest
from typing import Final

import numpy as np
import pyarrow as pa

from slackwater.state.models import Plan
from slackwater.state.task_metrics import COMMITTED_STEPS, TaskMetrics, TracedQuery
from slackwater.timestamp import ms_to_ns, ns_to_us, seconds_to_ms

_TRACED_MAX: Final = 100


class MetricsCollector:
    """A collector of the metrics of one task's threads, from when the task begins; thread-safe.

    Args:
        plan: the epoch's plan; commit timestamps are counted in steps of its span.
        traces: True to keep when the longest queries ran.
    """

    def __init__(self, plan: Plan, *, traces: bool = False) -> None:
        self._begun_ns = time.time_ns()
        self._traces = traces
        self._traced: list[TracedQuery] = []
        self._start_us = ns_to_us(plan.start_ns)
        self._span_us = max(1, ns_to_us(plan.end_ns - plan.start_ns))
        self._lock = threading.Lock()
        self._size_bytes = 0
        self._queries = 0
        self._stalls = 0
        self._retries: Counter[str] = Counter()
        self._mods: Counter[tuple[str, str]] = Counter()
        self._committed: Counter[int] = Counter()
        self._delays_ms: list[int] = []

    def add_batch(self, batch: pa.RecordBatch, mods: Mapping[tuple[str, str], int]) -> None:
        """Count records that were delivered, in the output's columns; for one thread only.

        Args:
            batch: the records.
            mods: the number of changed rows in them, by table and type.
        """
        self._size_bytes += batch.nbytes
        self._mods.update(mods)
        times = batch.column("commit_timestamp").cast(pa.int64()).to_numpy()
        steps = (times - self._start_us) * COMMITTED_STEPS // self._span_us
        occurring, counts = np.unique(np.clip(steps, 0, COMMITTED_STEPS - 1), return_counts=True)
        self._committed.update(dict(zip(occurring.tolist(), counts.tolist(), strict=True)))

    def add_query(
        self, token: str, retried: Mapping[str, int], stalls: int, *, open_ms: int
    ) -> None:
        """Count a query that has just ended, open_ms after it was opened."""
        with self._lock:
            if self._traces:
                end_ns = time.time_ns()
                self._traced.append(TracedQuery(token, end_ns - ms_to_ns(open_ms), end_ns))
            self._queries += 1
            self._stalls += stalls
            self._retries.update(retried)

    def add_child_delay(self, seconds: float) -> None:
        """Add the time from the end of a child partition's last parent to its own first query."""
        with self._lock:
            self._delays_ms.append(seconds_to_ms(seconds))

    def metrics(self) -> TaskMetrics | None:
        """Return the sums; None if there is nothing worth reporting."""
        with self._lock:
            worth_reporting = (
                self._size_bytes,
                self._retries,
                self._stalls,
                self._delays_ms,
                self._traced,
            )
            if not any(worth_reporting):
                return None
            return TaskMetrics(
                self._size_bytes,
                self._queries,
                self._retries,
                self._stalls,
                self._mods,
                self._committed,
                tuple(self._delays_ms),
                tuple(nlargest(_TRACED_MAX, self._traced, key=lambda q: q.end_ns - q.start_ns)),
                self._begun_ns,
            )


def mods_in(batch: pa.RecordBatch) -> Counter[tuple[str, str]]:
    """Return the number of mods in data change records, by table and mod type."""
    table = pa.table(
        {
            "table_name": batch.column("table_name"),
            "mod_type": batch.column("mod_type"),
            "mods": batch.column("mods").value_lengths(),
        }
    )
    grouped = table.group_by(["table_name", "mod_type"]).aggregate([("mods", "sum")])
    return Counter(
        {(row["table_name"], row["mod_type"]): row["mods_sum"] or 0 for row in grouped.to_pylist()}
    )
