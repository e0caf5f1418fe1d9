"""The metrics for Prometheus; names and units follow its conventions.

An epoch's records are counted when it is committed. The status of a pipeline is read at each
scrape, from its poller.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from itertools import accumulate
from platform import python_version
from typing import Final

import psutil
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from slackwater.monitoring.status import PipelineStatus
from slackwater.pipeline.epochs.report import EpochReport
from slackwater.pipeline.observer import Observer
from slackwater.pipeline.progress import Progress
from slackwater.reader.bigtable.positions import standing
from slackwater.scheduler.lineage import PartitionState
from slackwater.state.models import PipelineState
from slackwater.state.rescan_models import RescanState
from slackwater.state.verified_models import proof
from slackwater.timestamp import ms_to_seconds, ns_to_seconds

_PIPELINE: Final = ["pipeline"]
_SECONDS: Final = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 30, 60, 300, 3_600)
_SHORT: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics(Observer):
    """The counters of one process, and its registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        build = Info("slackwater_build", "The program's version.", registry=self.registry)
        build.info({"version": version("slackwater"), "python": python_version()})
        self._records = self._counter("records", "Data change records written.")
        self._late = self._counter("late_records", "Records that arrived after their own epoch.")
        self._bytes = self._counter("bytes", "Size of the records in Arrow.")
        self._transactions = self._counter("transactions", "Transactions written.")
        self._epochs = self._counter("epochs", "Epochs committed.")
        self._queries = self._counter(
            "partition_queries", "Partition queries that tasks have ended."
        )
        self._stalls = self._counter(
            "stalls", "Partition queries cancelled because they were silent."
        )
        self._failures = self._counter("failures", "Failures of the pipeline, retried or not.")
        self._retries = self._counter("retries", "Partition queries opened again.", "code")
        self._mods = self._counter("mods", "Row changes.", "table", "mod_type")
        self._freshness = WeightedHistogram(
            "slackwater_freshness_seconds",
            "Time from a record's commit in the source until it is durable.",
            _SECONDS,
        )
        self.registry.register(self._freshness)
        self._scan = Gauge(
            "slackwater_initial_scan_ratio",
            "The share of the initial scan that is done.",
            _PIPELINE,
            registry=self.registry,
        )
        self._epoch = self._histogram(
            "epoch_seconds",
            "Duration of epochs by stage; stage all is the whole epoch.",
            _SHORT,
            "stage",
        )
        self._delay = self._histogram(
            "child_start_delay_seconds",
            "Time from the end of a child partition's last parent to the child's first query.",
            _SHORT,
        )
        self._store = self._histogram(
            "store_seconds", "Time that one read of the metadata store took.", _SHORT
        )

    def begin(self, pipeline: str) -> None:
        """Show a pipeline's counters, starting at 0."""
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
        """Count a committed epoch."""
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

    def scanned(self, pipeline: str, progress: Progress) -> None:
        """Show the progress of the initial scan."""
        self._scan.labels(pipeline).set(progress.percent / 100)

    def failed(self, pipeline: str) -> None:
        """Count a failure."""
        self._failures.labels(pipeline).inc()

    def observe_store(self, pipeline: str, seconds: float) -> None:
        """Count one read of the metadata store."""
        self._store.labels(pipeline).observe(seconds)

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(
            f"slackwater_{name}", description, [*_PIPELINE, *labels], registry=self.registry
        )

    def _histogram(
        self, name: str, description: str, buckets: Sequence[float], *labels: str
    ) -> Histogram:
        return Histogram(
            f"slackwater_{name}",
            description,
            [*_PIPELINE, *labels],
            buckets=buckets,
            registry=self.registry,
        )


class WeightedHistogram(Collector):
    """A histogram to which a value can be added many times at once.

    Args:
        name, description: as Prometheus shows them.
        bounds: the buckets' upper bounds, ascending.
    """

    def __init__(self, name: str, description: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._description = description
        self._bounds = (*bounds, math.inf)
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def begin(self, pipeline: str) -> None:
        """Show a pipeline's buckets, starting at 0."""
        self._counts.setdefault(pipeline, [0] * len(self._bounds))
        self._sums.setdefault(pipeline, 0.0)

    def observe(self, pipeline: str, counted: Iterable[tuple[float, int]]) -> None:
        """Add values, each with its count."""
        self.begin(pipeline)
        for value, count in counted:
            self._counts[pipeline][bisect_left(self._bounds, value)] += count
            self._sums[pipeline] += value * count

    def collect(self) -> Iterator[Metric]:
        """Yield the histogram."""
        family = HistogramMetricFamily(self._name, self._description, labels=_PIPELINE)
        for pipeline, counts in list(self._counts.items()):
            names = ["+Inf" if math.isinf(bound) else str(float(bound)) for bound in self._bounds]
            buckets = list(zip(names, accumulate(counts), strict=True))
            family.add_metric([pipeline], buckets, self._sums[pipeline])
        yield family


class StatusCollector(Collector):
    """The status of each pipeline at the time of the scrape, and the process's memory."""

    def __init__(self, read_statuses: Callable[[], Sequence[PipelineStatus]]) -> None:
        self._read_statuses = read_statuses

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the gauges are only known at a scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        yield from _status_gauges(self._read_statuses())
        yield _memory()


def _gauge(name: str, description: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"slackwater_{name}", description, labels=[*_PIPELINE, *labels])


def _status_gauges(statuses: Sequence[PipelineStatus]) -> Iterator[Metric]:
    state = _gauge("state", "1 for the state the pipeline is in, 0 for the others.", "state")
    owner = _gauge("is_owner", "1 if this process runs the pipeline, 0 if it stands by.")
    watermark = _gauge(
        "low_watermark_timestamp_seconds", "The low watermark: everything before it is written."
    )
    lag = _gauge(
        "low_watermark_lag_seconds", "How far the low watermark is behind the source's clock."
    )
    used = _gauge("retention_used_ratio", "The lag as a share of the retention period.")
    catch_up = _gauge(
        "catch_up_seconds", "Time until the pipeline has caught up; +Inf if it is not catching up."
    )
    partitions = _gauge("partitions", "Change stream partitions in the metadata store.", "state")
    queries = _gauge("open_queries", "Partition queries that have run for more than two seconds.")
    stalled = _gauge(
        "stalled_partitions", "Partitions whose query was silent and has been opened again."
    )
    still = _gauge("standing_partitions", "Bigtable's partitions whose replication stands still.")
    proved = _gauge(
        "proved_equal_timestamp_seconds",
        "Each row of each mirror was found equal at this low watermark or a later one.",
    )
    different = _gauge(
        "different_mirrors", "Mirrors in which the last comparison found rows wrong."
    )
    running = _gauge("running_rescans", "Tables that are being read again.")
    silent = _gauge(
        "source_silent_seconds", "For how long the source has not answered; 0 while it does."
    )
    for status in statuses:
        pipeline = status.pipeline
        name = pipeline.name
        of_mirrors = proof(status.verified, pipeline.low_watermark_ns)
        if of_mirrors.equal_at_ns is not None:
            proved.add_metric([name], ns_to_seconds(of_mirrors.equal_at_ns))
        different.add_metric([name], len(of_mirrors.different))
        are_running = [rescan.state is RescanState.RUNNING for rescan in status.rescans]
        running.add_metric([name], sum(are_running))
        for pipeline_state in PipelineState:
            is_in_state = pipeline.state is pipeline_state
            # A label with a space is awkward to write in queries and paths.
            label = pipeline_state.value.replace(" ", "_")
            state.add_metric([name, label], float(is_in_state))
        owner.add_metric([name], float(status.is_owner))
        for partition_state in PartitionState:
            partitions.add_metric([name, partition_state.value], status.by_state[partition_state])
        queries.add_metric([name], len(status.queries))
        stalled.add_metric([name], len(status.stalled))
        still.add_metric([name], len(standing(status.positions)))
        silent.add_metric([name], status.source_silent_s or 0.0)
        if pipeline.low_watermark_ns is not None and status.lag_ns is not None:
            watermark.add_metric([name], ns_to_seconds(pipeline.low_watermark_ns))
            lag.add_metric([name], ns_to_seconds(status.lag_ns))
            caught_up_in_s = status.catch_up.caught_up_in_s
            catch_up.add_metric([name], math.inf if caught_up_in_s is None else caught_up_in_s)
        if status.retention_used is not None:
            used.add_metric([name], status.retention_used)
    yield from (state, owner, watermark, lag, used, catch_up, partitions, queries, stalled)
    yield from (still, proved, different, running, silent)


def _memory() -> Metric:
    """Return the resident memory of this process, of Spark's JVM and of its Python workers."""
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
