"""The records that one open query of a partition has brought, and the time they are complete to.

A heartbeat at H shows that the partition is complete through H. Any other record at T shows only
that it is complete below T, since more of T may follow ("Heartbeat records" in Spanner's
documentation).
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from slackwater.reader.decode.arrow import data_columns
from slackwater.reader.partition_progress import record_time_ns
from slackwater.reader.query.rows import Rows
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    PartitionEndRecord,
    PartitionEventRecord,
)
from slackwater.timestamp import us_to_ns

# The memory that a record takes beside the texts of its mods.
_RECORD_BYTES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Portion:
    """A partition's records of some time, each once.

    Attributes:
        rows: data change records in commit order, in the first 13 columns of the output.
        records: the data change records after those, not in columns yet.
        others: the records of other kinds, without heartbeats.
    """

    rows: tuple[pa.RecordBatch, ...] = ()
    records: tuple[DataChangeRecord, ...] = ()
    others: tuple[ChangeRecord, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The approximate memory that the data change records take."""
        in_columns: int = sum(batch.nbytes for batch in self.rows)
        return in_columns + sum(map(_size_bytes, self.records))


class FollowedPartition:
    """The records of one query without interruption; a RecordConsumer of the reader's decoder.

    Args:
        token: the partition token.
        start_ns: the query's start_timestamp.

    Attributes:
        complete_from_ns: from here on it holds all records; earlier ones were dropped.
        complete_through_ns: it holds all records at or before this time.
        is_in_order: False after a record that came out of order, or is another partition's. Then it
            is useless.
        has_ended: the query has ended, and has shown the partition's end.
        size_bytes: about how much memory the records take.
    """

    is_done = False

    def __init__(self, token: str, start_ns: int) -> None:
        self.token = token
        self.complete_from_ns = start_ns
        self.complete_through_ns = start_ns - 1
        self.is_in_order = True
        self.has_ended = False
        self.size_bytes = 0
        self._end_shown_ns: int | None = None
        self._has_end_record = False
        self._rows: list[Rows] = []
        # How many of the first rows are in memory of their own.
        self._compact = 0
        # In commit order after all rows.
        self._records: list[DataChangeRecord] = []
        self._others: list[ChangeRecord] = []

    def take_rows(self, rows: Rows) -> None:
        """Take the next data change records by column."""
        self._gather_records()
        times = rows.commit_us
        self._advance_to(us_to_ns(int(times[0])))
        if not rows.is_in_order:
            self.is_in_order = False
        self._advance_to(us_to_ns(int(times[-1])))
        self._rows.append(rows)
        self.size_bytes += rows.batch.nbytes

    def take_records(self, records: Sequence[ChangeRecord]) -> Sequence[DataChangeRecord]:
        """Take the next records; there is nobody to deliver them to yet."""
        for record in records:
            time_ns = record_time_ns(record)
            if isinstance(record, HeartbeatRecord):
                self.complete_through_ns = max(self.complete_through_ns, time_ns)
                continue
            self._advance_to(time_ns)
            self._note_end(record, time_ns)
            if isinstance(record, DataChangeRecord):
                self._records.append(record)
                self.size_bytes += _size_bytes(record)
            else:
                self._others.append(record)
        return ()

    def _advance_to(self, time_ns: int) -> None:
        """Note a record's time."""
        if time_ns <= self.complete_through_ns or self._has_end_record:
            self.is_in_order = False
        self.complete_through_ns = max(self.complete_through_ns, time_ns - 1)

    def _note_end(self, record: ChangeRecord, time_ns: int) -> None:
        if isinstance(record, ChildPartitionsRecord | PartitionEndRecord):
            self._end_shown_ns = time_ns
        if isinstance(record, PartitionEndRecord):
            self._has_end_record = True
        if (
            isinstance(record, PartitionEndRecord | PartitionEventRecord)
            and record.partition_token != self.token
        ):
            self.is_in_order = False

    def end(self) -> bool:
        """Note that the query has ended with OK; return whether it has shown the partition's end.

        A partition that has ended is complete for all time.
        """
        if self._end_shown_ns is None:
            return False
        self.has_ended = True
        self.complete_through_ns = sys.maxsize
        return True

    def drop_incomplete(self) -> int:
        """Drop the records after the time through which they are complete; return the next time.

        A query from that time on brings them again, with those that were missing.
        """
        through_ns = self.complete_through_ns
        self._gather_records()
        complete = (rows.part(0, _count(rows, through_ns)) for rows in self._rows)
        self._rows = [rows for rows in complete if len(rows)]
        self._compact = min(self._compact, len(self._rows))
        self._others = [r for r in self._others if record_time_ns(r) <= through_ns]
        self.size_bytes = sum(rows.batch.nbytes for rows in self._rows)
        return through_ns + 1

    def covers(self, start_ns: int) -> bool:
        """Return True if it has, or will have, all records from a time on.

        A partition has none after its end, but it does not cover such a start: Spanner refuses it,
        which tells the task that it has not seen the end.
        """
        if self._end_shown_ns is not None and start_ns > self._end_shown_ns:
            return False
        return self.is_in_order and start_ns >= self.complete_from_ns

    def is_complete_through(self, end_ns: int) -> bool:
        """Return True if no more records up to a time will come."""
        return self.complete_through_ns >= end_ns

    def portion(self, start_ns: int, end_ns: int) -> Portion:
        """Return the records with times from start_ns through end_ns, both inclusive."""
        rows = (_part(rows, start_ns, end_ns) for rows in self._rows)
        return Portion(
            tuple(part for part in rows if part.num_rows),
            tuple(r for r in self._records if start_ns <= r.commit_timestamp_ns <= end_ns),
            tuple(r for r in self._others if start_ns <= record_time_ns(r) <= end_ns),
        )

    def drop_before(self, time_ns: int) -> None:
        """Drop the records before a time."""
        if time_ns <= self.complete_from_ns:
            return
        self.complete_from_ns = time_ns
        late = [rows for rows in self._rows if us_to_ns(int(rows.commit_us[-1])) >= time_ns]
        self._compact = max(0, self._compact - (len(self._rows) - len(late)))
        self._rows = late
        self._records = [r for r in self._records if r.commit_timestamp_ns >= time_ns]
        self._others = [r for r in self._others if record_time_ns(r) >= time_ns]
        self.size_bytes = sum(rows.batch.nbytes for rows in self._rows) + sum(
            map(_size_bytes, self._records)
        )

    def compact(self) -> None:
        """Copy the rows into memory of their own.

        They are parts of batches that many partitions share, and one part keeps a whole batch.
        """
        self._gather_records()
        if len(self._rows) > self._compact:
            whole = pa.concat_batches([rows.batch for rows in self._rows])
            self._rows = [Rows.of(whole.take(pa.array(np.arange(whole.num_rows))))]
            self._compact = 1

    def _gather_records(self) -> None:
        if self._records:
            self._rows.append(Rows.of(data_columns(self._records)))
            self._records = []


def _part(rows: Rows, start_ns: int, end_ns: int) -> pa.RecordBatch:
    begin, end = (_count(rows, through_ns) for through_ns in (start_ns - 1, end_ns))
    return rows.batch.slice(begin, end - begin)


def _count(rows: Rows, through_ns: int) -> int:
    """Return how many rows were committed at or before a time."""
    return int(np.searchsorted(us_to_ns(rows.commit_us), through_ns, side="right"))


def _size_bytes(record: DataChangeRecord) -> int:
    return _RECORD_BYTES + sum(len(text) for mod in record.mods for text in mod if text)
