"""The condition of a pipeline that does not run, which matters more than its speed.

Rules only: the caller has the store's row and the facts about its owner.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from slackwater.state.models import DesiredState, Pipeline, PipelineState

_DRAINING: Final = {
    DesiredState.PAUSED: "Finishes its epoch, then pauses",
    DesiredState.AWAITING_OPERATOR: "Finishes its epoch, then waits for an operator",
}
_UNOWNED: Final = frozenset({None, PipelineState.NOT_RUNNING, PipelineState.FAILED_PERMANENTLY})


class Level(StrEnum):
    """A level of warning."""

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of a pipeline that does not run.

    Attributes:
        text: a sentence for people, without the period.
        level: of warning.
        is_held: its low watermark does not move meanwhile, so that its speed means nothing.
    """

    text: str
    level: Level = Level.OK
    is_held: bool = True


def condition(
    pipeline: Pipeline,
    *,
    is_owner_dead: bool,
    is_standby: bool = False,
    source_problem: str | None = None,
    scan_share: float | None = None,
) -> Condition | None:
    """Return the condition of a pipeline that does not run; None if it runs.

    Args:
        pipeline: its row in the metadata store.
        is_owner_dead: its owner is known to have died.
        is_standby: this process would take over from the owner.
        source_problem: why the source does not answer, as a sentence without the period; None while
            it does.
        scan_share: the share of its initial scan that is done; None if none is under way.
    """
    if is_owner_dead:
        text = "Its process has died, and no other has taken over"
        return Condition(text, Level.WARNING)
    if pipeline.owner is None and pipeline.state not in _UNOWNED:
        return Condition("No process runs it", Level.WARNING)
    match pipeline.state:
        case None:
            return Condition("Has not started")
        case PipelineState.NOT_RUNNING:
            is_paused = pipeline.desired_state is DesiredState.PAUSED
            return Condition("Is not running, and is paused" if is_paused else "Is not running")
        case PipelineState.FAILED_PERMANENTLY:
            return Condition("Has failed and waits for an operator", Level.CRITICAL)
        case PipelineState.FAILED:
            return Condition("Has failed, and will try again", Level.WARNING)
        case PipelineState.PAUSED:
            return Condition("Is paused")
        case PipelineState.DRAINING:
            return Condition(_DRAINING.get(pipeline.desired_state, "Finishes its epoch, then ends"))
        case _:
            pass
    if source_problem is not None:
        return Condition(source_problem, Level.WARNING, is_held=False)
    if scan_share is not None:
        return Condition(f"Reads the initial scan: {scan_share:.0%} done")
    if is_standby:
        return Condition(f"Stands by for {pipeline.owner}", is_held=False)
    if pipeline.state is PipelineState.STARTING:
        return Condition("Is starting", is_held=False)
    return None
