"""Which read functions stand for a stream with one for each placement, from their names."""

from __future__ import annotations

import pytest

from slackwater.reader.change_stream import Dialect, PartitionMode
from slackwater.reader.database.read_functions import functions_of_placements
from slackwater.reader.errors import UnsupportedStreamError
from slackwater.reader.transport.statement import partition_query

PLACEMENTS = {"default": True, "europe": False, "asia": False}
ALL = {f"READ_S_{placement}" for placement in PLACEMENTS}


def test_each_placement_is_read_by_its_function_and_the_streams_own_is_left_out() -> None:
    expected = ("asia", "default", "europe")
    assert functions_of_placements("READ_S", ALL, PLACEMENTS, []) == expected
    assert functions_of_placements("READ_S", ALL | {"READ_S"}, PLACEMENTS, []) == expected


def test_the_streams_own_function_stands_for_a_default_placement_that_has_none() -> None:
    routines = ALL - {"READ_S_default"} | {"READ_S"}
    assert functions_of_placements("READ_S", routines, PLACEMENTS, []) == ("", "asia", "europe")


def test_the_name_is_the_functions_where_only_the_case_of_letters_differs() -> None:
    own, routines = (
        "read_proto_bytes_s",
        {"read_proto_bytes_s_europe", "read_proto_bytes_s_default"},
    )
    placements = {"default": True, "Europe": False}
    assert functions_of_placements(own, routines, placements, []) == ("default", "europe")


def test_functions_of_a_stream_whose_name_is_longer_are_not_this_ones() -> None:
    others = {f"READ_S_too_{placement}" for placement in PLACEMENTS} | {"READ_S_too"}
    both = ALL | others
    assert functions_of_placements("READ_S", both, PLACEMENTS, ["READ_S_too"]) == (
        "asia",
        "default",
        "europe",
    )
    assert functions_of_placements("READ_S_too", both, PLACEMENTS, ["READ_S"]) == (
        "asia",
        "default",
        "europe",
    )


@pytest.mark.parametrize(
    ("routines", "placements", "said"),
    [
        (ALL - {"READ_S_asia"}, PLACEMENTS, "no function READ_S_asia is visible"),
        (ALL - {"READ_S_default"}, PLACEMENTS, "no function READ_S_default is visible"),
        (ALL | {"READ_S_africa"}, PLACEMENTS, "do not match.*: READ_S_africa"),
        (set(), {}, "do not match.*there are none"),
        ({"READ_S_a`b"}, {"a`b": True}, "do not match.*: READ_S_a`b"),
    ],
)
def test_a_stream_of_which_a_part_might_not_be_read_is_refused(
    routines: set[str], placements: dict[str, bool], said: str
) -> None:
    with pytest.raises(UnsupportedStreamError, match=said) as refused:
        functions_of_placements("READ_S", routines, placements, [])
    assert refused.value.hint


@pytest.mark.parametrize(
    ("dialect", "name"),
    [
        (Dialect.GOOGLE_STANDARD_SQL, "`READ_S_europe`"),
        (Dialect.POSTGRESQL, '"spanner"."read_proto_bytes_S_europe"'),
    ],
)
def test_a_partition_is_queried_by_its_function(dialect: Dialect, name: str) -> None:
    statement = partition_query(
        dialect,
        "S",
        start_timestamp_ns=0,
        end_timestamp_ns=1,
        partition_token="t",
        heartbeat_ms=1_000,
        mode=PartitionMode.MUTABLE_KEY_RANGE,
        function="europe",
    )
    assert f" FROM {name}(" in statement.sql
