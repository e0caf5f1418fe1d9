"""Whether a pipeline is ready, and what its status shows, without a store or a clock."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from slackwater.monitoring.status import PipelineStatus
from slackwater.state.models import OpenQuery, Pipeline, PipelineState

SECOND_NS = 10**9
RUNNING = Pipeline(
    "orders", "stream", low_watermark_ns=40 * SECOND_NS, state=PipelineState.RUNNING, owner="me"
)
READY = PipelineStatus(
    pipeline=RUNNING,
    is_owner=True,
    clock_ns=50 * SECOND_NS,
    retention_ns=100 * SECOND_NS,
    partitions=(),
    by_state=Counter(),
    queries=(),
    held_back=None,
)
STALLED = OpenQuery("token", 40 * SECOND_NS, 9_000, 8_000, 2)
SLOW = OpenQuery("token", 40 * SECOND_NS, 9_000, 100, 0)


def test_a_pipeline_that_is_connected_owned_and_not_stalled_is_ready() -> None:
    assert READY.unready_reason() is None
    assert replace(READY, queries=(SLOW,), held_back=SLOW).unready_reason() is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"is_looked_up": False}, "the change stream has not been looked up yet"),
        ({"is_owner": False}, "standing by for me"),
        ({"held_back": STALLED}, "partition token is stalled"),
        # Its partitions are silent because Spanner is.
        (
            {"held_back": STALLED, "source_silent_s": 40.0},
            "Spanner has not answered for 40 s",
        ),
        ({"source_silent_s": 40.0, "service": "Bigtable"}, "Bigtable has not answered for 40 s"),
        ({"held_back": replace(STALLED, token="A" * 130)}, f"partition {'A' * 12} is stalled"),
        (
            {"pipeline": replace(RUNNING, state=PipelineState.FAILED, state_reason="no disk")},
            "failed: no disk",
        ),
        (
            {"pipeline": replace(RUNNING, state=PipelineState.FAILED_PERMANENTLY)},
            "failed permanently: ",
        ),
        (
            {"pipeline": replace(RUNNING, state=PipelineState.STARTING), "executors": 0},
            "starting: no executor has registered yet",
        ),
        (
            # Also between two tries of a query whose tasks fail, and before the first epoch.
            {"pipeline": replace(RUNNING, state=PipelineState.STARTING), "executors": 2},
            "starting: no epoch is committed yet",
        ),
        (
            {"pipeline": replace(RUNNING, state=PipelineState.STARTING)},
            "starting: no epoch is committed yet",
        ),
    ],
)
def test_a_pipeline_that_is_not_ready_says_why(changed: dict[str, Any], reason: str) -> None:
    assert replace(READY, **changed).unready_reason() == reason


@pytest.mark.parametrize("state", [PipelineState.PAUSED, PipelineState.DRAINING])
def test_a_pipeline_that_is_paused_or_drained_remains_ready(state: PipelineState) -> None:
    assert replace(READY, pipeline=replace(RUNNING, state=state)).unready_reason() is None


def test_a_standby_is_ready_only_for_those_who_ask_so_and_only_if_it_can_take_over() -> None:
    # It has not looked the change stream up; its owner may be starting or have failed.
    standby = replace(
        READY,
        is_owner=False,
        stands_by=True,
        is_looked_up=False,
        pipeline=replace(RUNNING, state=PipelineState.FAILED),
    )
    assert standby.unready_reason(standby_is_ready=True) is None
    assert standby.unready_reason() is not None
    still_starts_spark = replace(standby, stands_by=False)
    assert still_starts_spark.unready_reason(standby_is_ready=True) is not None
    without_store = replace(standby, store_silent_s=20.0)
    reason = "the metadata store has not answered for 20 s"
    assert without_store.unready_reason(standby_is_ready=True) == reason


def test_the_lag_is_measured_by_spanners_clock_and_as_a_share_of_the_retention() -> None:
    assert READY.lag_ns == 10 * SECOND_NS
    assert READY.retention_used == 0.1
    of_unknown_retention = replace(READY, retention_ns=None)
    assert of_unknown_retention.retention_used is None
    assert of_unknown_retention.unready_reason() is None
    before_the_first_epoch = replace(READY, pipeline=replace(RUNNING, low_watermark_ns=None))
    assert before_the_first_epoch.lag_ns is None
    assert before_the_first_epoch.retention_used is None
    assert before_the_first_epoch.json_fields()["lag_seconds"] is None


def test_queries_that_were_opened_again_are_listed_as_stalled() -> None:
    fields = replace(READY, queries=(STALLED, SLOW), held_back=STALLED).json_fields()
    assert [query["stalls"] for query in fields["stalled"]] == [2]
    assert fields["held_back_by"]["partition"] == "token"
    assert fields["held_back_by"]["silent_seconds"] == 8.0
