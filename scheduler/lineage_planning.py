"""The I/O of planning for the rules of lineage: reads and writes of partitions in the store."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

from slackwater.reader.database.read_functions import OWN_FUNCTION
from slackwater.reader.errors import PlacementDroppedError
from slackwater.scheduler import lineage
from slackwater.scheduler.change_source import ChangeSource
from slackwater.scheduler.epoch import Cut, cut_of
from slackwater.scheduler.lineage import PartitionState
from slackwater.scheduler.plan import Task
from slackwater.state.lineage_rows import count_unfinished
from slackwater.state.models import Partition, PartitionKey, Plan
from slackwater.state.plans import claims_of_plan, latest_plan
from slackwater.state.positions import count_partitions
from slackwater.state.store import Store
from slackwater.timestamp import HALF_MICROSECOND_NS, format_rfc3339

_log = logging.getLogger(__name__)


def roots_of(
    store: Store, plan: Plan, recorded: Sequence[Partition] | None = None
) -> list[Partition]:
    """Return the partitions that a plan begins with.

    A plan that has to match an earlier one of its cut reads the same partitions from their starts.
    An attempt that was given up may have recorded others since; the next epoch reads those.

    Args:
        store: the metadata store.
        plan: the plan.
        recorded: the pipeline's partitions, if they were read just now. They are read again for a
            plan that has to match one: that one may have been sealed since.
    """
    if recorded is None or plan.must_match_plan is not None:
        recorded = store.partitions(plan.pipeline)
    partitions = lineage.lineage_at(recorded, plan.start_ns)
    for token, parent in lineage.orphans(partitions, plan.start_ns):
        _log.warning(
            "pipeline %s: partition %s is not read yet: it waits for its parent partition %s,"
            " which no partition has announced yet",
            plan.pipeline,
            token,
            parent,
        )
    roots = lineage.roots(partitions, cut_of(plan))
    if plan.must_match_plan is None:
        return roots
    claims = claims_of_plan(store, plan.must_match_plan)
    return [r for r in roots if _is_read(r, plan) or r.key in claims]


def claims_of(tasks: Iterable[Task], plan: Plan) -> list[tuple[PartitionKey, int]]:
    """Return the roots that a plan's tasks read from their starts, each with its task's number."""
    return [
        (root.key, task.index) for task in tasks for root in task.roots if not _is_read(root, plan)
    ]


def recorded_at(
    store: Store, pipeline: str, watermark_ns: int, source: ChangeSource, *, generation: int | None
) -> list[Partition] | None:
    """Return a pipeline's partitions; None if they can't be read at a low watermark.

    Those of placements that were added since they were found are added to them here. At any time,
    some partition can be read.

    Raises:
        PlacementDroppedError: partitions of a placement that is gone were not read to their ends.
        LeaseLostError: the pipeline has another owner now.
        ReaderError, StateError: the source or the store failed.
    """
    partitions = store.partitions(pipeline)
    if not lineage.roots(partitions, Cut(watermark_ns, watermark_ns)):
        return None
    functions = source.read_functions
    lost = lineage.lost_functions(partitions, functions, watermark_ns)
    if OWN_FUNCTION in lost or (lost and set(functions) == {OWN_FUNCTION}):
        # per_placement_tvf was altered: other functions return the same records now.
        return None
    if lost:
        raise PlacementDroppedError(
            f"the change stream's read functions for {' and '.join(lost)} are gone, and with them"
            f" changes after low watermark {format_rfc3339(watermark_ns)}, if there were any.",
            "If the placement was empty by then: `slackwater run --skip-to"
            f" {format_rfc3339(watermark_ns + 3 * HALF_MICROSECOND_NS)}`, which skips one"
            " microsecond. Otherwise restore what is missing from the tables",
        )
    new = lineage.new_functions(partitions, functions)
    if new:
        _log.warning(
            "pipeline %s: the change stream has got read functions for placements %s; they are"
            " read from low watermark %s",
            pipeline,
            ", ".join(new),
            format_rfc3339(watermark_ns),
        )
        alive = source.partitions_alive(watermark_ns, new)
        store.add_partitions(pipeline, alive, generation=generation)
        return store.partitions(pipeline)
    return partitions


def prune(
    store: Store, pipeline: str, watermark_ns: int, *, keep_ns: int, generation: int | None
) -> None:
    """Remove the partitions that finished keep_ns before the low watermark, or before its epoch.

    Raises:
        LeaseLostError: the pipeline has another owner now.
    """
    plan, of_pipeline = latest_plan(store, pipeline), store.pipeline(pipeline)
    since_ns = of_pipeline.starts_since_ns if of_pipeline else None
    if plan is None or plan.end_ns != watermark_ns or since_ns is None:
        return
    # The end of a partition may be shown one epoch late, and new partitions with it.
    keep_ns = max(keep_ns, watermark_ns - plan.start_ns)
    store.remove_partitions(
        pipeline,
        lineage.prunable(store.partitions(pipeline), watermark_ns, keep_ns=keep_ns),
        lineage.starts_since_ns(since_ns, watermark_ns, keep_ns=keep_ns),
        generation=generation,
    )


def count_alive(store: Store, pipeline: str, watermark_ns: int) -> int:
    """Return how many partitions a pipeline has at a low watermark, alive or waiting."""
    unfinished = store.read(lambda c: count_unfinished(c, pipeline, watermark_ns))
    return unfinished or count_partitions(store, pipeline) or 0


def count_by_state(
    store: Store, pipeline: str, partitions: Sequence[Partition], watermark_ns: int
) -> Counter[PartitionState]:
    """Return how many partitions a pipeline has at a low watermark, by state.

    Args:
        store: the metadata store; it has positions in place of partitions if Bigtable is read.
        pipeline: the pipeline's name.
        partitions: those of the store.
        watermark_ns: the low watermark.
    """
    if partitions:
        return Counter(lineage.states(partitions, watermark_ns).values())
    return Counter({PartitionState.RUNNING: count_partitions(store, pipeline) or 0})


def _is_read(partition: Partition, plan: Plan) -> bool:
    return lineage.is_read_from_start(partition, plan.start_ns)
