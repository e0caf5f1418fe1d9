"""What the simulated change streams of both partition modes have in common."""

import random
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tests.simulation.history import STEP_NS
from tests.support.change_sources import PlannedSource

H = TypeVar("H")


@dataclass
class AnsweringStream(PlannedSource, Generic[H]):
    """A ChangeSource over a history, which answers as Spanner does.

    Attributes:
        history: what truly happened.
        clock_ns: Spanner's clock.
        seed: decides with `hide` which ends are hidden. With an even seed // 4 the same query
            always gets one answer, otherwise each of its tries another.
        hide: how many of the queries with an end_timestamp just after their partition's end keep
            the records that say so to themselves (apache/beam issue 40232).
        completed: pairs of a plan's id and a partition that one of its attempts has read.
    """

    history: H
    clock_ns: int
    seed: int
    hide: float
    hidden: int = field(default=0, init=False)
    asked: int = field(default=0, init=False)
    completed: set[tuple[str, str]] = field(default_factory=set, init=False)

    def strong_read_timestamp_ns(self) -> int:
        return self.clock_ns

    def hides(self, query: str, ended_ns: int | None, end_ns: int) -> bool:
        """Return whether a query through end_ns does not show that its partition has ended.

        Args:
            query: its text, by which the seed decides.
            ended_ns: the partition's end.
            end_ns: the query's.
        """
        if ended_ns is None or end_ns - ended_ns >= 2 * STEP_NS:
            return False
        query = f"{self.seed} {query}"
        if self.seed // 4 % 2:
            self.asked += 1
            query += f" {self.asked}"
        is_hidden = random.Random(query).random() < self.hide
        self.hidden += is_hidden
        return is_hidden
