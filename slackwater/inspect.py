"""What `status`, `partitions` and `check` find out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reader
from reader.errors import ReaderError
from reader.timestamp import NANOSECONDS_PER_SECOND
from scheduler.lineage import states
from slackwater.errors import SettingsError
from slackwater.fields import epoch_fields, gap_fields, query_fields, stamp
from slackwater.java import find_java
from slackwater.ownership import is_gone
from slackwater.pipeline import check_new, connect
from slackwater.settings import Settings
from slackwater.watch import held_back_by, retention_used
from spark_sink.avro.registry import SchemaRegistry
from state.epochs import last_epochs
from state.facts import Partition, Pipeline
from state.gaps import gaps
from state.plans import latest_plan
from state.queries import open_queries, stalls
from state.scans import read_scan
from state.store import Store

_EPOCHS_SUMMED = 10_000


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that `check` looked at; problem is None where it is well."""

    name: str
    found: str
    problem: Exception | None = None


def checks(settings: Settings) -> Iterator[Check]:
    """Connect to everything that the pipeline needs; nothing is written, no store is made."""
    yield _check("java", lambda: str(find_java()))
    yield Check("reader", str(Path(str(reader.__file__)).parent))
    spanner_holder: list[Any] = []

    def look_up() -> str:
        spanner_holder.append(connect(settings))
        spanner = spanner_holder[0]
        days = spanner.description.retention_ns / NANOSECONDS_PER_SECOND / 86_400
        return f"{spanner.options.change_stream.path}, {spanner.description.dialect}, {days:g} d"

    yield _check("change stream", look_up)
    if spanner_holder:

        def start() -> str:
            check_new(settings, spanner_holder[0])
            return settings.source.start

        yield _check("start", start)
    yield _check("metadata store", lambda: _look_at_store(settings))
    yield _check("sink", lambda: _look_at_sink(settings))


def _check(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, look())
    except Exception as error:  # noqa: BLE001 - each is reported, and the rest looked at too
        return Check(name, "", error)


def _look_at_store(settings: Settings) -> str:
    url = settings.state.url
    path = url.removeprefix("sqlite:///")
    if path != url and not Path(path).exists():
        return f"{url} (will be made)"
    store = Store.open(url, migrate=False)
    try:
        known = store.pipeline(settings.pipeline)
        return f"{store.url}, {'known pipeline' if known else 'new pipeline'}"
    finally:
        store.close()


def _look_at_sink(settings: Settings) -> str:
    for text in (settings.sink.path, settings.sink.checkpoint):
        path = Path(text.removeprefix("file://"))
        if "://" in str(text) and not text.startswith("file://"):
            continue
        nearest = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
        if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
            raise SettingsError(f"{text} can't be written: {nearest} is no writable folder.")
    if settings.sink.confluent_schema_registry is not None:
        SchemaRegistry(settings.sink.confluent_schema_registry).require_answer()
    return f"{settings.sink.format} in {settings.sink.path}"


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
            "low_watermark": stamp(watermark_ns),
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
    if known.owner is not None and is_gone(known.owner):
        # It had no time to say so.
        reason = "its process has died, and none has taken over"
    return {
        "state": "not started" if known.state is None else known.state.value,
        "since": stamp(known.state_since_ns),
        "reason": reason,
        "owner": known.owner,
        "wanted": known.wanted.value,
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
        "lag_seconds": round((clock_ns - watermark_ns) / NANOSECONDS_PER_SECOND, 3),
        "retention_used": round(used, 4),
    }


def _scan(store: Store, pipeline: str) -> dict[str, Any] | None:
    """How far the initial scan is, None where there is none."""
    found = read_scan(store, pipeline)
    if found is None:
        return None
    scan, parts = found
    return {
        "at": stamp(scan.at_ns),
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
