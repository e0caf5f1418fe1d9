import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.timestamp import format_rfc3339, parse_rfc3339

# Years 1 to 9999, Spanner's range.
NANOSECONDS = st.integers(-62_135_596_800 * 10**9, 253_402_300_799 * 10**9)


@given(NANOSECONDS)
def test_a_timestamp_survives_being_written_and_read(timestamp_ns: int) -> None:
    assert parse_rfc3339(format_rfc3339(timestamp_ns)) == timestamp_ns


def test_both_dialects_ways_of_writing_utc_are_the_same_time() -> None:
    assert parse_rfc3339("2026-11-21T02:39:07.362521Z") == parse_rfc3339(
        "2026-11-21T02:39:07.362521+00:00"
    )


def test_an_offset_is_taken_into_account() -> None:
    assert parse_rfc3339("2026-01-01T01:00:00+01:00") == parse_rfc3339("2026-01-01T00:00:00Z")


def test_half_a_microsecond_is_kept() -> None:
    assert format_rfc3339(parse_rfc3339("2026-01-01T00:00:00.0000005Z")).endswith(".000000500Z")


@pytest.mark.parametrize("text", ["", "now", "2026-01-01", "2026-01-01T00:00:00", "1764000000"])
def test_what_is_no_rfc3339_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="RFC 3339"):
        parse_rfc3339(text)
