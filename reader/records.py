"""The three change records of a change stream query, and how its partitions are announced.

Fields carry Spanner's names: see "Change streams record format" in Spanner's documentation of
change streams partitions, records, and queries. Timestamps are whole nanoseconds since the Unix
epoch, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class ColumnType(NamedTuple):
    """A column that a data change record speaks of; type is Spanner's JSON text of its type."""

    name: str
    type: str
    is_primary_key: bool
    ordinal_position: int


class Mod(NamedTuple):
    """One changed row: three JSON texts, or None where Spanner sent NULL."""

    keys: str | None
    new_values: str | None
    old_values: str | None


class DataChangeRecord(NamedTuple):
    """Changes to one table with one mod_type, of one transaction in one partition.

    A tuple and not a dataclass: millions of them are made, and a frozen dataclass costs five times
    as much to make.
    """

    commit_timestamp_ns: int
    server_transaction_id: str
    record_sequence: str
    is_last_record_in_transaction_in_partition: bool
    table_name: str
    column_types: tuple[ColumnType, ...]
    mods: tuple[Mod, ...]
    mod_type: str
    value_capture_type: str
    number_of_records_in_transaction: int
    number_of_partitions_in_transaction: int
    transaction_tag: str
    is_system_transaction: bool


@dataclass(frozen=True, slots=True)
class HeartbeatRecord:
    """All changes with commit_timestamp at or before timestamp_ns have been returned."""

    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class ChildPartition:
    """A partition that takes over, and the partitions it takes over from.

    parent_partition_tokens is empty where a query with a NULL partition token announced it.
    """

    token: str
    parent_partition_tokens: frozenset[str]


@dataclass(frozen=True, slots=True)
class ChildPartitionsRecord:
    """Partitions that hold the changes from start_timestamp_ns on."""

    start_timestamp_ns: int
    record_sequence: str
    child_partitions: tuple[ChildPartition, ...]


ChangeRecord = DataChangeRecord | HeartbeatRecord | ChildPartitionsRecord
