"""Random histories of change stream partitions: splits, merges, moves, many at once."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st

STEP_NS = 1_000


@dataclass
class Life:
    """One partition as it truly was: it has a record at every microsecond of [start, end)."""

    token: str
    start_ns: int
    parents: frozenset[str]
    end_ns: int | None = None
    children: list[str] = field(default_factory=list)

    def record_times(self, start_ns: int, end_ns: int) -> list[int]:
        """The commit timestamps of its records in [start, end]."""
        first = max(self.start_ns, -(-start_ns // STEP_NS) * STEP_NS)
        last = end_ns if self.end_ns is None else min(end_ns, self.end_ns - 1)
        return list(range(first, last + 1, STEP_NS))


@dataclass
class History:
    """A stream's partitions from time 0 to end_ns."""

    lives: dict[str, Life]
    end_ns: int

    def alive_at(self, time_ns: int) -> list[Life]:
        """What a query with a NULL partition token announces."""
        return [
            life
            for life in self.lives.values()
            if life.start_ns <= time_ns and (life.end_ns is None or life.end_ns > time_ns)
        ]


def random_history(choose: random.Random) -> History:
    """A history chosen by a seed: for simulations that hypothesis can't drive."""
    lives: dict[str, Life] = {}

    def begin(start_ns: int, parents: frozenset[str]) -> Life:
        life = Life(f"p{len(lives)}", start_ns, parents)
        lives[life.token] = life
        return life

    alive = [begin(0, frozenset()) for _ in range(choose.randint(1, 4))]
    time_ns = 0
    for _ in range(choose.randint(2, 14)):
        time_ns += choose.randint(0, 4) * STEP_NS
        old = [life for life in alive if life.start_ns < time_ns]
        if old:
            parents = choose.sample(old, min(len(old), choose.randint(1, 3)))
            children = _hand_over(parents, time_ns, choose.randint(1, 3), begin)
            alive = [life for life in alive if life not in parents] + children
    return History(lives, time_ns + 4 * STEP_NS)


def _hand_over(
    parents: list[Life], time_ns: int, children: int, begin: Callable[[int, frozenset[str]], Life]
) -> list[Life]:
    made = [begin(time_ns, frozenset(life.token for life in parents)) for _ in range(children)]
    for parent in parents:
        parent.end_ns = time_ns
        parent.children = [child.token for child in made]
    return made


@st.composite
def histories(draw: st.DrawFn, *, events_max: int = 12, roots_max: int = 3) -> History:
    """A history; every event replaces some partitions by others at one moment."""
    lives: dict[str, Life] = {}

    def begin(start_ns: int, parents: frozenset[str]) -> Life:
        life = Life(f"p{len(lives)}", start_ns, parents)
        lives[life.token] = life
        return life

    alive = [begin(0, frozenset()) for _ in range(draw(st.integers(1, roots_max)))]
    time_ns = 0
    for _ in range(draw(st.integers(0, events_max))):
        time_ns += draw(st.integers(0, 4)) * STEP_NS
        old = [life for life in alive if life.start_ns < time_ns]
        if not old:
            continue
        parents = draw(st.lists(st.sampled_from(old), min_size=1, max_size=3, unique_by=id))
        tokens = frozenset(life.token for life in parents)
        children = [begin(time_ns, tokens) for _ in range(draw(st.integers(1, 3)))]
        if len(children) > 1 and len(parents) > 1 and draw(st.booleans()):
            # Not every child need have every parent, but every parent has a child.
            for child in children[1:]:
                child.parents = frozenset(
                    draw(st.lists(st.sampled_from(sorted(tokens)), min_size=1, unique=True))
                )
        for parent in parents:
            parent.end_ns = time_ns
            parent.children = [c.token for c in children if parent.token in c.parents]
        alive = [life for life in alive if life not in parents] + children
    return History(lives, time_ns + 4 * STEP_NS)
