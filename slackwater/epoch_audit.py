"""The audit of an epoch that is written and not yet visible: scheduler.audit at its edges."""

from __future__ import annotations

import structlog

from scheduler.audit import Written, audit_epoch
from scheduler.errors import AuditError
from scheduler.task import AuditMode
from state.plans import latest_plan, void_plans
from state.store import Store
from state.tallies import tallies

_log = structlog.get_logger("slackwater.audit")


def audit_written(store: Store, pipeline: str, written: Written, mode: AuditMode) -> int:
    """Hold what the sink wrote against what the plan's tasks counted; the number of late records.

    Raises:
        AuditError: the epoch breaks a promise, and the mode is to stop.
        StateError: the store can't be reached.
    """
    plan = latest_plan(store, pipeline)
    known = store.pipeline(pipeline)
    assert plan is not None  # noqa: S101 - the epoch was planned before it was read
    assert known is not None  # noqa: S101 - or nobody could own it
    counted = tallies(store, plan.plan_id)
    broken = audit_epoch(
        plan,
        counted,
        written,
        low_watermark_ns=known.low_watermark_ns,
    )
    if broken and mode is AuditMode.STOP:
        # Or every replay would have to repeat what is wrong.
        void_plans(store, plan)
        raise AuditError(broken)
    for violation in broken:
        _log.error("audit failed", pipeline=pipeline, violation=violation)
    late = sum(found.late_records for found in counted.values())
    if late:
        _log.warning("late records", pipeline=pipeline, records=late)
    return late
