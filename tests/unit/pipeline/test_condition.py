"""What a pipeline does instead of running comes before how fast it is."""

from dataclasses import replace
from typing import Any

import pytest

from slackwater.pipeline.condition import Condition, Level, condition
from slackwater.state.models import DesiredState, Pipeline, PipelineState

RUNNING = Pipeline("orders", "stream", state=PipelineState.RUNNING, owner="me", low_watermark_ns=1)


def seen(*, pipeline: dict[str, Any] | None = None, **known: Any) -> Condition | None:
    return condition(replace(RUNNING, **(pipeline or {})), **{"is_owner_dead": False, **known})


def test_a_pipeline_that_runs_has_no_condition() -> None:
    assert seen() is None


@pytest.mark.parametrize(
    ("pipeline", "known", "expected"),
    [
        ({"state": None, "owner": None}, {}, Condition("Has not started")),
        ({"state": PipelineState.NOT_RUNNING, "owner": None}, {}, Condition("Is not running")),
        (
            {
                "state": PipelineState.NOT_RUNNING,
                "owner": None,
                "desired_state": DesiredState.PAUSED,
            },
            {},
            Condition("Is not running, and is paused"),
        ),
        ({"owner": None}, {}, Condition("No process runs it", Level.WARNING)),
        (
            {},
            {"is_owner_dead": True},
            Condition("Its process has died, and no other has taken over", Level.WARNING),
        ),
        ({"state": PipelineState.PAUSED}, {}, Condition("Is paused")),
        (
            {"state": PipelineState.DRAINING, "desired_state": DesiredState.PAUSED},
            {},
            Condition("Finishes its epoch, then pauses"),
        ),
        (
            {"state": PipelineState.DRAINING, "desired_state": DesiredState.DRAINING},
            {},
            Condition("Finishes its epoch, then ends"),
        ),
        (
            {"state": PipelineState.FAILED_PERMANENTLY},
            {},
            Condition("Has failed and waits for an operator", Level.CRITICAL),
        ),
        (
            {"state": PipelineState.FAILED},
            {},
            Condition("Has failed, and will try again", Level.WARNING),
        ),
        (
            {},
            {"source_problem": "Spanner is away"},
            Condition("Spanner is away", Level.WARNING, is_held=False),
        ),
        (
            {"state": PipelineState.STARTING},
            {"scan_share": 0.25},
            Condition("Reads the initial scan: 25% done"),
        ),
        ({}, {"is_standby": True}, Condition("Stands by for me", is_held=False)),
        ({"state": PipelineState.STARTING}, {}, Condition("Is starting", is_held=False)),
    ],
)
def test_the_condition_is_said(
    pipeline: dict[str, Any], known: dict[str, Any], expected: Condition
) -> None:
    assert seen(pipeline=pipeline, **known) == expected


@pytest.mark.parametrize("state", [PipelineState.PAUSED, PipelineState.FAILED_PERMANENTLY])
def test_a_standby_says_what_keeps_the_owner_from_running(state: PipelineState) -> None:
    assert seen(pipeline={"state": state}, is_standby=True) == seen(pipeline={"state": state})
