"""Looks up what `status` and `partitions` print: mostly from the metadata store."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from slackwater.commands.stored_pipeline import open_pipeline
from slackwater.config.settings import Settings
from slackwater.monitoring.json_fields import (
    catch_up_fields,
    epoch_fields,
    gap_fields,
    query_fields,
    rescan_fields,
    rfc3339_or_none,
    verification_fields,
)
from slackwater.pipeline.alerts import held_back_by
from slackwater.pipeline.catch_up import catch_up, retention_used
from slackwater.pipeline.lease_holder import owner_is_dead
from slackwater.pipeline.source import connect
from slackwater.reader.errors import ReaderError
from slackwater.scheduler.lineage import states
from slackwater.state.epochs import last_epochs
from slackwater.state.gaps import gaps
from slackwater.state.models import Epoch, Partition, Pipeline
from slackwater.state.open_queries import open_queries, stalls
from slackwater.state.plans import latest_plan
from slackwater.state.rescans import rescans
from slackwater.state.scans import read_scan
from slackwater.state.store import Store
from slackwater.state.verified_tables import verified_tables
from slackwater.timestamp import ns_to_seconds

_EPOCHS_SUMMED = 10_000


def status(settings: Settings) -> dict[str, Any]:
    """Return the pipeline's status as JSON fields; the lag is None if Spanner can't be reached."""
    store, pipeline = open_pipeline(settings)
    try:
        epochs = last_epochs(store, settings.pipeline, limit=_EPOCHS_SUMMED)
        watermark_ns = pipeline.low_watermark_ns
        partitions = store.all_partitions(settings.pipeline)
        by_state = Counter(states(partitions, watermark_ns or 0).values()) if watermark_ns else {}
        return {
            "pipeline": pipeline.name,
            "source": pipeline.source,
            **_state(pipeline),
            "low_watermark": rfc3339_or_none(watermark_ns),
            "initial_scan": _scan(store, settings.pipeline),
            "rescans": [rescan_fields(rescan) for rescan in rescans(store, settings.pipeline)],
            "verification": verification_fields(
                verified_tables(store, settings.pipeline), watermark_ns
            ),
            **_lag(settings, watermark_ns, epochs),
            "held_back_by": _held_back(store, pipeline),
            "partitions": {str(state): count for state, count in sorted(by_state.items())},
            "stalls": sum(stalls(store, settings.pipeline).values()),
            # Older ones are forgotten after state.keep.
            "counted_since": rfc3339_or_none(epochs[0].start_ns) if epochs else None,
            "epochs": len(epochs),
            "records": sum(epoch.records for epoch in epochs),
            "late_records": sum(epoch.late_records for epoch in epochs),
            "transactions": sum(epoch.transactions for epoch in epochs),
            "last_epoch": epoch_fields(epochs[-1]) if epochs else None,
            "gaps": [gap_fields(gap) for gap in gaps(store, settings.pipeline)],
        }
    finally:
        store.close()


def _state(pipeline: Pipeline) -> dict[str, Any]:
    reason = pipeline.state_reason or None
    if pipeline.owner is not None and owner_is_dead(pipeline.owner):
        # It could not record that itself.
        reason = "its process has died, and no other has taken over"
    return {
        "state": "not started" if pipeline.state is None else pipeline.state.value,
        "since": rfc3339_or_none(pipeline.state_since_ns),
        "reason": reason,
        "owner": pipeline.owner,
        "wanted": pipeline.desired_state.value,
    }


def _lag(settings: Settings, watermark_ns: int | None, epochs: Sequence[Epoch]) -> dict[str, Any]:
    """Return how far the pipeline is behind Spanner's clock, and whether it keeps up."""
    unknown = {"lag_seconds": None, "retention_used": None, "keeps_up": None}
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
    keeps_up = catch_up(
        epochs,
        lag_ns=clock_ns - watermark_ns,
        now_ns=time.time_ns(),
        retention_ns=spanner.description.retention_ns,
    )
    return {
        "lag_seconds": round(ns_to_seconds(clock_ns - watermark_ns), 3),
        "retention_used": round(used, 4),
        "keeps_up": catch_up_fields(keeps_up),
    }


def _scan(store: Store, pipeline: str) -> dict[str, Any] | None:
    """Return the progress of the initial scan; None if there is none."""
    scan_and_parts = read_scan(store, pipeline)
    if scan_and_parts is None:
        return None
    scan, parts = scan_and_parts
    return {
        "at": rfc3339_or_none(scan.at_ns),
        "is_whole": scan.is_done,
        "parts": len(parts),
        "parts_done": sum(part.is_done for part in parts),
        "records": scan.records,
    }


def _held_back(store: Store, pipeline: Pipeline) -> dict[str, Any] | None:
    """Return the query that the running epoch has been waiting for; None if there is none."""
    plan = latest_plan(store, pipeline.name)
    if plan is None or plan.end_ns <= (pipeline.low_watermark_ns or 0):
        return None
    query = held_back_by(open_queries(store, plan.plan_id))
    return None if query is None else query_fields(query)


def partition_rows(settings: Settings) -> tuple[list[Partition], int | None, dict[str, int]]:
    """Return the partitions in the store, the low watermark, and each token's count of stalls."""
    store, pipeline = open_pipeline(settings)
    try:
        return (
            store.all_partitions(settings.pipeline),
            pipeline.low_watermark_ns,
            stalls(store, settings.pipeline),
        )
    finally:
        store.close()


def flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return JSON fields as lines of a name and a value."""
    pairs: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            pairs += flat(value, f"{prefix}{name} ")
        elif isinstance(value, list):
            items = (", ".join(f"{k} {v}" for k, v in item.items()) for item in value)
            pairs.append((f"{prefix}{name}".replace("_", " "), "; ".join(items) or None))
        else:
            pairs.append((f"{prefix}{name}".replace("_", " "), value))
    return pairs
