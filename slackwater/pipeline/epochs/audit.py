"""The audit of an epoch that is staged and not yet visible: it reads the counts to compare."""

from dataclasses import dataclass, replace

import structlog

from slackwater.scheduler.audit import SinkCounts, audit_epoch
from slackwater.scheduler.errors import AuditError
from slackwater.scheduler.read_options import AuditMode
from slackwater.state.errors import LineageMissingError, StoreBehindError
from slackwater.state.gaps import gaps
from slackwater.state.models import Plan
from slackwater.state.plans import latest_plan, reject_plans, unsealed_tasks
from slackwater.state.store import Store
from slackwater.state.task_counts import read_task_counts
from slackwater.state.task_metrics import TaskMetrics, read_task_metrics
from slackwater.timestamp import format_rfc3339

_log = structlog.get_logger("slackwater.pipeline.epochs.audit")


@dataclass(frozen=True, slots=True)
class AuditedEpoch:
    """An epoch that may become visible.

    Attributes:
        late_records: records that came after their own epoch.
        measures: of its tasks.
    """

    late_records: int
    measures: TaskMetrics


def planned_epoch(store: Store, pipeline: str) -> Plan:
    """Return the plan of the epoch that is about to be read, for audit_written().

    The store may go back before the epoch is audited, to one with another plan. Tasks of a plan
    that it no longer has are not read.

    Raises:
        LineageMissingError: the store has lost it.
        StateError: the store can't be reached.
    """
    plan = latest_plan(store, pipeline)
    if plan is None:
        raise LineageMissingError(
            f"the metadata store has no plan of pipeline {pipeline!r}, whose epoch is being read.",
            "It was lost, or has gone back to an earlier state; the epoch is planned again",
        )
    return plan


def audit_written(
    store: Store,
    plan: Plan,
    written: SinkCounts,
    mode: AuditMode,
    *,
    generation: int | None = None,
) -> AuditedEpoch:
    """Compare the sink's counts with those of the plan's tasks.

    Args:
        store: the metadata store, which has the counts.
        plan: of the epoch, as planned_epoch() returned it before the epoch was read.
        written: the sink's counts.
        mode: whether a broken promise stops the epoch or is only logged.
        generation: the generation of the caller's lease; None if it has no lease.

    Raises:
        AuditError: the epoch breaks a promise, and the mode is to stop. The next plan of its cut
            is then read with the proof that allows no late records.
        StoreBehindError: the store has another plan now.
        LeaseLostError: it breaks one, and the pipeline has another owner now.
        StateError: the store can't be reached.
    """
    latest, row = latest_plan(store, plan.pipeline), store.pipeline(plan.pipeline)
    if latest is None or latest.plan_id != plan.plan_id or row is None:
        raise StoreBehindError(
            f"the last plan of pipeline {plan.pipeline!r} in the metadata store is not that of the"
            f" epoch that ends at {format_rfc3339(plan.end_ns)}: the store has gone back to an"
            " earlier state, or another owner plans.",
            "The epoch is planned again",
        )
    counted = read_task_counts(store, plan.plan_id)
    broken = audit_epoch(
        plan,
        counted,
        written,
        low_watermark_ns=row.low_watermark_ns,
        gaps=gaps(store, plan.pipeline),
    )
    broken += [
        f"task {index} of the epoch's plan is not sealed: the metadata store went back"
        for index in unsealed_tasks(store, plan.plan_id)
    ]
    if broken and mode is AuditMode.STOP:
        # Otherwise every replay would have to repeat the violation.
        reject_plans(store, replace(plan, generation=generation))
        raise AuditError(broken)
    for violation in broken:
        _log.error("audit failed", pipeline=plan.pipeline, violation=violation)
    late = sum(counts.late_records for counts in counted.values())
    if late:
        _log.warning("late records", pipeline=plan.pipeline, records=late)
    return AuditedEpoch(late, read_task_metrics(store, plan.plan_id))
