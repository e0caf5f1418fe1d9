"""JSON data change records of the same shape as an earlier one: compared with it, not parsed.

Before and after the mods, the records of a table differ only in the values of a few fields, and
most of these have the same size: a time, an id, a number. One record is read, and the bytes of the
others are compared with its bytes wherever it has no such value. A value of theirs has no quotation
mark and no backslash, so that it ends where the first one's ends.

Records of which this is not true are left to reader.decode.postgresql_columns, which parses them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from slackwater.reader.decode.json_mods import plain_mods
from slackwater.reader.decode.postgresql_records import OPTIONAL_DATA_FIELDS
from slackwater.reader.decode.protobuf_cursor import Bytes, Flags, Ints, bytes_at
from slackwater.reader.decode.row_spans import RowSpans
from slackwater.reader.schema import DATA_SCHEMA

_FIELD: Final = re.compile(rb',"(\w+)":("[^"\\]*"|\d+|true|false)')
_HEAD: Final = re.compile(rb'(?:%s)*,"mods":\[' % _FIELD.pattern)
_TAIL: Final = re.compile(rb"\](?:%s)*\}\}" % _FIELD.pattern)
# By the first character of a value, the tests of its field's type.
_TYPE_TESTS: Final = {
    "t": (pa.types.is_boolean,),
    "f": (pa.types.is_boolean,),
    '"': (pa.types.is_string, pa.types.is_timestamp, pa.types.is_integer),
}
_NUMBER_TESTS: Final = (pa.types.is_integer,)
_NESTED: Final = ("column_types", "mods")
_SCALARS: Final = pa.schema([field for field in DATA_SCHEMA if field.name not in _NESTED])
# A batch has a few for each table. With more of them, parsing costs less.
_SHAPES_MAX: Final = 16
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")


class _Part:
    """The bytes before the mods of a record, or after them, as a pattern for other records.

    Attributes:
        text: the bytes.
        names: of the fields, in order.
        flags: the values of booleans, which other records must have, too.
    """

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.names: list[str] = []
        self.flags: dict[str, bool] = {}
        self.is_as_documented = True
        self._spans: dict[str, tuple[int, int]] = {}
        self._is_fixed: Flags = np.ones(len(text), np.bool_)
        for field in _FIELD.finditer(text):
            self._add(field[1].decode(), field[2], *field.span(2))

    def _add(self, name: str, value: bytes, begin: int, end: int) -> None:
        self.names.append(name)
        first = chr(value[0])
        if name in _SCALARS.names:
            tests = _TYPE_TESTS.get(first, _NUMBER_TESTS)
            self.is_as_documented &= any(test(_SCALARS.field(name).type) for test in tests)
        if first in "tf":
            self.flags[name] = first == "t"
            return
        quotes = first == '"'
        self._spans[name] = begin + quotes, end - quotes
        self._is_fixed[begin + quotes : end - quotes] = False

    def values_of(self, rows: Bytes) -> tuple[Flags, dict[str, Bytes]]:
        """Return which of these rows differ from the part in values alone, and all rows' values.

        Args:
            rows: the bytes of other records, as many of each as the part has.
        """
        differs = rows != np.frombuffer(self.text, np.uint8)
        differs &= self._is_fixed
        has_shape = ~differs.any(axis=1) if differs.any() else np.ones(len(rows), np.bool_)
        values = {}
        for name, (begin, end) in self._spans.items():
            values[name] = column = _columns(rows, begin, end)
            ends_early = (column == _QUOTE) | (column == _BACKSLASH)
            if ends_early.any():
                has_shape &= ~ends_early.any(axis=1)
        return has_shape, values


@dataclass(frozen=True, slots=True)
class _Shape:
    """The pattern that records of a table share before and after their mods."""

    head: _Part
    tail: _Part

    @classmethod
    def of(cls, text: bytes) -> _Shape | None:
        """Return the shape of a record; None if it is unusual.

        Args:
            text: the record after its column types.
        """
        head = _HEAD.match(text)
        tail = _TAIL.fullmatch(text, max(text.rfind(b"]"), 0))
        if head is None or tail is None or tail.start() < head.end():
            return None
        shape = cls(_Part(head[0]), _Part(tail[0]))
        names = [*_NESTED, *shape.head.names, *shape.tail.names]
        is_documented = shape.head.is_as_documented and shape.tail.is_as_documented
        if not is_documented or len(set(names)) < len(names):
            return None
        missing = set(DATA_SCHEMA.names).difference(names)
        # A field that seems to be missing may have been renamed.
        is_renamed = missing and not set(names) <= set(DATA_SCHEMA.names)
        return None if is_renamed or missing - OPTIONAL_DATA_FIELDS else shape

    def among(
        self, rows: RowSpans, begin: Ints, end: Ints
    ) -> tuple[Flags, pa.RecordBatch, tuple[Ints, Ints]]:
        """Find the records of this shape.

        Args:
            rows: with the buffer that holds the records.
            begin, end: the place of each record, after its column types.

        Returns:
            Which of them have it; their columns except the nested ones; the places of their mods.
        """
        head_size, tail_size = len(self.head.text), len(self.tail.text)
        is_same = end - begin >= head_size + tail_size
        begin, end = begin[is_same], end[is_same]
        has_head, values = self.head.values_of(bytes_at(rows.buffer, begin, head_size))
        has_tail, others = self.tail.values_of(bytes_at(rows.buffer, end - tail_size, tail_size))
        values |= others
        has_shape = has_head & has_tail
        if not has_shape.all():
            is_same[is_same] = has_shape
            begin, end = begin[has_shape], end[has_shape]
            values = {name: column[has_shape] for name, column in values.items()}
        # Their brackets are a part's.
        mods = begin + head_size - 1, end - tail_size + 1
        return is_same, self._batch(values, len(begin)), mods

    def _batch(self, values: Mapping[str, Bytes], count: int) -> pa.RecordBatch:
        columns: list[pa.Array] = []
        flags = self.head.flags | self.tail.flags
        for field in _SCALARS:
            if field.name in values:
                columns.append(_texts(values[field.name]).cast(field.type))
            else:
                empty = "" if field.type == pa.string() else False
                columns.append(pa.repeat(pa.scalar(flags.get(field.name, empty)), count))
        return pa.RecordBatch.from_arrays(columns, schema=_SCALARS)


@dataclass(frozen=True, slots=True)
class ShapedRecords:
    """Those of many records that have the shape of others, and plain mods.

    Attributes:
        index: which these are, rising.
        scalars: their columns, except the column types and the mods.
        mods: their mods.
    """

    index: Ints
    scalars: pa.RecordBatch
    mods: pa.Array

    @classmethod
    def among(cls, rows: RowSpans, begin: Ints, end: Ints) -> ShapedRecords:
        """Find them.

        Args:
            rows: with the buffer that holds the records.
            begin, end: the place of each record, after its column types.

        Raises:
            ValueError: a value is not one of its field's type.
        """
        batches = [pa.RecordBatch.from_pylist([], schema=_SCALARS)]
        indexes = [np.zeros(0, np.int64)]
        mods_begin, mods_end = begin.copy(), end.copy()
        remaining = np.arange(len(begin))
        for _ in range(_SHAPES_MAX):
            if not len(remaining):
                break
            first = remaining[0]
            shape = _Shape.of(rows.joined[begin[first] : end[first]])
            if shape is None:
                remaining = remaining[1:]
                continue
            is_same, batch, mods = shape.among(rows, begin[remaining], end[remaining])
            same = remaining[is_same]
            mods_begin[same], mods_end[same] = mods
            batches.append(batch)
            indexes.append(same)
            remaining = remaining[~is_same]
        index, scalars = np.concatenate(indexes), pa.concat_batches(batches)
        if len(batches) > 2:
            order = np.argsort(index)
            index, scalars = index[order], scalars.take(pa.array(order))
        lists, is_plain = plain_mods(rows.joined, mods_begin[index], mods_end[index])
        if not is_plain.all():
            index, scalars = index[is_plain], scalars.filter(pa.array(is_plain))
        return cls(index, scalars, lists)


def _columns(rows: Bytes, begin: int, end: int) -> Bytes:
    """Return a copy of some columns, in one step for each row; numpy takes one for each byte."""
    if begin == end:
        return rows[:, begin:end]
    kind = f"V{end - begin}"
    column = np.ndarray((len(rows),), kind, rows, offset=begin, strides=(rows.shape[1],))
    return column.copy().view(np.uint8).reshape(len(rows), end - begin)


def _texts(rows: Bytes) -> pa.Array:
    """Return texts of one size, of which each row has the bytes."""
    count, size = rows.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    data = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), data])
