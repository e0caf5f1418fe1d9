"""The properties of a change stream, read from the texts of the information schema."""

import pytest

from slackwater.reader.change_stream import Dialect
from slackwater.reader.database.change_stream_info import (
    ChangeStreamInfo,
    parse_retention_ns,
    require_supported,
    retention_text,
)
from slackwater.reader.errors import UnsupportedStreamError
from slackwater.timestamp import seconds_to_ns


@pytest.mark.parametrize(
    ("text", "hours"),
    [("36h", 36), ("7d", 7 * 24), ("30d", 30 * 24), ("2880m", 48), ("86400s", 24)],
)
def test_a_retention_period_is_read(text: str, hours: int) -> None:
    assert parse_retention_ns(text) == seconds_to_ns(hours * 3_600)


@pytest.mark.parametrize("text", [None, "a while"])
def test_a_retention_period_that_is_not_stated_is_unknown(text: str | None) -> None:
    assert parse_retention_ns(text) is None
    assert retention_text(None) == "for an unknown time"
    assert retention_text(seconds_to_ns(36 * 3_600)) == "for 1.5 d"


@pytest.mark.parametrize(
    ("option", "value"),
    [("partition_mode", "SOME_OTHER_MODE"), ("per_placement_tvf", "true")],
)
def test_a_stream_that_would_be_read_only_in_part_is_refused(option: str, value: str) -> None:
    with pytest.raises(UnsupportedStreamError, match=f"'Orders' has {option}.*{value}") as refusal:
        require_supported("Orders", {"retention_period": "7d", option: value})
    assert refusal.value.hint
    assert refusal.value.user_error


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"partition_mode": "IMMUTABLE_KEY_RANGE"},
        {"partition_mode": "mutable_key_range"},
        {"per_placement_tvf": "false"},
        {"partition_mode": "MUTABLE_KEY_RANGE", "per_placement_tvf": "true"},
    ],
)
def test_streams_of_both_partition_modes_are_accepted(options: dict[str, str]) -> None:
    require_supported("Orders", options)
    info = ChangeStreamInfo(Dialect.GOOGLE_STANDARD_SQL, 1, options)
    expected = options.get("partition_mode", "immutable_key_range")
    assert info.partition_mode.value == expected.upper()
