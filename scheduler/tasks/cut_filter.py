"""The filter of one partition query's records: those inside the cut are audited and delivered."""

from collections.abc import Sequence

import numpy as np

from slackwater.reader.decode.protobuf_cursor import Flags
from slackwater.reader.partition_progress import record_time_ns
from slackwater.reader.query.rows import Rows
from slackwater.reader.records import (
    ChangeRecord,
    DataChangeRecord,
    PartitionRecord,
)
from slackwater.scheduler.audit import AuditedRow, PartitionAudit
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
            return np.zeros(len(rows), np.bool_)
        times = rows.commit_us
        first_ns, last_ns = us_to_ns(int(times[0])), us_to_ns(int(times[-1]))
        if self._cut.contains(first_ns) and self._cut.contains(last_ns):
            audit_rows(self._audit, rows)
            return None
        inside = self._cut.contains_each(times)
        if inside.any():
            audit_rows(self._audit, rows.filter(inside))
        return inside


def audit_rows(audit: PartitionAudit, rows: Rows) -> None:
    """Pass the next rows of a partition to the audit: most by column, some one by one.

    Transactions at the first and at the last commit timestamp may have rows in other batches too,
    so their rows are passed one by one. If a check by column fails for the rest, those rows too are
    passed one by one, and the audit says which promise is broken.
    """
    times = rows.commit_us
    begin = 0
    if us_to_ns(int(times[0])) <= audit.commit_ns:
        begin = int(times.searchsorted(ns_to_us(audit.commit_ns), side="right"))
    end = max(begin, int(times.searchsorted(times[-1])))
    _feed_each(audit, rows.part(0, begin))
    if begin < end and not _feed_whole(audit, rows.part(begin, end)):
        _feed_each(audit, rows.part(begin, end))
    _feed_each(audit, rows.part(end, len(rows)))


def _feed_each(audit: PartitionAudit, rows: Rows) -> None:
    if len(rows):
        times = us_to_ns(rows.commit_us).tolist()
        each = zip(times, rows.values(*AuditedRow._fields[1:]), strict=True)
        audit.feed([AuditedRow(time_ns, *values) for time_ns, values in each])


def _feed_whole(audit: PartitionAudit, rows: Rows) -> bool:
    """Feed rows by column; return False, without feeding any, if a check by column fails."""
    shared = rows.shared_transactions()
    if shared is None:
        return False
    times = rows.commit_us
    is_late = audit.cut.is_late(us_to_ns(int(times[0])))
    audit.feed_whole(
        records=len(rows),
        late_records=int(audit.cut.late_each(times).sum()) if is_late else 0,
        commit_ns=us_to_ns(int(times[-1])),
        partial_transactions=(
            PartialTransaction(
                each.transaction, each.records, 1, each.records_stated, each.partitions_stated
            )
            for each in shared
            if not audit.cut.is_late(us_to_ns(each.commit_us))
        ),
    )
    return True
