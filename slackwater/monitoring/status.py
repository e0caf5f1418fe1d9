"""Where a pipeline of this process stands: for the page, for Prometheus and for probes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from slackwater.monitoring.epoch_history import EpochHistory
from slackwater.monitoring.json_fields import (
    epoch_fields,
    gap_fields,
    partition_fields,
    query_fields,
    rfc3339_or_none,
)
from slackwater.pipeline.alerts import held_back_by, retention_used
from slackwater.pipeline.supervisor import PipelineSupervisor
from slackwater.reader.errors import ReaderError
from slackwater.scheduler.lineage import PartitionState, states
from slackwater.state.epochs import last_epochs
from slackwater.state.errors import StateError, StoreUnreachableError
from slackwater.state.gaps import gaps
from slackwater.state.models import OpenQuery, Partition, Pipeline, PipelineState
from slackwater.state.open_queries import open_queries, stalls
from slackwater.state.plans import latest_plan
from slackwater.timestamp import ns_to_seconds, seconds_to_ns

_log = structlog.get_logger("slackwater.monitoring.status")

_AHEAD_EVERY_S: Final = 15.0
_LOOK_EVERY_S: Final = 1.0
_FIRST_S_MAX: Final = 10.0
_STALE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """A pipeline at one moment.

    Attributes:
        known: what the metadata store says of it.
        is_owner: this process runs it.
        clock_ns: Spanner's clock, or this machine's while Spanner can't be asked.
        retention_ns: how long the change stream keeps records; None before it was looked up.
        partitions: the remembered ones.
        by_state: how many of them are in each state.
        queries: those that have been open for a while, the furthest behind first.
        held_back: the one that holds the low watermark back.
    """

    known: Pipeline
    is_owner: bool
    clock_ns: int
    retention_ns: int | None
    partitions: tuple[Partition, ...]
    by_state: Counter[PartitionState]
    queries: tuple[OpenQuery, ...]
    held_back: OpenQuery | None

    @property
    def lag_ns(self) -> int | None:
        """How far the low watermark is behind; None before the first epoch."""
        watermark_ns = self.known.low_watermark_ns
        return None if watermark_ns is None else self.clock_ns - watermark_ns

    @property
    def retention_used(self) -> float | None:
        """The lag as a share of the retention period."""
        watermark_ns = self.known.low_watermark_ns
        if watermark_ns is None or self.retention_ns is None:
            return None
        return retention_used(watermark_ns, clock_ns=self.clock_ns, retention_ns=self.retention_ns)

    @property
    def stalled(self) -> list[OpenQuery]:
        """Queries that were silent for so long that they were opened again."""
        return [query for query in self.queries if query.stalls]

    def unready(self) -> str | None:
        """Why the pipeline is not ready, None where it is: connected, owned and not stalled."""
        if self.retention_ns is None:
            return "the change stream was not looked up yet"
        if not self.is_owner:
            return f"standing by for {self.known.owner}"
        if self.known.state in (PipelineState.FAILED, PipelineState.FAILED_PERMANENTLY):
            return f"{self.known.state.value}: {self.known.state_reason}"
        if self.held_back is not None and self.held_back.stalls:
            return f"partition {self.held_back.token} is stalled"
        return None

    def fields(self) -> dict[str, Any]:
        """As JSON shows it."""
        known, lag_ns = self.known, self.lag_ns
        return {
            "pipeline": known.name,
            "source": known.source,
            "state": "not started" if known.state is None else known.state.value,
            "since": rfc3339_or_none(known.state_since_ns),
            "reason": known.state_reason or None,
            "wanted": known.desired_state.value,
            "owner": known.owner,
            "is_owner": self.is_owner,
            "low_watermark": rfc3339_or_none(known.low_watermark_ns),
            "lag_seconds": None if lag_ns is None else round(ns_to_seconds(lag_ns), 3),
            "retention_used": self.retention_used,
            "partitions": {state.value: self.by_state[state] for state in PartitionState},
            "held_back_by": None if self.held_back is None else query_fields(self.held_back),
            "stalled": [query_fields(query) for query in self.stalled],
        }


class StatusPoller:
    """Looks at one pipeline of this process once a second, in a thread of its own.

    Whoever asks is answered at once, also while the metadata store or Spanner does not answer.

    Args:
        supervisor: the pipeline's.
        history: what the process remembers of epochs.
        on_store_seconds: told how long the metadata store took to answer.
    """

    def __init__(
        self,
        supervisor: PipelineSupervisor,
        history: EpochHistory,
        on_store_seconds: Callable[[str, float], None],
    ) -> None:
        self.supervisor = supervisor
        self._history = history
        self._on_store_seconds = on_store_seconds
        self._seen: tuple[float, PipelineStatus] | None = None
        self._has_seen = threading.Event()
        self._stopped = threading.Event()
        self._ahead_ns = 0
        self._asked_s: float | None = None

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._watch, name="status", daemon=True).start()

    def stop(self) -> None:
        """End; a look that is under way is not waited for."""
        self._stopped.set()

    def look(self) -> PipelineStatus:
        """Where the pipeline stood when it was seen last, at the clock of now."""
        self._has_seen.wait(_FIRST_S_MAX)
        if self._seen is None:
            raise StoreUnreachableError(f"pipeline {self.supervisor.name!r} was not seen yet.")
        return replace(self._seen[1], clock_ns=time.time_ns() + self._ahead_ns)

    def unready(self) -> str | None:
        """Why the pipeline is not ready; see PipelineStatus.unready()."""
        reason = self.look().unready()
        assert self._seen is not None  # noqa: S101 - looked at
        seconds = time.monotonic() - self._seen[0]
        if reason is None and seconds >= _STALE_S:
            return f"the metadata store has not answered for {seconds:.0f} s"
        return reason

    def _watch(self) -> None:
        while not self._stopped.is_set():
            begun_s = time.monotonic()
            try:
                self._seen = begun_s, self._look()
                self._has_seen.set()
            except StateError as error:
                _log.debug("can't look", pipeline=self.supervisor.name, error=error.message)
            # A twentieth of the time at most, however many partitions there are.
            self._stopped.wait(max(_LOOK_EVERY_S, 20 * (time.monotonic() - begun_s)))

    def _look(self) -> PipelineStatus:
        supervisor = self.supervisor
        begun_s = time.monotonic()
        known = supervisor.store.pipeline(supervisor.name)
        self._on_store_seconds(supervisor.name, time.monotonic() - begun_s)
        assert known is not None  # noqa: S101 - made when the run was
        found = tuple(supervisor.store.partitions(supervisor.name))
        plan = latest_plan(supervisor.store, supervisor.name)
        is_open = plan is not None and plan.end_ns > (known.low_watermark_ns or 0)
        queries = open_queries(supervisor.store, plan.plan_id) if plan and is_open else []
        source = supervisor.source
        return PipelineStatus(
            known=known,
            is_owner=supervisor.lease.is_held,
            clock_ns=time.time_ns() + self._ahead(),
            retention_ns=None if source is None else source.description.retention_ns,
            partitions=found,
            by_state=Counter(states(found, known.low_watermark_ns or 0).values()),
            queries=tuple(queries),
            held_back=held_back_by(queries),
        )

    def epochs(self, limit: int) -> list[dict[str, Any]]:
        """The last epochs, the newest last, as JSON shows them."""
        found = last_epochs(self.supervisor.store, self.supervisor.name, limit=limit)
        details = self._history.details(self.supervisor.name)
        return [{**epoch_fields(epoch), **details.get(epoch.end_ns, {})} for epoch in found]

    def partitions(self, status: PipelineStatus, seconds: int) -> list[dict[str, Any]]:
        """The partitions of the last so many seconds before the low watermark, as JSON."""
        since_ns = (status.known.low_watermark_ns or 0) - seconds_to_ns(seconds)
        of_state = states(status.partitions, status.known.low_watermark_ns or 0)
        stalled = stalls(self.supervisor.store, self.supervisor.name)
        return [
            partition_fields(partition, of_state[partition.token], stalled.get(partition.token, 0))
            for partition in status.partitions
            if partition.end_timestamp_ns is None or partition.end_timestamp_ns >= since_ns
        ]

    def gaps(self) -> list[dict[str, Any]]:
        """Records that are lost for good, as an operator accepted."""
        return [gap_fields(gap) for gap in gaps(self.supervisor.store, self.supervisor.name)]

    def _ahead(self) -> int:
        """How far Spanner's clock is ahead of this machine's, asked now and then."""
        now_s, source = time.monotonic(), self.supervisor.source
        is_recent = self._asked_s is not None and now_s - self._asked_s < _AHEAD_EVERY_S
        if source is not None and not is_recent:
            self._asked_s = now_s
            with suppress(ReaderError):
                self._ahead_ns = source.connection.strong_read_timestamp_ns() - time.time_ns()
        return self._ahead_ns
