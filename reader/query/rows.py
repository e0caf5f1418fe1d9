"""Data change records by column: the rows of one partition, as a part of a batch of many.

Thousands of partitions may have a few rows each in a batch. A call of numpy or pyarrow for each of
them costs more than their decoding, so what a partition's consumers have to know of its rows
follows from sums over the whole batch, which are made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slackwater.reader.decode.protobuf_cursor import Flags, Ints


@dataclass(frozen=True, slots=True)
class SharedTransaction:
    """The records of a transaction in one partition, of several in which it has some.

    Attributes:
        transaction: the server_transaction_id.
        commit_us: the commit timestamp, microseconds since the Unix epoch.
        records: how many there are in this partition.
        records_stated, partitions_stated: Spanner's numbers for the whole transaction.
    """

    transaction: str
    commit_us: int
    records: int
    records_stated: int
    partitions_stated: int


class _Batch:
    """A batch, and sums over it.

    Args:
        batch: the first 13 columns of the output.
        begins: the rows with which a partition begins.
    """

    def __init__(self, batch: pa.RecordBatch, begins: Ints) -> None:
        self.batch = batch
        self.commit_us: Ints = np.asarray(batch.column("commit_timestamp").cast(pa.int64()))
        self._begins = begins
        self._columns: dict[str, pa.Array] = {}

    def column(self, name: str) -> pa.Array:
        """Return a column, always the same object."""
        if name not in self._columns:
            self._columns[name] = self.batch.column(name)
        return self._columns[name]

    @cached_property
    def falls(self) -> Ints:
        """The number of rows before each row that were committed before their predecessor."""
        return _sums(self.commit_us[1:] < self.commit_us[:-1])

    @cached_property
    def transactions(self) -> _Transactions:
        """The transactions of the rows."""
        return _transactions_of(self.batch, self.commit_us, self._begins)


@dataclass(frozen=True, slots=True)
class _Transactions:
    """The transactions of a batch's partitions, each checked against what Spanner states.

    Attributes:
        is_start: a flag for each row, True if one begins with it; and one more, for the end.
        starts: the rows with which one begins, ascending.
        broken: how many of the rows before a row contradict the one before them.
        is_last: a flag for each row, True if it ends its transaction in its partition.
        counts: how many rows each has.
        stated, partitions: Spanner's numbers of its records and of its partitions.
        miscounted: how many of those before one lie in one partition, with another number of rows.
        shared: those that lie in several partitions, ascending.
    """

    is_start: Flags
    starts: Ints
    broken: Ints
    is_last: Flags
    counts: Ints
    stated: Ints
    partitions: Ints
    miscounted: Ints
    shared: Ints


def _transactions_of(batch: pa.RecordBatch, commit_us: Ints, begins: Ints) -> _Transactions:
    transaction, sequence = (
        batch.column(name) for name in ("server_transaction_id", "record_sequence")
    )
    is_last = np.asarray(batch.column("is_last_record_in_transaction_in_partition"))
    goes_on = np.asarray(pc.equal(transaction[1:], transaction[:-1]))
    rises = np.asarray(pc.greater(sequence[1:], sequence[:-1]))
    broken = (
        (commit_us[1:] < commit_us[:-1])
        # Two transactions at one time may alternate; one transaction has one time.
        | (goes_on != (commit_us[1:] == commit_us[:-1]))
        | (goes_on & ~rises)
        | (is_last[:-1] == goes_on)
    )
    is_start = np.concatenate(([True], ~goes_on, [True]))
    is_start[begins] = True
    starts = np.flatnonzero(is_start[:-1])
    counts = np.diff(starts, append=batch.num_rows)
    stated, partitions = (
        np.asarray(batch.column(f"number_of_{what}_in_transaction"))[starts]
        for what in ("records", "partitions")
    )
    is_miscounted = (partitions == 1) & (counts != stated)
    return _Transactions(
        is_start=is_start,
        starts=starts,
        broken=_sums(broken),
        is_last=is_last,
        counts=counts,
        stated=stated,
        partitions=partitions,
        miscounted=np.concatenate(([0], np.cumsum(is_miscounted))),
        shared=np.flatnonzero(partitions != 1),
    )


def _sums(pairs: Flags) -> Ints:
    """Return how many pairs of a row and the one before it count, of the rows before each row."""
    return np.concatenate(([0, 0], np.cumsum(pairs)))


class Rows:
    """Data change records of one partition, in commit order.

    Args:
        whole: the batch of which they are a part.
        begin, end: its rows [begin, end).
    """

    __slots__ = ("_whole", "begin", "end")

    def __init__(self, whole: _Batch, begin: int, end: int) -> None:
        self._whole = whole
        self.begin = begin
        self.end = end

    @classmethod
    def of(cls, batch: pa.RecordBatch, begins: Ints | None = None) -> Rows:
        """Return the rows of a batch.

        Args:
            batch: the first 13 columns of the output.
            begins: the rows with which a partition begins, if it has those of several.
        """
        return cls(_Batch(batch, np.array([0]) if begins is None else begins), 0, batch.num_rows)

    def __len__(self) -> int:
        """Return how many rows there are."""
        return self.end - self.begin

    @property
    def batch(self) -> pa.RecordBatch:
        """The first 13 columns of the output."""
        return self._whole.batch.slice(self.begin, len(self))

    @property
    def commit_us(self) -> Ints:
        """The commit timestamps, microseconds since the Unix epoch."""
        return self._whole.commit_us[self.begin : self.end]

    @property
    def is_in_order(self) -> bool:
        """True if no row was committed before the one before it."""
        falls = self._whole.falls
        return len(self) < 2 or bool(falls[self.end] == falls[self.begin + 1])

    def part(self, begin: int, end: int) -> Rows:
        """Return the rows [begin, end) of these."""
        return Rows(self._whole, self.begin + begin, self.begin + end)

    def filter(self, wanted: Flags) -> Rows:
        """Return the rows with a flag that is True."""
        return Rows.of(self.batch.filter(pa.array(wanted)))

    def keys(self) -> list[tuple[str, str]]:
        """Return server_transaction_id and record_sequence of the rows."""
        return list(self.values("server_transaction_id", "record_sequence"))

    def values(self, *names: str) -> Iterator[tuple[Any, ...]]:
        """Return the values of some columns, row by row."""
        # A column of the whole batch is not made anew for each part of it.
        columns = (self._whole.column(name).slice(self.begin, len(self)) for name in names)
        return zip(*(column.to_pylist() for column in columns), strict=True)

    def shared_transactions(self) -> Iterable[SharedTransaction] | None:
        """Return the transactions that other partitions have rows of, too.

        Returns:
            None if the rows break a promise of the change stream, or are not whole transactions: in
            order of commit timestamp and record_sequence, each complete in the partition.
        """
        transactions = self._whole.transactions
        first, after = transactions.starts.searchsorted((self.begin, self.end))
        is_whole = (
            transactions.broken[self.end] == transactions.broken[self.begin + 1]
            and transactions.is_last[self.end - 1]
            and transactions.is_start[self.begin]
            and transactions.is_start[self.end]
            and transactions.miscounted[after] == transactions.miscounted[first]
        )
        if not is_whole:
            return None
        begin, end = transactions.shared.searchsorted((first, after))
        return map(self._shared, transactions.shared[begin:end].tolist())

    def _shared(self, number: int) -> SharedTransaction:
        transactions = self._whole.transactions
        row = int(transactions.starts[number])
        return SharedTransaction(
            self._whole.column("server_transaction_id")[row].as_py(),
            int(self._whole.commit_us[row]),
            int(transactions.counts[number]),
            int(transactions.stated[number]),
            int(transactions.partitions[number]),
        )
