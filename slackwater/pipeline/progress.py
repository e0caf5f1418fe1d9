"""The progress of a long work, and the time for the rest, at its speed since it was begun."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """The parts of a work that is under way.

    Attributes:
        total: how many parts it has.
        done: how many are done.
        done_before: how many of these were done before it was resumed.
        seconds: since it was begun or resumed.
    """

    total: int
    done: int
    done_before: int
    seconds: float

    @property
    def percent(self) -> int:
        """The share that is done, rounded down: 100 means all of it."""
        return 100 * self.done // self.total if self.total else 100

    @property
    def remaining_s(self) -> float | None:
        """The time for the rest at the same speed; None before anything was done."""
        done_since = self.done - self.done_before
        if done_since <= 0:
            return 0.0 if self.done >= self.total else None
        return self.seconds / done_since * (self.total - self.done)
