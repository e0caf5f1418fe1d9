"""Data change records as bytes of the wire: listed one by one, or millions by a pattern."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from reader.change_stream import Dialect
from reader.records import ColumnType, DataChangeRecord, Mod
from tests.spanner_messages import PartialResultSetPb, googlesql_row, postgresql_row

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
_LAST_FLAG = {
    Dialect.GOOGLE_STANDARD_SQL: (b"\x0a\x02\x20\x01", b"\x0a\x02\x20\x00"),
    Dialect.POSTGRESQL: (b'in_partition": true', b'in_partition":false'),
}


@dataclass(frozen=True)
class ListedRows:
    """Records given one by one.

    Args:
        records: in commit order, committed at whole microseconds.
        dialect: how they are written.
    """

    records: tuple[DataChangeRecord, ...]
    dialect: Dialect

    def __len__(self) -> int:
        return len(self.records)

    def first_at(self, time_us: int) -> int:
        return bisect_left(self._times, time_us)

    def time_us(self, index: int) -> int:
        return self._times[index]

    def encoded(self, first: int, end: int) -> Sequence[bytes]:
        row = postgresql_row if self.dialect is Dialect.POSTGRESQL else googlesql_row
        return [
            PartialResultSetPb(values=[row(record)]).SerializeToString()
            for record in self.records[first:end]
        ]

    @cached_property
    def _times(self) -> list[int]:
        return [record.commit_timestamp_ns // 1_000 for record in self.records]


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
        template = self._template
        index = np.arange(first, end)
        transaction, sequence = np.divmod(index, self.per_transaction)
        rows = np.repeat(template[np.newaxis], len(index), axis=0)
        times = (self.first_us + transaction * self.every_us).astype("datetime64[us]")
        stamps = np.datetime_as_string(times).astype("S26")
        self._patch(rows, _TIME[:26], stamps.view(np.uint8).reshape(-1, 26))
        self._patch(rows, _TRANSACTION, _digits(self.number * 10**12 + transaction, 20))
        self._patch(rows, _SEQUENCE, _digits(sequence, 8))
        self._patch(rows, _KEY, _digits(index, 12))
        # All but a transaction's last record say that more follow.
        is_open = sequence < self.per_transaction - 1
        was, becomes = _LAST_FLAG[self.dialect]
        at = bytes(template).index(was)
        rows[is_open, at : at + len(was)] = np.frombuffer(becomes, np.uint8)
        width = rows.shape[1]
        joined = rows.tobytes()
        return [joined[i : i + width] for i in range(0, len(joined), width)]

    def _patch(
        self, rows: npt.NDArray[np.uint8], placeholder: str, texts: npt.NDArray[np.uint8]
    ) -> None:
        at = bytes(self._template).index(placeholder.encode())
        rows[:, at : at + texts.shape[1]] = texts

    @cached_property
    def _template(self) -> npt.NDArray[np.uint8]:
        made = self._encode("")
        padding = max(0, self.size_bytes - len(made) - 4)
        return np.frombuffer(self._encode("x" * padding), np.uint8)

    def _encode(self, padding: str) -> bytes:
        record = DataChangeRecord(
            _TIME_NS,
            _TRANSACTION,
            _SEQUENCE,
            True,
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


def _digits(numbers: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint8]:
    """Each number as a row of ASCII digits, with leading zeros."""
    powers = np.array([10**i for i in range(min(width, 19) - 1, -1, -1)], np.int64)
    digits = (numbers[:, np.newaxis] // powers % 10 + ord("0")).astype(np.uint8)
    return np.pad(digits, ((0, 0), (width - digits.shape[1], 0)), constant_values=ord("0"))
