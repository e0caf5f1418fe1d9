"""The records that a query has handed on, so that each comes once however often it breaks."""

from collections.abc import Sequence

import numpy as np

from slackwater.reader.decode.protobuf_cursor import Flags
from slackwater.reader.errors import DecodeError
from slackwater.reader.partition_progress import PartitionProgress
from slackwater.reader.query.batch_decoder import RecordConsumer
from slackwater.reader.query.rows import Rows
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    PartitionEndRecord,
    PartitionEventRecord,
)
from slackwater.timestamp import ns_to_us, us_to_ns


class DeliveryTracker:
    """The progress of one partition query, and the records that say how it ended.

    Args:
        token: the partition's token; None for the query that asks for the first partitions.
        start_ns: where the partition is read from, nanoseconds.

    Attributes:
        progress: how far the partition has been read.
        was_reopened: True once the query may return records that were handed on before.
        ending_records: those that end the partition, once they have come.
    """

    def __init__(self, token: str | None, start_ns: int) -> None:
        self.progress = PartitionProgress(start_ns)
        self.was_reopened = False
        self.ending_records: list[ChildPartitionsRecord | PartitionEndRecord] = []
        self._token = token

    def new_records(self, records: Sequence[ChangeRecord]) -> Sequence[ChangeRecord]:
        """Return the records that were not handed on before, and advance past them.

        Raises:
            DecodeError: a record contradicts those before it, or is of another partition.
        """
        if self.was_reopened:
            records = self.progress.drop_duplicates(records)
        try:
            self.progress.advance(records)
        except ValueError as error:
            raise DecodeError(f"partition {self._token}: {error}") from error
        for record in records:
            self._note(record)
        return records

    def new_rows(self, rows: Rows) -> tuple[Rows, Flags | None]:
        """Return the rows that were not handed on before, and advance past them.

        Returns:
            These rows, and a flag for each of all rows, True if it is new; None if all are.

        Raises:
            DecodeError: rows came out of commit order, or after the partition's end.
        """
        is_new = self._new_flags(rows)
        if is_new is not None:
            rows = rows.filter(is_new)
        if len(rows):
            self._require_before_end()
            self._advance_past_rows(rows)
        return rows, is_new

    def _require_before_end(self) -> None:
        # An end is the last record; a query for the first partitions has a record for each of them.
        if self.ending_records and isinstance(self.ending_records[-1], PartitionEndRecord):
            raise DecodeError(f"partition {self._token}: a record came after the partition's end")

    def _note(self, record: ChangeRecord) -> None:
        if isinstance(record, HeartbeatRecord):
            return
        self._require_before_end()
        if isinstance(record, ChildPartitionsRecord):
            self.ending_records.append(record)
        elif isinstance(record, PartitionEndRecord | PartitionEventRecord):
            if record.partition_token != self._token:
                raise DecodeError(
                    f"partition {self._token}: a record of partition {record.partition_token} came"
                )
            if isinstance(record, PartitionEndRecord):
                self.ending_records.append(record)

    def _new_flags(self, rows: Rows) -> Flags | None:
        if not self.was_reopened:
            return None
        at_reopening = rows.commit_us == ns_to_us(self.progress.reopen_ns)
        if not at_reopening.any():
            return None
        is_new = np.ones(len(rows), np.bool_)
        for index in np.flatnonzero(at_reopening):
            (key,) = rows.part(int(index), int(index) + 1).keys()
            is_new[index] = not self.progress.was_handed_on(key)
        return is_new

    def _advance_past_rows(self, rows: Rows) -> None:
        times = rows.commit_us
        first_ns, last_ns = us_to_ns(int(times[0])), us_to_ns(int(times[-1]))
        if first_ns < self.progress.reopen_ns or not rows.is_in_order:
            raise DecodeError(f"partition {self._token}: records came out of commit order")
        begin = int(times.searchsorted(times[-1]))
        self.progress.advance_to(last_ns, rows.part(begin, len(rows)).keys())


class TrackedConsumer:
    """A consumer of new records only: it advances the progress before it hands them on.

    It implements RecordConsumer of slackwater.reader.query.batch_decoder.
    """

    def __init__(self, tracker: DeliveryTracker, consumer: RecordConsumer) -> None:
        self._tracker = tracker
        self._consumer = consumer
        self.token = consumer.token

    @property
    def is_done(self) -> bool:
        """True if no more records of this query are needed."""
        return self._consumer.is_done

    def take_rows(self, rows: Rows) -> Flags | None:
        """Take the next records, by column; return which are to be delivered, None for all."""
        rows, is_new = self._tracker.new_rows(rows)
        if not len(rows):
            return is_new
        wanted = self._consumer.take_rows(rows)
        if is_new is None or wanted is None:
            return wanted if is_new is None else is_new
        is_new[is_new] = wanted
        return is_new

    def take_records(self, records: Sequence[ChangeRecord]) -> Sequence[DataChangeRecord]:
        """Take the next records, one by one; return those to be delivered."""
        return self._consumer.take_records(self._tracker.new_records(records))
