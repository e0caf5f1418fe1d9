"""Data change records as bytes of the wire: listed one by one, or millions by a pattern."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from google.protobuf.struct_pb2 import Value

from slackwater.reader.change_stream import Dialect, PartitionMode
from slackwater.reader.partition_progress import record_time_ns
from slackwater.reader.records import ChangeRecord, ColumnType, DataChangeRecord, Mod
from tests.support.proto_messages import proto_row
from tests.support.spanner_messages import PartialResultSetPb, googlesql_row, postgresql_row

_TIME = "2001-02-03T04:05:06.070809Z"
_TIME_NS = 981_173_106_070_809_000
_TRANSACTION = "77777777770123456789"
_SEQUENCE = "55555555"
_KEY = "333333333333"
_COLUMNS = (
    ColumnType("Id", '{"code":"INT64"}', True, 1),
    ColumnType("Name", '{"code":"STRING"}', False, 2),
    ColumnType("Balance", '{"code":"NUMERIC"}', False, 3),
)

# is_last_record_in_transaction_in_partition, true and false, in the same number of bytes. In
# GoogleSQL it is the first true of a record, a list's value of two bytes.


def row_of(dialect: Dialect, mode: PartitionMode) -> Callable[[ChangeRecord], Value]:
    """Return what writes a record as the only column of a row."""
    if mode is PartitionMode.MUTABLE_KEY_RANGE:
        return proto_row
    return postgresql_row if dialect is Dialect.POSTGRESQL else googlesql_row


@dataclass(frozen=True)
class ListedRows:
    """Records given one by one.

    Args:
        records: in commit order, committed at whole microseconds.
        dialect, mode: how they are written.
    """

    records: tuple[ChangeRecord, ...]
    dialect: Dialect
    mode: PartitionMode = PartitionMode.IMMUTABLE_KEY_RANGE

    def __len__(self) -> int:
        return len(self.records)

    def first_at(self, time_us: int) -> int:
        return bisect_left(self._times, time_us)

    def time_us(self, index: int) -> int:
        return self._times[index]

    def encoded(self, first: int, end: int) -> Sequence[bytes]:
        row = row_of(self.dialect, self.mode)
        return [
            PartialResultSetPb(values=[row(record)]).SerializeToString()
            for record in self.records[first:end]
        ]

    @cached_property
    def _times(self) -> list[int]:
        return [record_time_ns(record) // 1_000 for record in self.records]


@dataclass(frozen=True)
class PatternRows:
    """Any number of single-mod records, all of one width, made from numbers as they are asked for.

    Args:
        number: of the partition; part of the transaction ids.
        first_us: when the first transaction was committed.
        every_us: between two transactions.
        transactions: how many.
        per_transaction: records in each, all in this partition.
        size_bytes: of a record on the wire, about.
        dialect: how they are written.
    """

    number: int
    first_us: int
    every_us: int
    transactions: int
    per_transaction: int = 1
    size_bytes: int = 600
    dialect: Dialect = Dialect.GOOGLE_STANDARD_SQL

    def __len__(self) -> int:
        return self.transactions * self.per_transaction

    def first_at(self, time_us: int) -> int:
        transaction = -(-(time_us - self.first_us) // self.every_us)
        return min(max(transaction, 0), self.transactions) * self.per_transaction

    def time_us(self, index: int) -> int:
        return self.first_us + index // self.per_transaction * self.every_us

    def encoded(self, first: int, end: int) -> Sequence[bytes]:
        index = np.arange(first, end)
        transaction, sequence = np.divmod(index, self.per_transaction)
        is_last = sequence == self.per_transaction - 1
        rows = np.empty((len(index), len(self._templates[True])), np.uint8)
        for kind, template in self._templates.items():
            chosen = is_last == kind
            rows[chosen] = self._filled(
                template, index[chosen], transaction[chosen], sequence[chosen]
            )
        width = rows.shape[1]
        joined = rows.tobytes()
        return [joined[i : i + width] for i in range(0, len(joined), width)]

    def _filled(
        self,
        template: bytes,
        index: npt.NDArray[np.int64],
        transaction: npt.NDArray[np.int64],
        sequence: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.uint8]:
        """Return a row of the template for each index."""
        times = (self.first_us + transaction * self.every_us).astype("datetime64[us]")
        stamps = np.datetime_as_string(times).astype("S26")
        rows = np.repeat(np.frombuffer(template, np.uint8)[np.newaxis], len(index), axis=0)
        for placeholder, texts in (
            (_TIME[:26], stamps.view(np.uint8).reshape(-1, 26)),
            (_TRANSACTION, _digits(self.number * 10**12 + transaction, 20)),
            (_SEQUENCE, _digits(sequence, 8)),
            (_KEY, _digits(index, 12)),
        ):
            at = template.index(placeholder.encode())
            rows[:, at : at + texts.shape[1]] = texts
        return rows

    @cached_property
    def _templates(self) -> dict[bool, bytes]:
        """A transaction's last record and the others, of the same size though not of the same text.

        All but the last say that more follow.
        """
        made = {is_last: len(self._encode("", is_last=is_last)) for is_last in (True, False)}
        size = max(self.size_bytes - 4, *made.values())
        # A length of two bytes instead of one makes up for itself: both are padded alike.
        return {
            is_last: self._encode("x" * (size - own), is_last=is_last)
            for is_last, own in made.items()
        }

    def _encode(self, padding: str, *, is_last: bool) -> bytes:
        record = DataChangeRecord(
            _TIME_NS,
            _TRANSACTION,
            _SEQUENCE,
            is_last,
            "Accounts",
            _COLUMNS,
            (
                Mod(
                    f'{{"Id":"{_KEY}"}}',
                    f'{{"Balance":"17.5","Name":"name {padding}"}}',
                    "{}",
                ),
            ),
            "UPDATE",
            "OLD_AND_NEW_VALUES",
            self.per_transaction,
            1,
            "",
            False,
        )
        row = postgresql_row if self.dialect is Dialect.POSTGRESQL else googlesql_row
        return bytes(PartialResultSetPb(values=[row(record)]).SerializeToString())


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """The records of a first pattern, and after them those of a second one."""

    first: PatternRows
    second: PatternRows

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def first_at(self, time_us: int) -> int:
        return self.first.first_at(time_us) + self.second.first_at(time_us)

    def time_us(self, index: int) -> int:
        own = len(self.first)
        return self.first.time_us(index) if index < own else self.second.time_us(index - own)

    def encoded(self, first: int, end: int) -> Sequence[bytes]:
        own = len(self.first)
        return [
            *self.first.encoded(min(first, own), min(end, own)),
            *self.second.encoded(max(first, own) - own, max(end, own) - own),
        ]


@dataclass(frozen=True)
class ProtoPatternRows:
    """The records of a PatternRows with one record a transaction, as rows of MUTABLE_KEY_RANGE.

    They are made once, one by one, and then kept.
    """

    pattern: PatternRows

    def __len__(self) -> int:
        return len(self.pattern)

    def first_at(self, time_us: int) -> int:
        return self.pattern.first_at(time_us)

    def time_us(self, index: int) -> int:
        return self.pattern.time_us(index)

    def encoded(self, first: int, end: int) -> Sequence[bytes]:
        return self._all[first:end]

    @cached_property
    def _all(self) -> Sequence[bytes]:
        padding = ""
        width = len(self._encode(0, padding))
        # Base64 makes four bytes of three.
        padding = "x" * ((self.pattern.size_bytes - width) * 3 // 4)
        return [self._encode(index, padding) for index in range(len(self))]

    def _encode(self, index: int, padding: str) -> bytes:
        record = DataChangeRecord(
            self.time_us(index) * 1_000,
            f"{self.pattern.number * 10**12 + index:020}",
            f"{index:016x}-00000000",
            True,
            "Accounts",
            _COLUMNS,
            (
                Mod(
                    f'{{"Id":"{index:012}"}}',
                    f'{{"Balance":"17.5","Name":"name {padding}"}}',
                    "{}",
                ),
            ),
            "UPDATE",
            "OLD_AND_NEW_VALUES",
            1,
            1,
            "",
            False,
        )
        return bytes(PartialResultSetPb(values=[proto_row(record)]).SerializeToString())


def _digits(numbers: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint8]:
    """Each number as a row of ASCII digits, with leading zeros."""
    powers = np.array([10**i for i in range(min(width, 19) - 1, -1, -1)], np.int64)
    digits = (numbers[:, np.newaxis] // powers % 10 + ord("0")).astype(np.uint8)
    return np.pad(digits, ((0, 0), (width - digits.shape[1], 0)), constant_values=ord("0"))
