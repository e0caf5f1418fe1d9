"""What an operator may accept after a loss, and what would write records twice or leave any out."""

import pytest

from slackwater.errors import RecoveryError
from slackwater.pipeline.recovery import (
    LAST,
    Recovery,
    named_watermark_ns,
    other_command,
    recovery_command,
    require_gap,
    start_after_lost_checkpoint_ns,
    with_command,
)
from slackwater.timestamp import format_rfc3339, parse_rfc3339

WATERMARK = "2026-01-31T09:00:00.1234565Z"
WATERMARK_NS = parse_rfc3339(WATERMARK)


@pytest.mark.parametrize("named", [LAST, WATERMARK])
def test_a_lost_checkpoint_is_replaced_from_the_last_epoch(named: str) -> None:
    start_ns = start_after_lost_checkpoint_ns("orders", named, last_ns=WATERMARK_NS)
    assert start_ns == WATERMARK_NS


def test_where_no_epoch_is_known_the_operator_names_the_low_watermark() -> None:
    assert start_after_lost_checkpoint_ns("orders", WATERMARK, last_ns=None) == WATERMARK_NS
    with pytest.raises(RecoveryError, match="has an epoch of 'orders'"):
        start_after_lost_checkpoint_ns("orders", LAST, last_ns=None)


@pytest.mark.parametrize(
    ("seconds", "harm"), [(-1, "write records twice"), (1, "leave records out")]
)
def test_another_low_watermark_than_the_last_is_refused(seconds: int, harm: str) -> None:
    named = format_rfc3339(WATERMARK_NS + seconds * 10**9)
    with pytest.raises(RecoveryError, match=harm) as raised:
        start_after_lost_checkpoint_ns("orders", named, last_ns=WATERMARK_NS)
    assert raised.value.hint == "Use --from-watermark last"


def test_where_the_output_can_not_tell_the_operator_may_know_better() -> None:
    named = format_rfc3339(WATERMARK_NS - 10**9)
    start_ns = start_after_lost_checkpoint_ns(
        "orders", named, last_ns=WATERMARK_NS, is_certain=False
    )
    assert start_ns == WATERMARK_NS - 10**9


def test_a_time_on_the_command_line_has_to_be_one() -> None:
    with pytest.raises(RecoveryError) as raised:
        named_watermark_ns("yesterday")
    assert "RFC 3339" in raised.value.hint


def test_a_gap_lies_after_the_last_epoch() -> None:
    require_gap(WATERMARK_NS, WATERMARK_NS + 1)
    with pytest.raises(RecoveryError, match="nothing need be skipped"):
        require_gap(WATERMARK_NS, WATERMARK_NS)


def test_a_remedy_is_the_command_that_works_where_the_pipeline_is() -> None:
    hint = "Gone. To continue without them: `slackwater run --skip-to earliest`, or do nothing"
    beside = recovery_command(stays=True, file_option=" -c a.yaml", pipeline="orders")
    assert with_command(hint, beside) == (
        "Gone. To continue without them: `slackwater resume -c a.yaml --pipeline orders"
        " --skip-to earliest`, or do nothing"
    )
    assert other_command(beside, "rescan --stop") == (
        "slackwater rescan --stop -c a.yaml --pipeline orders"
    )
    alone = recovery_command(stays=False, file_option="", pipeline=None)
    assert with_command(hint, alone) == hint
    assert other_command(alone, "rescan --stop") == "slackwater rescan --stop"


@pytest.mark.parametrize("recovery", [Recovery("soon"), Recovery(skip_to="last")])
def test_what_is_accepted_is_checked_before_it_is_requested(recovery: Recovery) -> None:
    with pytest.raises(RecoveryError, match="Use earliest, last or an RFC 3339 time"):
        recovery.require_valid()
