"""The progress of one partition: the time through which it has been read.

A heartbeat at H means that all records at or before H have been returned. Any other record at T
means only that all records before T have, since more records at T may follow ("Heartbeat records"
in Spanner's documentation).

With mutable key ranges, records of several kinds may share T. Their record_sequence is unique for a
timestamp in a partition (google/spanner/v1/change_stream.proto). It is compared for equality only:
its order is that of a transaction's records, and the emulator numbers each kind by itself.
"""

from collections.abc import Iterable, Sequence

from slackwater.reader.records import (
    ChangeRecord,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    PartitionEndRecord,
    PartitionEventRecord,
)


class PartitionProgress:
    """The position from which a broken query resumes, and the records already handed on there.

    It is mutable because the 80,000 records of one transaction share a commit timestamp: copying
    the set of those handed on for every message would take quadratic time.

    Attributes:
        reopen_ns: the start_timestamp of the next query, nanoseconds; it never goes back.
    """

    __slots__ = ("_handed_on", "reopen_ns")

    def __init__(self, start_ns: int) -> None:
        self.reopen_ns = start_ns
        self._handed_on: set[tuple[str, str]] = set()

    @property
    def watermark_ns(self) -> int:
        """The time, inclusive, up to which all records of the partition have come."""
        return self.reopen_ns - 1

    def drop_duplicates(self, records: Sequence[ChangeRecord]) -> Sequence[ChangeRecord]:
        """Return those records of a reopened query that were not handed on before."""
        return [record for record in records if not self._was_handed_on(record)]

    def advance(self, records: Sequence[ChangeRecord]) -> None:
        """Advance past records that are handed on, in the order in which they came.

        Raises:
            ValueError: a record that comes once is older than the ones before it. Spanner
                guarantees commit order within a partition; without it, records would be lost when
                the query is opened again.
        """
        for record in records:
            time_ns = record_time_ns(record)
            if time_ns > self.reopen_ns:
                self.reopen_ns = time_ns
                self._handed_on.clear()
            key = record_key(record)
            if key is not None:
                if time_ns < self.reopen_ns:
                    raise ValueError(f"a record at {time_ns} came after {self.reopen_ns}")
                self._handed_on.add(key)

    def advance_to(self, time_ns: int, keys: Iterable[tuple[str, str]]) -> None:
        """Advance to time_ns, past records that are handed on in commit order.

        Args:
            time_ns: of the last of these records; the caller has checked that it is not before
                reopen_ns.
            keys: server_transaction_id and record_sequence of the records at time_ns.
        """
        if time_ns > self.reopen_ns:
            self.reopen_ns = time_ns
            self._handed_on.clear()
        self._handed_on.update(keys)

    def advance_past(self, time_ns: int) -> None:
        """Advance past a time through which a query has returned everything."""
        if time_ns >= self.reopen_ns:
            self.reopen_ns = time_ns + 1
            self._handed_on.clear()

    def was_handed_on(self, key: tuple[str, str]) -> bool:
        """Return True for a record at reopen_ns that was handed on before."""
        return key in self._handed_on

    def _was_handed_on(self, record: ChangeRecord) -> bool:
        key = record_key(record)
        return (
            key is not None and record_time_ns(record) == self.reopen_ns and self.was_handed_on(key)
        )


def record_key(record: ChangeRecord) -> tuple[str, str] | None:
    """Return the identity of a record among those of its partition at the same time.

    None for heartbeats and child partitions records, which may come twice.
    """
    if isinstance(record, DataChangeRecord):
        return record.server_transaction_id, record.record_sequence
    if isinstance(record, HeartbeatRecord | ChildPartitionsRecord):
        return None
    return type(record).__name__, record.record_sequence


def record_time_ns(record: ChangeRecord) -> int:
    """Return the time, nanoseconds, that a partition has reached when this record comes."""
    if isinstance(record, DataChangeRecord):
        return record.commit_timestamp_ns
    if isinstance(record, HeartbeatRecord):
        return record.timestamp_ns
    if isinstance(record, PartitionEventRecord):
        return record.commit_timestamp_ns
    if isinstance(record, PartitionEndRecord):
        return record.end_timestamp_ns
    return record.start_timestamp_ns
