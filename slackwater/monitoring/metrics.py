"""What a process counts, for Prometheus; names and units by Prometheus' conventions.

What an epoch carried is counted as it is committed; where a pipeline stands is asked when it is
scraped, of the metadata store and the pipeline's run.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

import psutil
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from slackwater.monitoring.status import PipelineStatus
from slackwater.pipeline.epoch_report import EpochReport
from slackwater.scheduler.lineage import PartitionState
from slackwater.state.models import PipelineState
from slackwater.timestamp import ms_to_seconds, ns_to_seconds

_PIPELINE: Final = ["pipeline"]
_SECONDS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 30, 60, 300, 3_600)
_SHORT: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """The counters of one process, and its registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._records = self._counter("records", "Data change records that were written.")
        self._late = self._counter("late_records", "Records that came after their own epoch.")
        self._bytes = self._counter("bytes", "Size of the records, as Arrow holds them.")
        self._transactions = self._counter("transactions", "Transactions that were written.")
        self._epochs = self._counter("epochs", "Epochs that were committed.")
        self._queries = self._counter("partition_queries", "Partition queries that have ended.")
        self._stalls = self._counter("stalls", "Partition queries cancelled for their silence.")
        self._failures = self._counter("failures", "Failures of the pipeline, tried again or not.")
        self._retries = self._counter("retries", "Partition queries opened again.", "code")
        self._mods = self._counter("mods", "Changes of rows.", "table", "mod_type")
        self._freshness = WeightedHistogram(
            "slackwater_freshness_seconds",
            "From a record's commit in Spanner to durable.",
            _SECONDS,
        )
        self.registry.register(self._freshness)
        self._epoch = self._histogram(
            "epoch_seconds", "How long epochs took, by stage; all for the whole.", _SHORT, "stage"
        )
        self._delay = self._histogram(
            "child_start_delay_seconds",
            "From the end of a child partition's last parent to its own first query.",
            _SHORT,
        )
        self._store = self._histogram(
            "store_seconds", "How long the metadata store took to answer one read.", _SHORT
        )

    def begin(self, pipeline: str) -> None:
        """Show a pipeline's counters from 0 on."""
        for metric in (
            self._records,
            self._late,
            self._bytes,
            self._transactions,
            self._epochs,
            self._queries,
            self._stalls,
            self._failures,
            self._delay,
        ):
            metric.labels(pipeline)
        self._freshness.begin(pipeline)

    def epoch_committed(self, pipeline: str, report: EpochReport) -> None:
        """Add a committed epoch."""
        measures = report.measures
        self._records.labels(pipeline).inc(report.records)
        self._late.labels(pipeline).inc(report.late_records)
        self._bytes.labels(pipeline).inc(measures.size_bytes)
        self._transactions.labels(pipeline).inc(report.transactions)
        self._epochs.labels(pipeline).inc()
        self._queries.labels(pipeline).inc(measures.queries)
        self._stalls.labels(pipeline).inc(measures.stalls)
        for code, count in measures.retries.items():
            self._retries.labels(pipeline, code).inc(count)
        for (table, mod_type), count in measures.mods.items():
            self._mods.labels(pipeline, table, mod_type).inc(count)
        self._freshness.observe(pipeline, report.freshness_seconds())
        for milliseconds in measures.child_delays_ms:
            self._delay.labels(pipeline).observe(ms_to_seconds(milliseconds))
        for stage, seconds in report.stage_seconds().items():
            self._epoch.labels(pipeline, stage).observe(seconds)

    def failed(self, pipeline: str) -> None:
        """Add a failure."""
        self._failures.labels(pipeline).inc()

    def observe_store(self, pipeline: str, seconds: float) -> None:
        """Add an answer of the metadata store."""
        self._store.labels(pipeline).observe(seconds)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"slackwater_{name}", what, [*_PIPELINE, *labels], registry=self.registry)

    def _histogram(self, name: str, what: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(
            f"slackwater_{name}",
            what,
            [*_PIPELINE, *labels],
            buckets=buckets,
            registry=self.registry,
        )


class WeightedHistogram(Collector):
    """A histogram to which a value can be added many times at once.

    Args:
        name, what: as Prometheus shows them.
        bounds: of the buckets, rising.
    """

    def __init__(self, name: str, what: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._what = what
        self._bounds = (*bounds, math.inf)
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def begin(self, pipeline: str) -> None:
        """Show a pipeline's buckets from 0 on."""
        self._counts.setdefault(pipeline, [0] * len(self._bounds))
        self._sums.setdefault(pipeline, 0.0)

    def observe(self, pipeline: str, found: Iterable[tuple[float, int]]) -> None:
        """Add values, each with how often it was seen."""
        self.begin(pipeline)
        for value, count in found:
            self._counts[pipeline][bisect_left(self._bounds, value)] += count
            self._sums[pipeline] += value * count

    def collect(self) -> Iterator[Metric]:
        """The histogram."""
        family = HistogramMetricFamily(self._name, self._what, labels=_PIPELINE)
        for pipeline, counts in list(self._counts.items()):
            names = ["+Inf" if math.isinf(bound) else str(float(bound)) for bound in self._bounds]
            buckets = list(zip(names, accumulate(counts), strict=True))
            family.add_metric([pipeline], buckets, self._sums[pipeline])
        yield family


class StatusCollector(Collector):
    """Where each pipeline stands at the time of the scrape, and the process's memory."""

    def __init__(self, look: Callable[[], Sequence[PipelineStatus]]) -> None:
        self._look = look

    def describe(self) -> Iterable[Metric]:
        """Nothing before it is asked."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The gauges."""
        yield from _statuses(self._look())
        yield _memory()


def _gauge(name: str, what: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"slackwater_{name}", what, labels=[*_PIPELINE, *labels])


def _statuses(found: Sequence[PipelineStatus]) -> Iterator[Metric]:
    state = _gauge("state", "1 for the state that the pipeline is in.", "state")
    owner = _gauge("is_owner", "1 where this process runs the pipeline, 0 where it stands by.")
    watermark = _gauge("low_watermark_timestamp_seconds", "Everything before it is written.")
    lag = _gauge("low_watermark_lag_seconds", "How far the low watermark is behind Spanner.")
    used = _gauge("retention_used_ratio", "The lag as a share of the retention period.")
    partitions = _gauge("partitions", "Change stream partitions that are remembered.", "state")
    queries = _gauge("open_queries", "Partition queries that have run for over two seconds.")
    stalled = _gauge("stalled_partitions", "Of these, those that hold the low watermark back.")
    for one in found:
        name = one.known.name
        for each in PipelineState:
            state.add_metric([name, each.value], float(one.known.state is each))
        owner.add_metric([name], float(one.is_owner))
        for kind in PartitionState:
            partitions.add_metric([name, kind.value], one.by_state[kind])
        queries.add_metric([name], len(one.queries))
        stalled.add_metric([name], len(one.stalled))
        if one.known.low_watermark_ns is not None and one.lag_ns is not None:
            watermark.add_metric([name], ns_to_seconds(one.known.low_watermark_ns))
            lag.add_metric([name], ns_to_seconds(one.lag_ns))
        if one.retention_used is not None:
            used.add_metric([name], one.retention_used)
    yield from (state, owner, watermark, lag, used, partitions, queries, stalled)


def _memory() -> Metric:
    """Resident memory of this process, of Spark's JVM and of its Python workers."""
    gauge = GaugeMetricFamily(
        "slackwater_resident_memory_bytes", "Resident memory.", labels=["process"]
    )
    sums = {"driver": psutil.Process().memory_info().rss, "jvm": 0, "workers": 0}
    for child in psutil.Process().children(recursive=True):
        try:
            kind = "jvm" if child.name() == "java" else "workers"
            sums[kind] += child.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    for kind, size_bytes in sums.items():
        gauge.add_metric([kind], size_bytes)
    return gauge
