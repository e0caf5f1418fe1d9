"""The change records of a change stream query.

With partition_mode IMMUTABLE_KEY_RANGE a query returns data change, heartbeat and child partitions
records; with MUTABLE_KEY_RANGE data change, heartbeat, partition start, partition end and partition
event records.

Fields have Spanner's names: see "Change streams record format" in Spanner's documentation, and
google/spanner/v1/change_stream.proto. Timestamps are whole nanoseconds since the Unix epoch, UTC.
"""

from dataclasses import dataclass
from typing import NamedTuple


class ColumnType(NamedTuple):
    """A column of a data change record; type is Spanner's JSON text of the column's type."""

    name: str
    type: str
    is_primary_key: bool
    ordinal_position: int


class Mod(NamedTuple):
    """A changed row: three JSON objects as Spanner wrote them, or None if it sent NULL."""

    keys: str | None
    new_values: str | None
    old_values: str | None


class DataChangeRecord(NamedTuple):
    """Changes with one mod_type that a transaction made to one table, in one partition.

    It is a tuple because millions are made, and a frozen dataclass takes five times as long.
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
    """A record that all changes committed at or before timestamp_ns have been returned."""

    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class ChildPartition:
    """A partition that continues others: its parents.

    parent_partition_tokens is empty in the answer to a query with a NULL partition token.
    """

    token: str
    parent_partition_tokens: frozenset[str]


@dataclass(frozen=True, slots=True)
class ChildPartitionsRecord:
    """A record that names partitions which have the changes from start_timestamp_ns on."""

    start_timestamp_ns: int
    record_sequence: str
    child_partitions: tuple[ChildPartition, ...]


@dataclass(frozen=True, slots=True)
class PartitionStartRecord:
    """A record that names partitions which have changes from start_timestamp_ns on, inclusive.

    Several partitions may announce the same one. Those that a query with a NULL partition token
    names start at the query's start_timestamp.
    """

    start_timestamp_ns: int
    record_sequence: str
    partition_tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartitionEndRecord:
    """The last record of its partition, whose changes have timestamps <= end_timestamp_ns."""

    end_timestamp_ns: int
    record_sequence: str
    partition_token: str


@dataclass(frozen=True, slots=True)
class PartitionEventRecord:
    """A record that keys moved into or out of its partition at commit_timestamp_ns.

    Attributes:
        move_in_sources: the tokens of the partitions from which keys moved in.
        move_out_destinations: the tokens of the partitions to which keys moved out.
    """

    commit_timestamp_ns: int
    record_sequence: str
    partition_token: str
    move_in_sources: tuple[str, ...]
    move_out_destinations: tuple[str, ...]


# Records about partitions rather than data.
PartitionRecord = (
    ChildPartitionsRecord | PartitionStartRecord | PartitionEndRecord | PartitionEventRecord
)
ChangeRecord = DataChangeRecord | HeartbeatRecord | PartitionRecord
