"""Partitions by commit timestamp: which there are, and which are removed."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.spark_sink.tables.by_transaction.names import TableAddress
from slackwater.spark_sink.tables.in_postgresql.address import NAME_MAX
from slackwater.spark_sink.tables.in_postgresql.partitions import (
    expired,
    partition_at,
    partitions_asked_for,
)
from slackwater.spark_sink.tables.time_partitions import TimePartitions

UNITS = ("HOUR", "DAY", "MONTH", "YEAR")
TABLE = TableAddress("archive", "Notes")
times = st.integers(0, 250_000_000_000).map(lambda second: datetime.fromtimestamp(second, UTC))


@given(times, st.sampled_from(UNITS))
def test_a_time_is_in_its_partition_and_the_next_one_begins_where_it_ends(
    at: datetime, unit: str
) -> None:
    partition = partition_at(TABLE, unit, at)
    assert partition.start <= at < partition.end
    assert partition_at(TABLE, unit, partition.start) == partition
    assert partition_at(TABLE, unit, partition.end).start == partition.end
    before = partition_at(TABLE, unit, partition.start - timedelta(microseconds=1))
    assert before.end == partition.start


def test_a_partition_is_named_by_its_table_and_time() -> None:
    at = datetime(2026, 11, 29, 23, 59, tzinfo=UTC)
    names = [partition_at(TABLE, unit, at).address.name for unit in UNITS]
    assert names == ["Notes 2026-11-29T23", "Notes 2026-11-29", "Notes 2026-11", "Notes 2026"]


def test_long_names_are_not_cut_by_the_server() -> None:
    at = datetime(2026, 11, 29, tzinfo=UTC)
    tables = [TableAddress(None, "N" * (NAME_MAX - 1) + last) for last in "ab"]
    names = {partition_at(table, "DAY", at).address.name for table in tables}
    assert len(names) == 2
    assert all(len(name.encode()) <= NAME_MAX for name in names)
    [table, _] = tables
    name = partition_at(table, "DAY", at).address.name
    later = at + timedelta(days=9)
    assert [a.name for a in expired(table, [name], TimePartitions("DAY", 8), later)] == [name]


@pytest.mark.parametrize(("days", "gone"), [(None, []), (2, []), (1, ["Notes 2026-11-27"])])
def test_a_partition_is_removed_so_many_days_after_its_end(
    days: int | None, gone: list[str]
) -> None:
    names = ["Notes 2026-11-27", "Notes 2026-11-28", "old", "others 2020-01-01", "Notes 2020"]
    now = datetime(2026, 11, 29, 1, tzinfo=UTC)
    removed = expired(TABLE, names, TimePartitions("DAY", days), now)
    assert [(one.schema, one.name) for one in removed] == [("archive", name) for name in gone]


@pytest.mark.parametrize(
    ("properties", "are_mirrors", "says"),
    [
        ({"partition_by": "WEEK"}, False, "partition_by is WEEK, and not one of HOUR"),
        ({"partition_by": "DAY", "partition_expiration_days": "0"}, False, "is 0, and not"),
        ({"partition_expiration_days": "3"}, False, "needs partition_by"),
        ({"partition_by": "DAY", "fillfactor": "90"}, False, "fillfactor: in PostgreSQL"),
        ({"partition_by": "DAY"}, True, "goes with changelogs only"),
        ({"partition_expiration_days": "3"}, True, "goes with changelogs only"),
    ],
)
def test_what_can_t_be_partitioned_is_named(
    properties: dict[str, str], are_mirrors: bool, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        partitions_asked_for(properties, are_mirrors=are_mirrors)
