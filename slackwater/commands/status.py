"""What `status`, `partitions` and `check` find out."""

from __future__ import annotations

from collections import Counter
from typing import Any

from slackwater.config.settings import Settings
from slackwater.errors import SettingsError
from slackwater.monitoring.json_fields import (
    epoch_fields,
    gap_fields,
    query_fields,
    rfc3339_or_none,
)
from slackwater.pipeline.alerts import held_back_by, retention_used
from slackwater.pipeline.lease_holder import owner_is_dead
from slackwater.pipeline.source import connect
from slackwater.reader.errors import ReaderError
from slackwater.scheduler.lineage import states
from slackwater.state.epochs import last_epochs
from slackwater.state.gaps import gaps
from slackwater.state.models import Partition, Pipeline
from slackwater.state.open_queries import open_queries, stalls
from slackwater.state.plans import latest_plan
from slackwater.state.scans import read_scan
from slackwater.state.store import Store
from slackwater.timestamp import ns_to_seconds

_EPOCHS_SUMMED = 10_000


def open_pipeline(settings: Settings) -> tuple[Store, Pipeline]:
    """The store and what it knows of the pipeline.

    Raises:
        SettingsError: the store does not know the pipeline.
    """
    store = Store.open(settings.state.url, migrate=False)
    known = store.pipeline(settings.pipeline)
    if known is None:
        names = ", ".join(p.name for p in store.pipelines()) or "none"
        store.close()
        raise SettingsError(
            f"the metadata store {store.url} knows no pipeline {settings.pipeline!r}.",
            f"It knows: {names}",
        )
    return store, known


def status(settings: Settings) -> dict[str, Any]:
    """The pipeline at a glance; what Spanner would have to tell is None while it can't be asked."""
    store, known = open_pipeline(settings)
    try:
        epochs = last_epochs(store, settings.pipeline, limit=_EPOCHS_SUMMED)
        watermark_ns = known.low_watermark_ns
        found = store.partitions(settings.pipeline)
        by_state = Counter(states(found, watermark_ns or 0).values()) if watermark_ns else {}
        return {
            "pipeline": known.name,
            "source": known.source,
            **_state(known),
            "low_watermark": rfc3339_or_none(watermark_ns),
            "initial_scan": _scan(store, settings.pipeline),
            **_lag(settings, watermark_ns),
            "held_back_by": _held_back(store, known),
            "partitions": {str(state): count for state, count in sorted(by_state.items())},
            "stalls": sum(stalls(store, settings.pipeline).values()),
            "epochs": len(epochs),
            "records": sum(epoch.records for epoch in epochs),
            "late_records": sum(epoch.late_records for epoch in epochs),
            "transactions": sum(epoch.transactions for epoch in epochs),
            "last_epoch": epoch_fields(epochs[-1]) if epochs else None,
            "gaps": [gap_fields(gap) for gap in gaps(store, settings.pipeline)],
        }
    finally:
        store.close()


def _state(known: Pipeline) -> dict[str, Any]:
    reason = known.state_reason or None
    if known.owner is not None and owner_is_dead(known.owner):
        # It had no time to say so.
        reason = "its process has died, and none has taken over"
    return {
        "state": "not started" if known.state is None else known.state.value,
        "since": rfc3339_or_none(known.state_since_ns),
        "reason": reason,
        "owner": known.owner,
        "wanted": known.desired_state.value,
    }


def _lag(settings: Settings, watermark_ns: int | None) -> dict[str, Any]:
    """How far behind Spanner's clock, in seconds and as a share of the retention period."""
    unknown = {"lag_seconds": None, "retention_used": None}
    if watermark_ns is None:
        return unknown
    try:
        spanner = connect(settings)
        clock_ns = spanner.connection.strong_read_timestamp_ns()
    except ReaderError:
        return unknown
    spanner.connection.close()
    used = retention_used(
        watermark_ns, clock_ns=clock_ns, retention_ns=spanner.description.retention_ns
    )
    return {
        "lag_seconds": round(ns_to_seconds(clock_ns - watermark_ns), 3),
        "retention_used": round(used, 4),
    }


def _scan(store: Store, pipeline: str) -> dict[str, Any] | None:
    """How far the initial scan is, None where there is none."""
    found = read_scan(store, pipeline)
    if found is None:
        return None
    scan, parts = found
    return {
        "at": rfc3339_or_none(scan.at_ns),
        "is_whole": scan.is_done,
        "parts": len(parts),
        "parts_done": sum(part.is_done for part in parts),
        "records": scan.records,
    }


def _held_back(store: Store, known: Pipeline) -> dict[str, Any] | None:
    """The partition that the running epoch waits for, once it waits for some seconds."""
    plan = latest_plan(store, known.name)
    if plan is None or plan.end_ns <= (known.low_watermark_ns or 0):
        return None
    found = held_back_by(open_queries(store, plan.plan_id))
    if found is None:
        return None
    return query_fields(found)


def partition_rows(settings: Settings) -> tuple[list[Partition], int | None, dict[str, int]]:
    """The partitions that are remembered, the pipeline's low watermark, the partitions' stalls."""
    store, known = open_pipeline(settings)
    try:
        return (
            store.partitions(settings.pipeline),
            known.low_watermark_ns,
            stalls(store, settings.pipeline),
        )
    finally:
        store.close()
