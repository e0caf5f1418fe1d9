"""Which read functions stand for a stream with one for each placement, from their names."""

import pytest

from slackwater.reader.change_stream import Dialect, PartitionMode
from slackwater.reader.database.read_functions import functions_of_placements
from slackwater.reader.errors import UnsupportedStreamError
from slackwater.reader.transport.statement import partition_query

PLACEMENTS = {"default": True, "europe": False, "asia": False}
ALL = {f"READ_S_{placement}" for placement in PLACEMENTS}


# Functions of a stream whose name is longer.
LONGER = {f"READ_S_too_{placement}" for placement in PLACEMENTS} | {"READ_S_too"}


@pytest.mark.parametrize(
    ("own", "routines", "placements", "others", "functions"),
    [
        ("READ_S", ALL, PLACEMENTS, [], ("asia", "default", "europe")),
        ("READ_S", ALL | {"READ_S"}, PLACEMENTS, [], ("asia", "default", "europe")),
        # The stream's own function stands for a default placement that has none.
        (
            "READ_S",
            ALL - {"READ_S_default"} | {"READ_S"},
            PLACEMENTS,
            [],
            ("", "asia", "europe"),
        ),
        # The name is the function's where only the case of letters differs.
        (
            "read_proto_bytes_s",
            {"read_proto_bytes_s_europe", "read_proto_bytes_s_default"},
            {"default": True, "Europe": False},
            [],
            ("default", "europe"),
        ),
        ("READ_S", ALL | LONGER, PLACEMENTS, ["READ_S_too"], ("asia", "default", "europe")),
        ("READ_S_too", ALL | LONGER, PLACEMENTS, ["READ_S"], ("asia", "default", "europe")),
    ],
)
def test_each_placement_is_read_by_its_function(
    own: str,
    routines: set[str],
    placements: dict[str, bool],
    others: list[str],
    functions: tuple[str, ...],
) -> None:
    assert functions_of_placements(own, routines, placements, others) == functions


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
