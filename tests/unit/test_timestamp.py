from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.timestamp import (
    HALF_MICROSECOND_NS,
    NANOSECONDS_PER_MICROSECOND,
    ceil_to_us,
    datetime_to_ns,
    datetime_to_rfc3339,
    datetime_to_us,
    floor_to_us,
    format_rfc3339,
    ms_to_ns,
    ms_to_seconds,
    ns_to_datetime,
    ns_to_ms,
    ns_to_seconds,
    ns_to_us,
    parse_rfc3339,
    seconds_to_ms,
    seconds_to_ns,
    us_to_datetime,
    us_to_ms,
    us_to_ns,
)

# Years 1 to 9999, Spanner's range.
NANOSECONDS = st.integers(-62_135_596_800 * 10**9, 253_402_300_799 * 10**9)
# What int64 holds, as numpy's arrays do: the years 1678 to 2261.
INT64_NANOSECONDS = st.integers(-9_214_560_000 * 10**9, 9_214_646_400 * 10**9)
DATETIMES = st.datetimes(
    # A day away from both ends, so that any offset stays between them.
    datetime(1, 1, 2),  # noqa: DTZ001 - hypothesis adds the zone
    datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=-11)), timezone(timedelta(hours=2))]),
)
DURATIONS_MS = st.integers(-(10**12), 10**12)


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
def test_a_text_that_is_not_an_rfc3339_timestamp_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="RFC 3339"):
        parse_rfc3339(text)


@given(DATETIMES)
def test_a_datetime_survives_as_an_integer_and_as_a_text(timestamp: datetime) -> None:
    assert us_to_datetime(datetime_to_us(timestamp)) == timestamp
    assert ns_to_datetime(datetime_to_ns(timestamp)) == timestamp
    assert parse_rfc3339(datetime_to_rfc3339(timestamp)) == datetime_to_ns(timestamp)
    assert datetime_to_rfc3339(timestamp) == format_rfc3339(datetime_to_ns(timestamp))


def test_a_datetime_in_another_zone_is_written_in_utc() -> None:
    timestamp = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    assert datetime_to_rfc3339(timestamp) == "2026-01-01T00:00:00.000000Z"


def test_a_naive_datetime_is_in_the_zone_of_the_machine() -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 - that is the point
    assert datetime_to_us(naive) == datetime_to_us(naive.astimezone())
    assert datetime_to_rfc3339(naive) == datetime_to_rfc3339(naive.astimezone())


@given(NANOSECONDS)
def test_a_datetime_never_lies_after_the_nanoseconds_it_was_made_of(timestamp_ns: int) -> None:
    behind_ns = timestamp_ns - datetime_to_ns(ns_to_datetime(timestamp_ns))
    assert 0 <= behind_ns < NANOSECONDS_PER_MICROSECOND


@given(NANOSECONDS)
def test_microseconds_are_rounded_down_before_1970_as_after_it(timestamp_ns: int) -> None:
    assert us_to_ns(ns_to_us(timestamp_ns)) == floor_to_us(timestamp_ns)
    assert 0 <= timestamp_ns - floor_to_us(timestamp_ns) < NANOSECONDS_PER_MICROSECOND
    assert 0 <= ceil_to_us(timestamp_ns) - timestamp_ns < NANOSECONDS_PER_MICROSECOND
    assert ceil_to_us(timestamp_ns) % NANOSECONDS_PER_MICROSECOND == 0


def test_only_a_whole_microsecond_is_its_own_floor_and_ceiling() -> None:
    assert floor_to_us(-2_000) == ceil_to_us(-2_000) == -2_000
    assert (floor_to_us(-1), ceil_to_us(-1)) == (-1_000, 0)
    assert (floor_to_us(HALF_MICROSECOND_NS), ceil_to_us(HALF_MICROSECOND_NS)) == (0, 1_000)


@given(st.lists(INT64_NANOSECONDS))
def test_an_array_is_converted_as_its_elements_are(timestamps_ns: list[int]) -> None:
    array = np.array(timestamps_ns, np.int64)
    assert ns_to_us(array).dtype == us_to_ns(ns_to_us(array)).dtype == np.int64
    assert ns_to_us(array).tolist() == [ns_to_us(ns) for ns in timestamps_ns]
    assert us_to_ns(ns_to_us(array)).tolist() == [floor_to_us(ns) for ns in timestamps_ns]


@given(NANOSECONDS)
def test_milliseconds_are_rounded_down_before_1970_as_after_it(timestamp_ns: int) -> None:
    assert 0 <= timestamp_ns - ms_to_ns(ns_to_ms(timestamp_ns)) < ms_to_ns(1)
    assert us_to_ms(ns_to_us(timestamp_ns)) == ns_to_ms(timestamp_ns)


@given(DURATIONS_MS)
def test_a_duration_survives_as_seconds(duration_ms: int) -> None:
    assert seconds_to_ms(ms_to_seconds(duration_ms)) == duration_ms
    assert ns_to_ms(ms_to_ns(duration_ms)) == duration_ms
    assert ns_to_seconds(ms_to_ns(duration_ms)) == ms_to_seconds(duration_ms)


@given(st.integers(-(10**11), 10**11))
def test_whole_seconds_become_nanoseconds_exactly(seconds: int) -> None:
    assert seconds_to_ns(seconds) == seconds * 10**9


def test_a_fraction_of_a_second_is_rounded_to_the_nearest() -> None:
    assert (seconds_to_ms(1.0006), seconds_to_ms(-1.0006)) == (1_001, -1_001)
    assert (seconds_to_ns(0.1), seconds_to_ns(-0.1)) == (10**8, -(10**8))
