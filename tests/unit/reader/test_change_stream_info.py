"""The properties of a change stream, read from the texts of the information schema."""

from __future__ import annotations

import pytest

from slackwater.reader.change_stream import Dialect
from slackwater.reader.database.change_stream_info import (
    ChangeStreamInfo,
    parse_retention_ns,
    require_supported,
)
from slackwater.reader.errors import UnsupportedStreamError
from slackwater.timestamp import seconds_to_ns


@pytest.mark.parametrize(
    ("text", "hours"), [("36h", 36), ("7d", 7 * 24), ("2880m", 48), ("86400s", 24), (None, 24)]
)
def test_a_retention_period_is_read_and_is_one_day_by_default(text: str | None, hours: int) -> None:
    assert parse_retention_ns(text) == seconds_to_ns(hours * 3_600)


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
