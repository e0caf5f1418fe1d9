"""The audit: what Spanner states of its records, held against what an epoch holds.

Each partition is read by one task, in commit order, so the task itself can tell that no record
came twice and that each transaction is whole in its partition. A transaction whose records lie in
several partitions may be spread over tasks; each keeps its share, and the shares are added up when
the epoch is written. See "Data change records" in Spanner's documentation for the numbers that it
states: number_of_records_in_transaction, number_of_partitions_in_transaction and
is_last_record_in_transaction_in_partition.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from slackwater.scheduler.epoch import Cut, cut_of
from slackwater.state.models import PartialTransaction, Plan, TaskCounts
from slackwater.timestamp import format_rfc3339

# More of the same kind would say nothing new.
_EVIDENCE_MAX: Final = 5


class AuditedRecord(Protocol):
    """What of a data change record the audit looks at; see reader.records."""

    @property
    def commit_timestamp_ns(self) -> int: ...  # noqa: D102
    @property
    def server_transaction_id(self) -> str: ...  # noqa: D102
    @property
    def record_sequence(self) -> str: ...  # noqa: D102
    @property
    def is_last_record_in_transaction_in_partition(self) -> bool: ...  # noqa: D102
    @property
    def number_of_records_in_transaction(self) -> int: ...  # noqa: D102
    @property
    def number_of_partitions_in_transaction(self) -> int: ...  # noqa: D102


class PartialTransactions:
    """Transactions that lie in several partitions, as far as they were read; for all threads.

    What is whole is forgotten, so that it holds as many as the partitions are apart.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._incomplete: dict[str, PartialTransaction] = {}

    def add(self, partial: PartialTransaction) -> None:
        """Put a transaction's records in one more partition to what is known of it."""
        with self._lock:
            total = _merged(self._incomplete.get(partial.transaction), partial)
            if describe_incomplete(total) is None:
                self._incomplete.pop(partial.transaction, None)
            else:
                self._incomplete[partial.transaction] = total

    def incomplete(self) -> tuple[PartialTransaction, ...]:
        """Those that are not whole."""
        with self._lock:
            return tuple(self._incomplete.values())


@dataclass(slots=True)
class _InPartition:
    """A transaction's records in one partition so far."""

    stated: tuple[int, int]
    sequences: set[str] = field(default_factory=set)
    is_closed: bool = False


class PartitionAudit:
    """Follows the data change records of one partition in the order in which they come.

    Args:
        token: the partition's.
        cut: the epoch's.
        partial_transactions: where transactions of several partitions are put together.
    """

    def __init__(self, token: str, cut: Cut, partial_transactions: PartialTransactions) -> None:
        self.token = token
        self._partial_transactions = partial_transactions
        self.cut = cut
        self._commit_ns = -1
        self._open: dict[str, _InPartition] = {}
        self.records = 0
        self.late_records = 0
        self.violations: list[str] = []

    @property
    def commit_ns(self) -> int:
        """The last commit timestamp that was seen; its transactions may go on."""
        return self._commit_ns

    def feed_whole(
        self,
        *,
        records: int,
        late_records: int,
        commit_ns: int,
        partial_transactions: Iterable[PartialTransaction],
    ) -> None:
        """Note records that were seen to be in order, of transactions whole in the partition.

        Args:
            records: how many; all were committed after what came before.
            late_records: how many of them are late.
            commit_ns: of the last one.
            partial_transactions: those that lie in other partitions too, without late ones.
        """
        self._close()
        self.records += records
        self.late_records += late_records
        self._commit_ns = commit_ns
        for partial in partial_transactions:
            self._partial_transactions.add(partial)

    def feed(self, records: Sequence[AuditedRecord]) -> None:
        """Note the next records."""
        self.records += len(records)
        for record in records:
            commit_ns = record.commit_timestamp_ns
            if commit_ns != self._commit_ns:
                self._close()
                if commit_ns < self._commit_ns:
                    self._violated(f"a record of {_stamp(commit_ns)} after {self._at()}")
                self._commit_ns = commit_ns
            self.late_records += self.cut.is_late(commit_ns)
            self._add(record)

    def end(self) -> None:
        """No more records of this partition come in this epoch."""
        self._close()

    def _add(self, record: AuditedRecord) -> None:
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
            elif not self.cut.is_late(self._commit_ns):
                # The other parts of a late transaction lie in an earlier epoch.
                self._partial_transactions.add(partial)
        self._open.clear()

    def _violated(self, what: str) -> None:
        if len(self.violations) < _EVIDENCE_MAX:
            self.violations.append(f"partition {self.token}, {self._at()}: {what}")

    def _at(self) -> str:
        return _stamp(self._commit_ns)


def describe_incomplete(partial: PartialTransaction) -> str | None:
    """What is missing of a transaction, or too much of it; None where it is whole."""
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
    """Shares of the same transactions put together, by transaction."""
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
    """What a task counted over its partitions; of transactions only those not whole in it."""
    listed = list(audits)
    violations = [violation for audit in listed for violation in audit.violations]
    return TaskCounts(
        records=sum(audit.records for audit in listed),
        late_records=sum(audit.late_records for audit in listed),
        partial_transactions=partial_transactions.incomplete(),
        violations=tuple(violations[:_EVIDENCE_MAX]),
        partition_load=tuple((audit.token, audit.records) for audit in listed if audit.records),
    )


@dataclass(frozen=True, slots=True)
class SinkCounts:
    """What the sink saw of an epoch while it wrote it.

    Attributes:
        records: rows.
        commit_ns_min, commit_ns_max: of the rows, in nanoseconds; None in an empty epoch.
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
) -> list[str]:
    """What an epoch breaks of its promises, each with the evidence; empty where it is well.

    Args:
        plan: the epoch's plan.
        tallies: what its tasks counted.
        written: what the sink saw.
        low_watermark_ns: that of the last epoch committed, None before the first.
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
    broken += _outside_the_cut(cut_of(plan), counts_by_task.values(), written)
    if low_watermark_ns is not None and plan.end_ns < low_watermark_ns:
        broken.append(
            f"the low watermark would go back from {_stamp(low_watermark_ns)} to"
            f" {_stamp(plan.end_ns)}"
        )
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


def _first(texts: Iterable[str | None]) -> list[str]:
    return [text for text in texts if text is not None][:_EVIDENCE_MAX]


def _stamp(time_ns: int) -> str:
    return format_rfc3339(time_ns)
