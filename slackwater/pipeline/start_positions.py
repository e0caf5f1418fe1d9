"""Where a table of Bigtable's is read on when a query starts.

Two reads of an epoch may end at different places, and only those of the one that was written are
exact. Nothing was read between the last epoch with rows and a later one without: the positions of
the last one hold for both.
"""

from dataclasses import dataclass
from enum import Enum

from slackwater.state.commit import commit_epoch, restart_at
from slackwater.state.positions import move_positions, positions_of, set_positions
from slackwater.state.store import Store


class Origin(Enum):
    """An origin of exact positions."""

    OUTPUT = "the output's last commit names them"
    PLAN = "the store has those of the plan with which the output ends"
    STORE = "the store has them"
    LOST = "nothing has them"


@dataclass(frozen=True, slots=True)
class StartFacts:
    """Statements of the parts of a pipeline about the positions at a low watermark.

    Attributes:
        at_ns: where the output ends.
        committed_ns: the end of the last epoch with rows in the output; None if it has none.
        is_told: the output tells its commits.
        is_in_output: the last commit names positions that are there.
        stored_ns: the low watermark of the store's positions; None if it has none.
        has_plan: the store has the positions of a plan that ends at at_ns.
    """

    at_ns: int
    committed_ns: int | None
    is_told: bool
    is_in_output: bool
    stored_ns: int | None
    has_plan: bool


def origin_of(facts: StartFacts) -> Origin:
    """Return where exact positions come from.

    The store may be a copy that is behind. And its last plan is not the one that was written if an
    epoch without rows, which is in no commit, was read again.
    """
    if facts.is_in_output:
        return Origin.OUTPUT
    if facts.stored_ns == facts.at_ns:
        return Origin.STORE
    if facts.has_plan and (facts.committed_ns == facts.at_ns or not facts.is_told):
        return Origin.PLAN
    if facts.stored_ns is not None and (facts.committed_ns or 0) <= facts.stored_ns <= facts.at_ns:
        return Origin.STORE
    return Origin.LOST


@dataclass(frozen=True, slots=True)
class ExactStart:
    """Where a query may start.

    Attributes:
        at_ns: the low watermark at which the output ends.
        origin: of the positions.
        text: the output's positions; None if it names none.
    """

    at_ns: int
    origin: Origin
    text: str | None


def set_start(store: Store, pipeline: str, start: ExactStart, *, generation: int | None) -> None:
    """Set the store to a start, with its positions if they are not lost.

    Args:
        store: the metadata store.
        pipeline: its name.
        start: where the next query starts.
        generation: of the lease that this process holds.

    Raises:
        LeaseLostError: the pipeline has another owner now.
    """
    at_ns = start.at_ns
    if start.origin is Origin.PLAN:
        commit_epoch(store, pipeline, at_ns, generation=generation)
    elif start.origin is Origin.STORE:
        move_positions(store, pipeline, at_ns, generation=generation)
    restart_at(store, pipeline, at_ns, [], generation=generation)
    if start.origin is Origin.OUTPUT and start.text is not None:
        set_positions(store, pipeline, positions_of(start.text), at_ns, generation=generation)
