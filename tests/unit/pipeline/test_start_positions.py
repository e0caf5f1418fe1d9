"""Where the positions of a table of Bigtable's come from when a query starts."""

from dataclasses import replace
from typing import Any

import pytest

from slackwater.pipeline.start_positions import Origin, StartFacts, origin_of

AT, BEFORE = 20, 10
# The output ends with an epoch with rows, whose plan the store has.
WRITTEN = StartFacts(AT, AT, is_told=True, is_in_output=False, stored_ns=BEFORE, has_plan=True)
# It ends with an epoch without rows, which may have been read again since.
EMPTY = replace(WRITTEN, committed_ns=BEFORE)


@pytest.mark.parametrize(
    ("facts", "changed", "origin"),
    [
        (WRITTEN, {}, Origin.PLAN),
        # The plan may be that of another reading of the epoch, in a copy of the store.
        (WRITTEN, {"is_in_output": True}, Origin.OUTPUT),
        (WRITTEN, {"stored_ns": AT}, Origin.STORE),
        (WRITTEN, {"has_plan": False}, Origin.LOST),
        (WRITTEN, {"has_plan": False, "stored_ns": None}, Origin.LOST),
        (EMPTY, {}, Origin.STORE),
        (EMPTY, {"stored_ns": BEFORE - 1}, Origin.LOST),
        (EMPTY, {"stored_ns": AT + 1}, Origin.LOST),
        (EMPTY, {"stored_ns": None}, Origin.LOST),
        (EMPTY, {"committed_ns": None}, Origin.STORE),
        # Nobody can tell what was sent: at least once.
        (EMPTY, {"committed_ns": None, "is_told": False}, Origin.PLAN),
    ],
)
def test_only_positions_of_what_was_written_are_read_on_from(
    facts: StartFacts, changed: dict[str, Any], origin: Origin
) -> None:
    assert origin_of(replace(facts, **changed)) is origin
