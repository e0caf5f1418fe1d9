"""The polled status of the pipelines of this process, for the page, Prometheus and probes."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from slackwater.monitoring.epoch_history import EpochHistory
from slackwater.monitoring.json_fields import (
    catch_up_fields,
    epoch_fields,
    gap_fields,
    partition_fields,
    pipeline_fields,
    position_fields,
    query_fields,
    rescan_fields,
    rfc3339_or_none,
    short_token,
    verification_fields,
)
from slackwater.pipeline.alerts import held_back_by
from slackwater.pipeline.catch_up import EPOCHS_CONSIDERED, CatchUp, catch_up, retention_used
from slackwater.pipeline.condition import condition
from slackwater.pipeline.lease_holder import has_dead_owner
from slackwater.pipeline.supervisor import PipelineSupervisor
from slackwater.pipeline.transitions import FAILED_STATES
from slackwater.reader.bigtable.positions import Position, standing
from slackwater.scheduler.bigtable.stored_positions import positions_of
from slackwater.scheduler.lineage import PartitionState, states
from slackwater.scheduler.lineage_planning import count_by_state
from slackwater.state.epochs import last_epochs
from slackwater.state.errors import StateError, StoreUnreachableError
from slackwater.state.gaps import gaps
from slackwater.state.models import Epoch, OpenQuery, Partition, Pipeline, PipelineState
from slackwater.state.open_queries import latest_open_queries, stalls
from slackwater.state.rescan_models import Rescan
from slackwater.state.rescans import rescans
from slackwater.state.scans import share_done
from slackwater.state.verified_models import VerifiedTable
from slackwater.state.verified_tables import verified_tables
from slackwater.timestamp import floor_to_us, ns_to_seconds, seconds_to_ns

_log = structlog.get_logger("slackwater.monitoring.status")

_POLL_EVERY_S: Final = 1.0
# Polling takes a twentieth of this process's time, and is never further apart than this.
_POLL_SHARE: Final = 20
_POLL_EVERY_S_MAX: Final = 4.0
_FIRST_POLL_S_MAX: Final = 10.0
_STALE_S: Final = 15.0
_SLOW_SHOWN: Final = 100


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """The status of a pipeline at one moment.

    Attributes:
        pipeline: its row in the metadata store.
        is_owner: True if this process runs it.
        clock_ns: the source's clock, or this machine's before it was read.
        retention_ns: how long the change stream keeps records; None if that is not known.
        partitions: those in the metadata store.
        by_state: how many of them are in each state.
        queries: the partition queries that have been open for a while, the furthest behind first.
        held_back: the query that holds the low watermark back; None if none does.
        epochs: the last ones, the newest last, by which its speed is measured.
        now_ns: this machine's clock.
        store_silent_s, source_silent_s: for how many seconds the metadata store, or the source,
            has not answered; None while it does.
        stands_by: True if this process could take over from the owner.
        executors: how many Spark has while the pipeline is starting; None if it needs none.
        rescans: the tables that are or were read again, the newest request for each.
        verified: the tables whose mirrors are compared again and again.
        is_owner_dead: the owner is known to have died.
        scan_share: the share of the initial scan that is done; None if none is under way.
        is_looked_up: this process knows the change stream.
        service: the source's name.
        positions: those of Bigtable's partitions.
    """

    pipeline: Pipeline
    is_owner: bool
    clock_ns: int
    retention_ns: int | None
    partitions: tuple[Partition, ...]
    by_state: Counter[PartitionState]
    queries: tuple[OpenQuery, ...]
    held_back: OpenQuery | None
    epochs: tuple[Epoch, ...] = ()
    now_ns: int = 0
    store_silent_s: float | None = None
    source_silent_s: float | None = None
    stands_by: bool = False
    executors: int | None = None
    rescans: tuple[Rescan, ...] = ()
    verified: tuple[VerifiedTable, ...] = ()
    is_owner_dead: bool = False
    scan_share: float | None = None
    is_looked_up: bool = True
    service: str = "Spanner"
    positions: tuple[Position, ...] = ()

    @property
    def lag_ns(self) -> int | None:
        """The lag of the low watermark behind the source's clock; None before the first epoch."""
        watermark_ns = self.pipeline.low_watermark_ns
        return None if watermark_ns is None else self.clock_ns - watermark_ns

    @property
    def retention_used(self) -> float | None:
        """The lag as a share of the retention period."""
        watermark_ns = self.pipeline.low_watermark_ns
        if watermark_ns is None or self.retention_ns is None:
            return None
        return retention_used(watermark_ns, clock_ns=self.clock_ns, retention_ns=self.retention_ns)

    @property
    def catch_up(self) -> CatchUp:
        """Whether it keeps up, and how long it takes to catch up."""
        return catch_up(
            self.epochs,
            lag_ns=self.lag_ns,
            now_ns=self.now_ns,
            retention_ns=self.retention_ns,
            condition=condition(
                self.pipeline,
                is_owner_dead=self.is_owner_dead,
                is_standby=not self.is_owner,
                source_problem=self._source_problem,
                scan_share=self.scan_share,
            ),
        )

    @property
    def _source_problem(self) -> str | None:
        if self.source_silent_s is None:
            return None
        return f"{self.service} has not answered for {self.source_silent_s:.0f} s"

    @property
    def stalled(self) -> list[OpenQuery]:
        """The queries that were opened again because they had been silent for too long."""
        return [query for query in self.queries if query.stalls]

    def unready_reason(self, *, standby_is_ready: bool = False) -> str | None:
        """Return why the pipeline is not ready, or None if it is.

        It is ready if it is connected, owned by this process, not failed and not held back by a
        stalled partition, if an epoch was committed since it started, and if the metadata store
        and the source answer.

        Args:
            standby_is_ready: a process that could take over counts as ready, too.
        """
        if self.store_silent_s is not None:
            return f"the metadata store has not answered for {self.store_silent_s:.0f} s"
        if standby_is_ready and self.stands_by:
            return None
        if not self.is_looked_up:
            return "the change stream has not been looked up yet"
        if not self.is_owner:
            return f"standing by for {self.pipeline.owner}"
        if self.pipeline.state in FAILED_STATES:
            return f"{self.pipeline.state.value}: {self.pipeline.state_reason}"
        if self.pipeline.state is PipelineState.STARTING:
            waits_for = "executor has registered" if self.executors == 0 else "epoch is committed"
            return f"starting: no {waits_for} yet"
        if self._source_problem is not None:
            return self._source_problem
        if self.held_back is not None and self.held_back.stalls:
            return f"partition {short_token(self.held_back.token)} is stalled"
        return None

    def json_fields(self) -> dict[str, Any]:
        """Return the status as JSON fields."""
        pipeline, lag_ns = self.pipeline, self.lag_ns
        return {
            **pipeline_fields(pipeline, is_owner_dead=self.is_owner_dead),
            "unready": self.unready_reason(),
            "store_silent_seconds": self.store_silent_s,
            "source_silent_seconds": self.source_silent_s,
            "is_owner": self.is_owner,
            "low_watermark": rfc3339_or_none(pipeline.low_watermark_ns),
            "lag_seconds": None if lag_ns is None else round(ns_to_seconds(lag_ns), 3),
            "retention_used": self.retention_used,
            "keeps_up": catch_up_fields(self.catch_up),
            "clock": rfc3339_or_none(floor_to_us(self.clock_ns)),
            "partitions": {state.value: self.by_state[state] for state in PartitionState},
            "held_back_by": None if self.held_back is None else query_fields(self.held_back),
            "replication_stands_still": position_fields(standing(self.positions)),
            "stalled": [query_fields(query) for query in self.stalled],
            "slow_queries": [query_fields(query) for query in self.queries[:_SLOW_SHOWN]],
            "rescans": [rescan_fields(rescan) for rescan in self.rescans],
            "verification": verification_fields(self.verified, pipeline.low_watermark_ns),
        }


class StatusPoller:
    """A poller of one pipeline of this process, once a second, on a thread of its own.

    Its status is available at once, even while the metadata store or the source does not answer,
    and a poll asks only the store: the source's clock is read elsewhere.

    Args:
        supervisor: the pipeline's.
        history: the details of the epochs that this process committed.
        on_store_seconds: called with the pipeline and the seconds the metadata store took.
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
        self._latest: tuple[float, PipelineStatus] | None = None
        self._has_polled = threading.Event()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start polling."""
        threading.Thread(target=self._run, name="status-poller", daemon=True).start()

    def stop(self) -> None:
        """Stop polling, without waiting for a poll that is under way."""
        self._stopped.set()

    def status(self) -> PipelineStatus:
        """Return the status as of the last poll, with the present clock and silences.

        Raises:
            StoreUnreachableError: no poll has succeeded yet, not even within 10 s.
        """
        self._has_polled.wait(_FIRST_POLL_S_MAX)
        if self._latest is None:
            raise StoreUnreachableError(
                f"pipeline {self.supervisor.name!r} has not been polled yet."
            )
        polled_s, status = self._latest
        clock = self.supervisor.clock
        # A store on a full disk can be read.
        silent_s = max(time.monotonic() - polled_s, self.supervisor.lease.unrenewed_s or 0.0)
        return replace(
            status,
            clock_ns=time.time_ns() if clock is None else clock.now_ns(),
            now_ns=time.time_ns(),
            store_silent_s=silent_s if silent_s >= _STALE_S else None,
            source_silent_s=None if clock is None else clock.silent_s,
        )

    def _run(self) -> None:
        while not self._stopped.is_set():
            used_s = time.thread_time()
            try:
                self.poll()
            except StateError as error:
                _log.debug("can't poll", pipeline=self.supervisor.name, error=error.message)
            # The thread's CPU time, which many partitions take; not the wait for a slow store.
            used_s = time.thread_time() - used_s
            self._stopped.wait(min(max(_POLL_EVERY_S, _POLL_SHARE * used_s), _POLL_EVERY_S_MAX))

    def poll(self) -> None:
        """Take the status from the metadata store.

        Raises:
            StateError: the store can't be reached.
        """
        begun_s = time.monotonic()
        status = self._poll()
        before = self._latest
        self._latest = begun_s, status
        self._has_polled.set()
        clock = self.supervisor.clock
        if before and clock and _has_epoch_since(before[1].pipeline, status.pipeline):
            # It was read from the source, even if the clock's own request fails.
            clock.note_answer()

    def _poll(self) -> PipelineStatus:
        supervisor = self.supervisor
        begun_s = time.monotonic()
        pipeline = supervisor.store.pipeline(supervisor.name)
        self._on_store_seconds(supervisor.name, time.monotonic() - begun_s)
        assert pipeline is not None  # noqa: S101 - created with its supervisor
        if supervisor.lease.is_held and (unrecorded := supervisor.unrecorded) is not None:
            # The store can be read, but not written to, as on a full disk.
            state, reason = unrecorded
            pipeline = replace(pipeline, state=state, state_reason=reason)
        partitions = tuple(supervisor.store.partitions(supervisor.name))
        past_ns = pipeline.low_watermark_ns or 0
        queries = latest_open_queries(supervisor.store, supervisor.name, past_ns=past_ns)
        source = supervisor.source
        is_starting = pipeline.state is PipelineState.STARTING and supervisor.lease.is_held
        return PipelineStatus(
            pipeline=pipeline,
            is_owner=supervisor.lease.is_held,
            clock_ns=time.time_ns(),
            retention_ns=None if source is None else source.retention_ns,
            partitions=partitions,
            by_state=count_by_state(supervisor.store, supervisor.name, partitions, past_ns),
            queries=tuple(queries),
            held_back=held_back_by(queries),
            epochs=tuple(last_epochs(supervisor.store, supervisor.name, limit=EPOCHS_CONSIDERED)),
            stands_by=supervisor.stands_by,
            executors=supervisor.executors() if is_starting else None,
            rescans=tuple(rescans(supervisor.store, supervisor.name)),
            verified=tuple(verified_tables(supervisor.store, supervisor.name)),
            is_owner_dead=has_dead_owner(pipeline),
            scan_share=share_done(supervisor.store, supervisor.name) if is_starting else None,
            is_looked_up=source is not None,
            service=supervisor.settings.source.service,
            # A pipeline has a lineage or positions.
            positions=() if partitions else tuple(positions_of(supervisor.store, supervisor.name)),
        )

    def epochs(self, limit: int) -> list[dict[str, Any]]:
        """Return the last epochs as JSON fields, the newest last."""
        epochs = last_epochs(self.supervisor.store, self.supervisor.name, limit=limit)
        details = self._history.details(self.supervisor.name)
        return [{**epoch_fields(epoch), **details.get(epoch.end_ns, {})} for epoch in epochs]

    def partitions(self, status: PipelineStatus, seconds: int) -> list[dict[str, Any]]:
        """Return the partitions as JSON fields; those of a lineage are of the last seconds."""
        since_ns = (status.pipeline.low_watermark_ns or 0) - seconds_to_ns(seconds)
        of_state = states(status.partitions, status.pipeline.low_watermark_ns or 0)
        stalled = stalls(self.supervisor.store, self.supervisor.name)
        lineage = [
            partition_fields(partition, of_state[partition.label], stalled.get(partition.label, 0))
            for partition in status.partitions
            if partition.end_timestamp_ns is None or partition.end_timestamp_ns >= since_ns
        ]
        return lineage or position_fields(status.positions)

    def gaps(self) -> list[dict[str, Any]]:
        """Return the gaps that an operator accepted as JSON fields."""
        return [gap_fields(gap) for gap in gaps(self.supervisor.store, self.supervisor.name)]


def _has_epoch_since(before: Pipeline, now: Pipeline) -> bool:
    """Return True if an epoch was committed in between."""
    return (now.low_watermark_ns or 0) > (before.low_watermark_ns or 0)
