"""The audit of an epoch: its records against the numbers that Spanner states in each of them.

Each partition is read by one task, in commit order. So the task itself can check that no record
came twice and that each transaction is complete in its partition. A transaction whose records lie
in several partitions may be spread over several tasks: each task keeps its part, and the parts are
added up when the epoch is written.

The numbers are number_of_records_in_transaction, number_of_partitions_in_transaction and
is_last_record_in_transaction_in_partition, from "Data change records" in Spanner's documentation.
"""

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from slackwater.reader.records import DataChangeRecord, PartitionEventRecord
from slackwater.scheduler.epoch import Cut, cut_of
from slackwater.scheduler.moves import count_moves, describe_unmatched
from slackwater.state.models import Gap, MoveCounts, PartialTransaction, Plan, TaskCounts
from slackwater.timestamp import format_rfc3339

# More violations of the same kind would say nothing new.
_EVIDENCE_MAX: Final = 5


class AuditedRow(NamedTuple):
    """The fields of a data change record that the audit reads, as reader.records explains them."""

    commit_timestamp_ns: int
    server_transaction_id: str
    record_sequence: str
    is_last_record_in_transaction_in_partition: bool
    number_of_records_in_transaction: int
    number_of_partitions_in_transaction: int


class PartialTransactions:
    """Transactions with records in several partitions, as far as they were read; thread-safe.

    A transaction is forgotten once it is complete. So the number held depends only on how far apart
    in time the partitions are.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._incomplete: dict[str, PartialTransaction] = {}

    def add(self, partial: PartialTransaction) -> None:
        """Add a transaction's records in one more partition."""
        with self._lock:
            total = _merged(self._incomplete.get(partial.transaction), partial)
            if describe_incomplete(total) is None:
                self._incomplete.pop(partial.transaction, None)
            else:
                self._incomplete[partial.transaction] = total

    def incomplete(self) -> tuple[PartialTransaction, ...]:
        """Return the transactions that are not complete."""
        with self._lock:
            return tuple(self._incomplete.values())


@dataclass(slots=True)
class _InPartition:
    """A transaction's records in one partition so far."""

    stated: tuple[int, int]
    sequences: set[str] = field(default_factory=set)
    is_closed: bool = False


class PartitionAudit:
    """The audit of one partition's data change records, in the order in which they come.

    Args:
        token: the partition's label, which is mostly its token.
        cut: the epoch's cut.
        partial_transactions: collects the transactions that lie in several partitions.
    """

    def __init__(self, token: str, cut: Cut, partial_transactions: PartialTransactions) -> None:
        self.token = token
        self._partial_transactions = partial_transactions
        self.cut = cut
        # The last so far; its transactions may have further records.
        self.commit_ns = -1
        self._open: dict[str, _InPartition] = {}
        self.records = 0
        self.late_records = 0
        self.violations: list[str] = []
        # A set, because a partition that is read again from an earlier start shows some twice.
        self.events: set[PartitionEventRecord] = set()

    def feed_whole(
        self,
        *,
        records: int,
        late_records: int,
        commit_ns: int,
        partial_transactions: Iterable[PartialTransaction],
    ) -> None:
        """Count records already checked: in order, and their transactions complete here.

        Args:
            records: the number of records; all were committed after those fed before.
            late_records: how many of them are late.
            commit_ns: the commit timestamp of the last one, in nanoseconds.
            partial_transactions: the transactions among them that also lie in other partitions,
                except late ones.
        """
        self._close()
        self.records += records
        self.late_records += late_records
        self.commit_ns = commit_ns
        for partial in partial_transactions:
            self._partial_transactions.add(partial)

    def feed(self, records: Sequence[DataChangeRecord | AuditedRow]) -> None:
        """Check and count the next records."""
        self.records += len(records)
        for record in records:
            commit_ns = record.commit_timestamp_ns
            if commit_ns != self.commit_ns:
                self._close()
                if commit_ns < self.commit_ns:
                    self._violated(f"a record of {_stamp(commit_ns)} after {self._at()}")
                self.commit_ns = commit_ns
            self.late_records += self.cut.is_late(commit_ns)
            self._add(record)

    def add_events(self, events: Iterable[PartitionEventRecord]) -> None:
        """Add the event records of a partition with mutable key ranges."""
        self.events.update(events)

    def end(self) -> None:
        """Check the last transactions: this epoch has no more records of the partition."""
        self._close()

    def _add(self, record: DataChangeRecord | AuditedRow) -> None:
        transaction = record.server_transaction_id
        seen = self._open.get(transaction)
        if seen is None:
            seen = self._open[transaction] = _InPartition(
                (
                    record.number_of_records_in_transaction,
                    record.number_of_partitions_in_transaction,
                )
            )
        if record.record_sequence in seen.sequences:
            self._violated(
                f"record {record.record_sequence} of transaction {transaction} came twice"
            )
        if seen.is_closed:
            self._violated(f"a record of transaction {transaction} came after its last one")
        seen.sequences.add(record.record_sequence)
        seen.is_closed = record.is_last_record_in_transaction_in_partition

    def _close(self) -> None:
        for transaction, seen in self._open.items():
            records, partitions = seen.stated
            if not seen.is_closed:
                self._violated(f"the last record of transaction {transaction} did not come")
            partial = PartialTransaction(transaction, len(seen.sequences), 1, records, partitions)
            if partitions == 1:
                if broken := describe_incomplete(partial):
                    self._violated(broken)
            elif not self.cut.is_late(self.commit_ns):
                # The other parts of a late transaction lie in an earlier epoch.
                self._partial_transactions.add(partial)
        self._open.clear()

    def _violated(self, what: str) -> None:
        if len(self.violations) < _EVIDENCE_MAX:
            self.violations.append(f"partition {self.token}, {self._at()}: {what}")

    def _at(self) -> str:
        return _stamp(self.commit_ns)


def describe_incomplete(partial: PartialTransaction) -> str | None:
    """Return how a transaction's records differ from Spanner's numbers; None if they agree."""
    read = (partial.records, partial.partitions)
    stated = (partial.records_stated, partial.partitions_stated)
    if read == stated:
        return None
    return (
        f"transaction {partial.transaction} has {read[0]} record(s) in {read[1]} partition(s)"
        f" instead of {stated[0]} in {stated[1]}"
    )


def merge_by_transaction(
    partial_transactions: Iterable[PartialTransaction],
) -> dict[str, PartialTransaction]:
    """Return the parts of each transaction added up, by transaction."""
    total: dict[str, PartialTransaction] = {}
    for partial in partial_transactions:
        total[partial.transaction] = _merged(total.get(partial.transaction), partial)
    return total


def _merged(total: PartialTransaction | None, partial: PartialTransaction) -> PartialTransaction:
    if total is None:
        return partial
    return replace(
        total,
        records=total.records + partial.records,
        partitions=total.partitions + partial.partitions,
    )


def task_counts(
    audits: Iterable[PartitionAudit], partial_transactions: PartialTransactions
) -> TaskCounts:
    """Return a task's counts over its partitions, with the transactions incomplete in the task."""
    listed = list(audits)
    violations = [violation for audit in listed for violation in audit.violations]
    return TaskCounts(
        records=sum(audit.records for audit in listed),
        late_records=sum(audit.late_records for audit in listed),
        partial_transactions=partial_transactions.incomplete(),
        violations=tuple(violations[:_EVIDENCE_MAX]),
        partition_load=tuple((audit.token, audit.records) for audit in listed if audit.records),
        moves=_moves(listed),
    )


def _moves(audits: Sequence[PartitionAudit]) -> tuple[MoveCounts, ...]:
    # All of a task's partitions have its plan's cut.
    events = [event for audit in audits for event in audit.events]
    return count_moves(events, audits[0].cut) if events else ()


@dataclass(frozen=True, slots=True)
class SinkCounts:
    """The sink's own counts of an epoch that it wrote.

    Attributes:
        records: the number of rows.
        commit_ns_min, commit_ns_max: the first and the last commit timestamp of the rows, in
            nanoseconds; None in an empty epoch.
    """

    records: int
    commit_ns_min: int | None
    commit_ns_max: int | None


def audit_epoch(
    plan: Plan,
    counts_by_task: Mapping[int, TaskCounts],
    written: SinkCounts,
    *,
    low_watermark_ns: int | None,
    gaps: Collection[Gap] = (),
) -> list[str]:
    """Return the violations in an epoch, each with its evidence; empty if there are none.

    Args:
        plan: the epoch's plan.
        counts_by_task: the counts of its tasks, by task number.
        written: the counts of the sink.
        low_watermark_ns: the low watermark of the last committed epoch; None before the first.
        gaps: the pipeline's accepted gaps.
    """
    counted = sum(counts.records for counts in counts_by_task.values())
    broken = [violation for counts in counts_by_task.values() for violation in counts.violations]
    if counted != written.records:
        broken.append(
            f"the epoch's tasks read {counted} record(s) and {written.records} were written"
        )
    partial_transactions = merge_by_transaction(
        partial for counts in counts_by_task.values() for partial in counts.partial_transactions
    )
    broken += _first(describe_incomplete(partial) for partial in partial_transactions.values())
    moves = (moves for counts in counts_by_task.values() for moves in counts.moves)
    broken += _first(describe_unmatched(moves))
    broken += _outside_the_cut(cut_of(plan), counts_by_task.values(), written)
    if low_watermark_ns is not None:
        broken += _not_continued(plan, low_watermark_ns, gaps)
    return broken


def _outside_the_cut(
    cut: Cut, counts_by_task: Collection[TaskCounts], written: SinkCounts
) -> Iterable[str]:
    first_ns, last_ns = written.commit_ns_min, written.commit_ns_max
    bounds = f"({_stamp(cut.start_ns)}, {_stamp(cut.end_ns)}]"
    if last_ns is not None and cut.is_beyond(last_ns):
        yield f"a record of {_stamp(last_ns)} lies after the cut {bounds}"
    has_late = any(counts.late_records for counts in counts_by_task)
    if first_ns is not None and cut.is_late(first_ns) and not has_late:
        yield f"a record of {_stamp(first_ns)} lies before the cut {bounds}"


def _not_continued(plan: Plan, low_watermark_ns: int, gaps: Collection[Gap]) -> Iterable[str]:
    """Yield the violation of an epoch that does not begin where the last committed one ends.

    A replay of an epoch that was committed already ends there instead.
    """
    after = f"the epoch after {_stamp(plan.start_ns)}"
    if plan.end_ns == low_watermark_ns:
        return
    if plan.end_ns < low_watermark_ns:
        yield (
            f"the low watermark would go back from {_stamp(low_watermark_ns)} to"
            f" {_stamp(plan.end_ns)}"
        )
    elif plan.start_ns < low_watermark_ns:
        yield f"{after} would repeat what was committed up to {_stamp(low_watermark_ns)}"
    elif plan.start_ns > low_watermark_ns and not any(
        gap.start_ns <= low_watermark_ns and plan.start_ns <= gap.end_ns for gap in gaps
    ):
        yield f"{after} would leave out what was committed after {_stamp(low_watermark_ns)}"


def _first(texts: Iterable[str | None]) -> list[str]:
    return [text for text in texts if text is not None][:_EVIDENCE_MAX]


def _stamp(time_ns: int) -> str:
    return format_rfc3339(time_ns)
