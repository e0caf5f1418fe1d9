"""Data change records as bytes of the wire: listed one by one, or millions by a pattern."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache

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
        return [self._encoded(index) for index in range(first, end)]

    def _encoded(self, index: int) -> bytes:
        transaction, sequence = divmod(index, self.per_transaction)
        second, us = divmod(self.first_us + transaction * self.every_us, 1_000_000)
        return self._templates[sequence == self.per_transaction - 1] % {
            b"second": _second(second),
            b"us": us,
            b"transaction": self.number * 10**12 + transaction,
            b"sequence": sequence,
            b"key": index,
        }

    @cached_property
    def _templates(self) -> dict[bool, bytes]:
        """A transaction's last record and the others, of the same size though not of the same text.

        All but the last say that more follow.
        """
        made = {is_last: len(self._encode("", is_last=is_last)) for is_last in (True, False)}
        size = max(self.size_bytes - 4, *made.values())
        # A length of two bytes instead of one makes up for itself: both are padded alike.
        return {
            is_last: _template(self._encode("x" * (size - own), is_last=is_last))
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


def _template(encoded: bytes) -> bytes:
    """Return a record with places for numbers of the width of its own."""
    made = encoded.replace(b"%", b"%%")
    for text, place in (
        (_TIME[:26], b"%(second)b.%(us)06d"),
        (_TRANSACTION, b"%(transaction)020d"),
        (_SEQUENCE, b"%(sequence)08d"),
        (_KEY, b"%(key)012d"),
    ):
        made = made.replace(text.encode(), place, 1)
    return made


@lru_cache(maxsize=1_000)
def _second(since_epoch: int) -> bytes:
    """Return a time's text down to its seconds."""
    return datetime.fromtimestamp(since_epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()
