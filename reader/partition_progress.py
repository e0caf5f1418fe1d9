"""How far one partition has been read.

"A heartbeat at H" means that all records at or before H were returned; a data change record or a
child partitions record at T means only that all before T were, since more of T may follow
(Spanner's documentation, "Heartbeat records").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slackwater.reader.records import (
    ChangeRecord,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
)


class PartitionProgress:
    """Where a broken query goes on, and what must not be handed on twice there.

    Not a frozen dataclass: a transaction of 80,000 records shares one commit timestamp, and
    copying what was handed on at it once a message would cost the square of that.

    Attributes:
        reopen_ns: the start_timestamp of the next query; it never goes back.
    """

    __slots__ = ("_handed_on", "reopen_ns")

    def __init__(self, start_ns: int) -> None:
        self.reopen_ns = start_ns
        self._handed_on: set[tuple[str, str]] = set()

    @property
    def watermark_ns(self) -> int:
        """The partition is complete through this time, inclusive."""
        return self.reopen_ns - 1

    def drop_duplicates(self, records: Sequence[ChangeRecord]) -> Sequence[ChangeRecord]:
        """Of the first records of a reopened query, those that were not handed on before."""
        return [record for record in records if not self._was_handed_on(record)]

    def advance(self, records: Sequence[ChangeRecord]) -> None:
        """Note that these records, in the order they came, are handed on.

        Raises:
            ValueError: a data change record lies before the progress. Commit order within a
                partition is Spanner's promise; going on would lose records at a reopening.
        """
        for record in records:
            time_ns = record_time_ns(record)
            if time_ns > self.reopen_ns:
                self.reopen_ns = time_ns
                self._handed_on.clear()
            if isinstance(record, DataChangeRecord):
                if time_ns < self.reopen_ns:
                    raise ValueError(f"a record at {time_ns} came after {self.reopen_ns}")
                self._handed_on.add((record.server_transaction_id, record.record_sequence))

    def advance_to(self, time_ns: int, keys: Iterable[tuple[str, str]]) -> None:
        """Note that records in commit order are handed on, the last ones at time_ns.

        Args:
            time_ns: not before the progress; who calls has seen to it.
            keys: server_transaction_id and record_sequence of the records at time_ns.
        """
        if time_ns > self.reopen_ns:
            self.reopen_ns = time_ns
            self._handed_on.clear()
        self._handed_on.update(keys)

    def was_handed_on(self, key: tuple[str, str]) -> bool:
        """True for a record at reopen_ns that was handed on before."""
        return key in self._handed_on

    def _was_handed_on(self, record: ChangeRecord) -> bool:
        return (
            isinstance(record, DataChangeRecord)
            and record.commit_timestamp_ns == self.reopen_ns
            and self.was_handed_on((record.server_transaction_id, record.record_sequence))
        )


def record_time_ns(record: ChangeRecord) -> int:
    """The time that a record shows its partition to have reached."""
    if isinstance(record, DataChangeRecord):
        return record.commit_timestamp_ns
    if isinstance(record, HeartbeatRecord):
        return record.timestamp_ns
    assert isinstance(record, ChildPartitionsRecord)  # noqa: S101 - for the type checker
    return record.start_timestamp_ns
