"""Draws the table of a pipeline's states as a Mermaid diagram into docs/architecture.md.

    python -m tests.support.state_diagram

An arrow stands for all events that lead from one state to another; in brackets the desired states
for which they do, where it is not all of them. What leads from each of the owner's states is drawn
once, from the box around them. An event that changes no state is not drawn, nor are those of
processes that do not stay: they lead where their counterparts do, and the process ends.
"""

import textwrap
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from slackwater.pipeline.transitions import TABLE, Action, Event, State, expand
from slackwater.state.models import DesiredState
from tests.support.repository import DOCS

PAGE: Final = DOCS / "architecture.md"
BEGIN: Final = "<!-- The drawing is made by `python -m tests.support.state_diagram`. -->\n"
END: Final = "<!-- End of the drawing. -->\n"
OWNER: Final = (
    State.STARTING,
    State.RUNNING,
    State.DRAINING,
    State.PAUSED,
    State.FAILED,
    State.FAILED_PERMANENTLY,
)
_NOT_DRAWN: Final = {Event.NO_QUERY_TO_CATCH_UP, Event.FAILED_AND_EXITS, Event.GIVEN_UP}
_WIDTH: Final = 44

Causes = dict[Event, set[DesiredState]]


def diagram() -> str:
    """Return the drawing as a fenced Mermaid block."""
    arrows: dict[tuple[State, State], Causes] = defaultdict(lambda: defaultdict(set))
    finals: set[State] = set()
    for (state, desired, event), (next_state, action) in expand(TABLE).items():
        if next_state is not state and event not in _NOT_DRAWN:
            arrows[state, next_state][event].add(desired)
        if action in (Action.FINISH, Action.RAISE) and next_state not in OWNER:
            finals.add(next_state)
    common = _common(arrows)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {_id(State.STANDING_BY)}"]
    lines += ["    state owner {"]
    lines += [f'        state "{state.value}" as {_id(state)}' for state in OWNER]
    for (state, next_state), causes in arrows.items():
        if state in OWNER and next_state in OWNER:
            lines.append(f"        {_arrow(_id(state), next_state, causes)}")
    lines.append("    }")
    for state in State:
        if state not in OWNER:
            lines.append(f'    state "{state.value}" as {_id(state)}')
    for (state, next_state), causes in arrows.items():
        if state not in OWNER or next_state not in OWNER:
            rest = causes
            if state in OWNER:
                rest = {e: d for e, d in causes.items() if d != common[next_state].get(e)}
            if rest:
                lines.append(f"    {_arrow(_id(state), next_state, rest)}")
    for next_state, causes in common.items():
        if causes:
            lines.append(f"    {_arrow('owner', next_state, causes)}")
    lines += [f"    {_id(state)} --> [*]" for state in State if state in finals]
    return "\n".join([*lines, "```", ""])


def _common(arrows: dict[tuple[State, State], Causes]) -> dict[State, Causes]:
    """Return what leads from each of the owner's states to one that is not the owner's."""
    common: dict[State, Causes] = {}
    for target in (state for state in State if state not in OWNER):
        first = arrows.get((OWNER[0], target), {})
        common[target] = {
            event: desired
            for event, desired in first.items()
            if all(arrows.get((state, target), {}).get(event) == desired for state in OWNER)
        }
    return common


def _arrow(source: str, target: State, causes: Causes) -> str:
    label = ", ".join(_labels(causes))
    return f"{source} --> {_id(target)}: " + "<br/>".join(textwrap.wrap(label, _WIDTH))


def _labels(causes: Causes) -> Iterator[str]:
    by_desired: dict[frozenset[DesiredState], list[str]] = defaultdict(list)
    for event, desired in causes.items():
        by_desired[frozenset(desired)].append(_words(event))
    for desired_states, events in by_desired.items():
        names = [_words(state) for state in DesiredState if state in desired_states]
        condition = "" if len(names) == len(DesiredState) else f" [{' or '.join(names)}]"
        yield f"{' or '.join(events)}{condition}"


def _words(member: Event | DesiredState) -> str:
    return member.name.lower().replace("_", " ")


def _id(state: State) -> str:
    return state.name.lower()


def drawn(page: str) -> str:
    """Return the drawing that stands on a page."""
    return page.split(BEGIN)[1].split(END)[0].strip("\n") + "\n"


def main() -> None:
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{diagram()}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
