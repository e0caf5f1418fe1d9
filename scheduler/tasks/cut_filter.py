"""The filter of one partition query's records: those inside the cut are audited and delivered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slackwater.reader.decode.protobuf_cursor import Flags, Ints
from slackwater.reader.partition_progress import record_time_ns
from slackwater.reader.query.batch_decoder import Rows
from slackwater.reader.records import (
    ChangeRecord,
    DataChangeRecord,
    PartitionRecord,
)
from slackwater.scheduler.audit import PartitionAudit
from slackwater.scheduler.epoch import Cut
from slackwater.state.models import PartialTransaction
from slackwater.timestamp import ns_to_us, us_to_ns


class CutFilter:
    """A filter of one query's records that selects those to deliver.

    It implements RecordConsumer of slackwater.reader.query.batch_decoder.

    Args:
        token: the partition's token.
        cut: the commit timestamps to deliver.
        audit: takes every record that is delivered; None to deliver no records.

    Attributes:
        partition_records: the records of partitions up to the cut's end.
        is_done: True after a record that lies beyond the cut.
    """

    def __init__(self, token: str, cut: Cut, audit: PartitionAudit | None) -> None:
        self.token = token
        self.partition_records: list[PartitionRecord] = []
        self.is_done = False
        self._cut = cut
        self._audit = audit

    def take_records(self, records: Sequence[ChangeRecord]) -> Sequence[DataChangeRecord]:
        """Keep the records of partitions, and return the data change records to deliver."""
        data = []
        for record in records:
            time_ns = record_time_ns(record)
            is_beyond = self._cut.is_beyond(time_ns)
            if isinstance(record, DataChangeRecord):
                if self._cut.contains(time_ns):
                    data.append(record)
            elif isinstance(record, PartitionRecord) and not is_beyond:
                self.partition_records.append(record)
            self.is_done = self.is_done or is_beyond
        if self._audit is None:
            return ()
        self._audit.feed(data)
        return data

    def take_rows(self, rows: Rows) -> Flags | None:
        """Return a flag for each row, True if it is delivered; None if all are."""
        if self._audit is None:
            return np.zeros(len(rows.commit_us), np.bool_)
        first_ns, last_ns = us_to_ns(int(rows.commit_us[0])), us_to_ns(int(rows.commit_us[-1]))
        if self._cut.contains(first_ns) and self._cut.contains(last_ns):
            audit_rows(self._audit, rows)
            return None
        inside = self._cut.contains_each(rows.commit_us)
        if inside.any():
            selected = rows.batch.filter(pa.array(inside))
            audit_rows(self._audit, Rows(selected, rows.commit_us[inside]))
        return inside


class _Row(NamedTuple):
    """A row's fields for the audit."""

    commit_timestamp_ns: int
    server_transaction_id: str
    record_sequence: str
    is_last_record_in_transaction_in_partition: bool
    number_of_records_in_transaction: int
    number_of_partitions_in_transaction: int


def audit_rows(audit: PartitionAudit, rows: Rows) -> None:
    """Pass the next rows of a partition to the audit: most by column, some one by one.

    Transactions at the first and at the last commit timestamp may have rows in other batches too,
    so their rows are passed one by one. If a check by column fails for the rest, those rows too are
    passed one by one, and the audit says which promise is broken.
    """
    times = rows.commit_us
    begin = 0
    if us_to_ns(int(times[0])) <= audit.commit_ns:
        begin = int(np.searchsorted(times, ns_to_us(audit.commit_ns), side="right"))
    end = max(begin, int(np.searchsorted(times, times[-1])))
    audit.feed(_rows(rows, 0, begin))
    if begin < end and not _feed_whole(audit, rows, begin, end):
        audit.feed(_rows(rows, begin, end))
    audit.feed(_rows(rows, end, len(times)))


def _rows(rows: Rows, begin: int, end: int) -> list[_Row]:
    if begin == end:
        return []
    part = rows.batch.slice(begin, end - begin)
    times = us_to_ns(rows.commit_us[begin:end]).tolist()
    columns = (part.column(name).to_pylist() for name in _Row._fields[1:])
    return list(map(_Row._make, zip(times, *columns, strict=True)))


def _feed_whole(audit: PartitionAudit, rows: Rows, begin: int, end: int) -> bool:
    """Feed rows by column; return False, without feeding any, if a check by column fails."""
    part = rows.batch.slice(begin, end - begin)
    times = rows.commit_us[begin:end]
    transaction = part.column("server_transaction_id")
    sequence = part.column("record_sequence")
    is_last = np.asarray(part.column("is_last_record_in_transaction_in_partition"))
    goes_on = np.asarray(pc.equal(transaction[1:], transaction[:-1]))
    rises = np.asarray(pc.greater(sequence[1:], sequence[:-1]))
    same_time = times[1:] == times[:-1]
    if (
        (times[1:] < times[:-1]).any()
        # Two transactions at one time may alternate; one transaction has one time.
        or (goes_on != same_time).any()
        or (goes_on & ~rises).any()
        or (is_last[:-1] == goes_on).any()
        or not is_last[-1]
    ):
        return False
    first = np.flatnonzero(np.concatenate(([True], ~goes_on)))
    counts = np.diff(np.concatenate((first, [len(times)])))
    stated = np.asarray(part.column("number_of_records_in_transaction"))[first]
    partitions = np.asarray(part.column("number_of_partitions_in_transaction"))[first]
    if ((partitions == 1) & (counts != stated)).any():
        return False
    late = audit.cut.late_each(times)
    shared = first[(partitions != 1) & ~late[first]]
    audit.feed_whole(
        records=len(times),
        late_records=int(late.sum()),
        commit_ns=us_to_ns(int(times[-1])),
        partial_transactions=_partial_transactions(
            transaction, first, shared, counts, stated, partitions
        ),
    )
    return True


def _partial_transactions(
    transaction: pa.Array, first: Ints, shared: Ints, *numbers: Ints
) -> Iterable[PartialTransaction]:
    chosen = np.searchsorted(first, shared)
    counts, stated, partitions = (column[chosen].tolist() for column in numbers)
    names = transaction.take(pa.array(shared)).to_pylist()
    for name, records, records_stated, partitions_stated in zip(
        names, counts, stated, partitions, strict=True
    ):
        yield PartialTransaction(name, records, 1, records_stated, partitions_stated)
