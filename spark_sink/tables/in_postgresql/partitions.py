"""The partitions of a typed changelog: one for each hour, day, month or year of its commits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from slackwater.spark_sink.tables.by_transaction.names import TableAddress, digest
from slackwater.spark_sink.tables.in_postgresql.address import NAME_MAX
from slackwater.spark_sink.tables.time_partitions import (
    PARTITIONING,
    TimePartitions,
    time_partitions,
)


class _Unit(NamedTuple):
    """A unit of time: the form of a time up to it, and what it lasts at most."""

    form: str
    beyond: timedelta


_UNITS: Final[Mapping[str, _Unit]] = {
    "HOUR": _Unit("%Y-%m-%dT%H", timedelta(hours=1)),
    "DAY": _Unit("%Y-%m-%d", timedelta(days=1)),
    "MONTH": _Unit("%Y-%m", timedelta(days=31)),
    "YEAR": _Unit("%Y", timedelta(days=366)),
}


def partitions_asked_for(
    properties: Mapping[str, str], *, are_mirrors: bool
) -> TimePartitions | None:
    """Return the partitions of new tables; None for none.

    Args:
        properties: those of sink.table_properties.
        are_mirrors: the tables' rows are of no time.

    Raises:
        ValueError: a value is not possible, or does not go with another one.
    """
    if are_mirrors:
        if named := [name for name in properties if name in PARTITIONING]:
            raise ValueError(f"{named[0]} goes with changelogs only: mirrors are of no time")
        return None
    partitions = time_partitions(properties, None)
    others = [name for name in properties if name not in PARTITIONING]
    if partitions is not None and others:
        raise ValueError(f"{others[0]}: in PostgreSQL a table with partitions has no such property")
    return partitions


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a table.

    Attributes:
        address: its name.
        start, end: it has the commits from the one to before the other.
    """

    address: TableAddress
    start: datetime
    end: datetime


def partition_at(table: TableAddress, unit: str, at: datetime) -> Partition:
    """Return the partition of a time in UTC; no table of Spanner's has a name with a space."""
    form, beyond = _UNITS[unit]
    start = _start(at.strftime(form), form)
    end = start + beyond
    if unit in ("MONTH", "YEAR"):
        end = _start(end.strftime(form), form)
    name = f"{table.name} {start.strftime(form)}"
    if len(name.encode()) > NAME_MAX:
        name = f"{digest(table.name)} {start.strftime(form)}"
    return Partition(TableAddress(table.schema, name), start, end)


def expired(
    table: TableAddress, names: Iterable[str], partitions: TimePartitions, now: datetime
) -> list[TableAddress]:
    """Return the partitions that are to be removed; those that others made stay.

    Args:
        table: the table.
        names: those of its partitions.
        partitions: how it is partitioned.
        now: the time of the newest rows.
    """
    if partitions.days is None:
        return []
    gone = []
    for name in names:
        try:
            start = _start(name.rpartition(" ")[2], _UNITS[partitions.unit].form)
        except ValueError:
            continue
        partition = partition_at(table, partitions.unit, start)
        is_own = partition.address.name == name
        if is_own and partition.end <= now - timedelta(days=partitions.days):
            gone.append(partition.address)
    return gone


def _start(text: str, form: str) -> datetime:
    return datetime.strptime(text, form).replace(tzinfo=UTC)
