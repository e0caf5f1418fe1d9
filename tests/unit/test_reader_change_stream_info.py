"""The properties of a change stream, read from the texts of the information schema."""

from __future__ import annotations

import pytest

from slackwater.reader.database.change_stream_info import parse_retention_ns
from slackwater.timestamp import seconds_to_ns


@pytest.mark.parametrize(
    ("text", "hours"), [("36h", 36), ("7d", 7 * 24), ("2880m", 48), ("86400s", 24), (None, 24)]
)
def test_a_retention_period_is_read_and_is_one_day_by_default(text: str | None, hours: int) -> None:
    assert parse_retention_ns(text) == seconds_to_ns(hours * 3_600)
