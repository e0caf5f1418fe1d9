"""The mods of many data change records with mutable key ranges, as JSON texts made by column.

A mod has a list of values for its keys, its old and its new values, each with the index of its
column. All values are found in step, one value of each mod at a time; then each becomes the JSON
text of a member, and the members of an object are joined in the order of their names.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError as ProtobufError
from google.protobuf.struct_pb2 import Value

from slackwater.reader.decode.googlesql_columns import Span, strings
from slackwater.reader.decode.json_strings import string_literals
from slackwater.reader.decode.proto_records import json_value
from slackwater.reader.decode.protobuf_cursor import LEN, VARINT, Cursors, Flags, Ints, tag
from slackwater.reader.decode.row_spans import RowSpans
from slackwater.reader.records import ColumnType

_MOD: Final = tag(7, LEN)
# The fields of a mod: keys, old and new values.
_KEYS, _OLD_VALUES, _NEW_VALUES = tag(1, LEN), tag(2, LEN), tag(3, LEN)
_OBJECTS: Final = (_KEYS, _OLD_VALUES, _NEW_VALUES)
_COLUMN_INDEX: Final = tag(1, VARINT)
_VALUE: Final = tag(2, LEN)
# The kinds of google.protobuf.Value.
_NULL, _NUMBER, _STRING, _BOOL = tag(1, VARINT), tag(2, 1), tag(3, LEN), tag(4, VARINT)
_STRUCT, _LIST = tag(5, LEN), tag(6, LEN)
# With fewer mods in step than this, decoding them one by one costs less.
_IN_STEP_MIN: Final = 16
# After a member that is not its object's last, and after one that is.
_ENDS: Final = pa.array(["", "}"])


@dataclass(frozen=True, slots=True)
class ModTexts:
    """The mods of some rows, in order.

    Attributes:
        counts: how many mods each row has.
        keys, new_values, old_values: the JSON texts of all mods; those of rows that were excluded
            hold anything.
    """

    counts: Ints
    keys: pa.Array
    new_values: pa.Array
    old_values: pa.Array


@dataclass(slots=True)
class _Cells:
    """Values of mods, in the order in which they lie in the buffer.

    Attributes:
        mod: the number of each value's mod.
        object_of: the tag of the object that it belongs to.
        column: the index of its column.
        begin, end: where the google.protobuf.Value lies.
    """

    mod: Ints
    object_of: Ints
    column: Ints
    begin: Ints
    end: Ints

    def where(self, chosen: Flags | Ints) -> _Cells:
        """Return some of them."""
        return _Cells(
            self.mod[chosen],
            self.object_of[chosen],
            self.column[chosen],
            self.begin[chosen],
            self.end[chosen],
        )


@dataclass(frozen=True, slots=True)
class _Order:
    """The order of values in the JSON texts: by kind of object, mod and the column's name.

    Attributes:
        cells: the number of each value, in this order.
        object_of: the number of each value's object, in this order: those of all mods' keys come
            first, then all old values, then all new values.
        is_first, is_last: whether each value, as they lie in the buffer, is its object's.
        is_twice: the number of each value whose column its object has already.
    """

    cells: Ints
    object_of: Ints
    is_first: Flags
    is_last: Flags
    is_twice: Ints

    @classmethod
    def of(cls, cells: _Cells, rank: Ints, mods: int) -> _Order:
        """Return the order of values with these ranks by name."""
        object_of = (cells.object_of - _KEYS) // (_OLD_VALUES - _KEYS) * mods + cells.mod
        order = np.lexsort((rank, object_of))
        in_order, ranks = object_of[order], rank[order]
        begins = np.ones(len(order) + 1, np.bool_)
        begins[1:-1] = in_order[1:] != in_order[:-1]
        is_first, is_last = np.empty((2, len(order)), np.bool_)
        is_first[order], is_last[order] = begins[:-1], begins[1:]
        is_twice = ~begins[1:-1] & (ranks[1:] == ranks[:-1])
        return cls(order, in_order, is_first, is_last, order[1:][is_twice])


class _ColumnNames:
    """The columns of some records: each distinct list once, one after the other.

    Attributes:
        first: where each list begins.
        counts: how many columns each list has.
        prefixes: for each column the beginning of a later member's text, and then of an object's
            first: the name as JSON, between a comma or a brace and a colon.
        rank: the place of each column among its list's, by name.
        is_unique: whether the names of each list differ.
    """

    def __init__(self, lists: Sequence[Sequence[ColumnType]]) -> None:
        names = [[column.name.encode() for column in columns] for columns in lists]
        self.counts = np.array([len(of_list) for of_list in names], np.int64)
        self.first = np.cumsum(self.counts) - self.counts
        self.prefixes = pa.array(
            [
                f"{before}{orjson.dumps(column.name).decode()}:"
                for columns in lists
                for column in columns
                for before in ",{"
            ],
            pa.string(),
        )
        ranks = [np.argsort(np.argsort(np.array(of_list, object))) for of_list in names if of_list]
        self.rank: Ints = np.concatenate(ranks) if ranks else np.zeros(0, np.int64)
        self.is_unique = np.array([len(set(of_list)) == len(of_list) for of_list in names], bool)


def find_mods(
    rows: RowSpans, span: Span, chosen: Ints, lists: Sequence[Sequence[ColumnType]], which: Ints
) -> ModTexts:
    """Return the mods of some rows; exclude the messages of rows that are not as expected.

    Args:
        rows: the records.
        span: where the field mods lies in each of all rows.
        chosen: the rows.
        lists: the distinct column types of these rows.
        which: the index in lists for each of these rows.
    """
    columns = _ColumnNames(lists)
    is_good = columns.is_unique[which]
    owner, begin, end = _mods(rows, (span[0][chosen], span[1][chosen]), is_good)
    cells = _cells(rows, begin, end, owner, is_good)
    cells = cells.where(np.argsort(cells.begin, kind="stable"))
    row = owner[cells.mod]
    is_good[row[cells.column >= columns.counts[which[row]]]] = False
    cells = cells.where(is_good[row])
    number = columns.first[which[owner[cells.mod]]] + cells.column
    order = _Order.of(cells, columns.rank[number], len(owner))
    is_good[owner[cells.mod[order.is_twice]]] = False
    prefix = 2 * number + order.is_first
    members = _members(rows, cells, order, columns.prefixes, prefix, owner, is_good)
    objects = _objects(members, order, len(_OBJECTS) * len(owner))
    keys, old_values, new_values = (
        _with_empty(objects, of_object * len(owner), len(owner))
        for of_object in range(len(_OBJECTS))
    )
    rows.is_good[rows.message[chosen[~is_good]]] = False
    return ModTexts(np.bincount(owner, minlength=len(chosen)), keys, new_values, old_values)


def _objects(members: pa.Array, order: _Order, count: int) -> pa.Array:
    """Return the JSON texts of all objects; those without members are empty.

    Members in sequence, with the separators between them, are the objects' texts.
    """
    _, offsets, data = members.buffers()
    ends = np.frombuffer(offsets, np.int32) if len(members) else np.zeros(1, np.int32)
    first = np.searchsorted(order.object_of, np.arange(count + 1))
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends[first]), data or pa.py_buffer(b""))


def _with_empty(objects: pa.Array, first: int, count: int) -> pa.Array:
    """Return some of the objects; one without members is {}."""
    texts = objects.slice(first, count)
    is_empty = pc.equal(pc.binary_length(texts), 0)
    return pc.if_else(is_empty, "{}", texts) if pc.any(is_empty).as_py() else texts


def _mods(rows: RowSpans, span: Span, is_good: Flags) -> tuple[Ints, Ints, Ints]:
    """Return each mod's row and where its fields lie, in the rows' order."""
    at, end = span[0].copy(), span[1]
    owners, begins, ends = [np.zeros(0, np.int64)], [at[:0]], [at[:0]]
    active = np.flatnonzero(is_good)
    while len(active := active[at[active] < end[active]]):
        if len(active) < _IN_STEP_MIN and len(owners) > _IN_STEP_MIN:
            is_good[active] = False
            break
        step = Cursors(rows.buffer, at[active])
        first, last = step.span(_MOD)
        at[active] = last
        owners.append(active)
        begins.append(first)
        ends.append(last)
    owner, begin = np.concatenate(owners), np.concatenate(begins)
    order = np.argsort(owner, kind="stable")
    return owner[order], begin[order], np.concatenate(ends)[order]


def _cells(rows: RowSpans, begin: Ints, end: Ints, owner: Ints, is_good: Flags) -> _Cells:
    """Return the values of all mods; rows in which one is not as expected are not good."""
    at = begin.copy()
    parts = [_Cells(*([np.zeros(0, np.int64)] * 5))]
    active = np.flatnonzero(is_good[owner])
    while len(active := active[at[active] < end[active]]):
        if len(active) < _IN_STEP_MIN and len(parts) > _IN_STEP_MIN:
            is_good[owner[active]] = False
            break
        step = Cursors(rows.buffer, at[active])
        object_of = step.byte().astype(np.int64)
        step.require(np.isin(object_of, _OBJECTS))
        size = step.length()
        cell_end = step.at + size
        column = _column_index(step)
        first, last = step.span(_VALUE)
        step.require((last == cell_end) & (cell_end <= end[active]) & (last > first))
        is_good[owner[active[~step.is_good]]] = False
        active, good = active[step.is_good], step.is_good
        at[active] = cell_end[good]
        parts.append(_Cells(active, object_of[good], column[good], first[good], last[good]))
    return _Cells(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("mod", "object_of", "column", "begin", "end")
        )
    )


def _column_index(step: Cursors) -> Ints:
    """Step over the index of a value's column, which is not sent if it is 0."""
    column = np.zeros(len(step.at), np.int64)
    is_sent = step.buffer[step.at] == _COLUMN_INDEX
    if is_sent.any():
        of_sent = Cursors(step.buffer, step.at[is_sent] + 1)
        column[is_sent] = of_sent.length()
        place, is_good = step.at.copy(), np.ones(len(is_sent), np.bool_)
        place[is_sent], is_good[is_sent] = of_sent.at, of_sent.is_good
        step.skip_to(place)
        step.require(is_good)
    return column


def _members(
    rows: RowSpans,
    cells: _Cells,
    order: _Order,
    prefixes: pa.Array,
    prefix: Ints,
    owner: Ints,
    is_good: Flags,
) -> pa.Array:
    """Return each value as a member of a JSON object, with the brace or comma that it needs.

    Args:
        rows, cells, owner, is_good: see find_mods(). Rows with an unexpected value are not good.
        order: of the members.
        prefixes: the beginnings of members.
        prefix: the number of each value's prefix.
    """

    def join(chosen: Ints, *literals: pa.Array | str) -> pa.Array:
        before = prefixes.take(pa.array(prefix[chosen]))
        after = _ENDS.take(pa.array(order.is_last[chosen].view(np.int8)))
        return pc.binary_join_element_wise(before, *literals, after, "")

    kind = rows.buffer[cells.begin]
    texts = np.flatnonzero(kind == _STRING)
    of_texts = _string_literals(rows, cells.where(texts), owner, is_good)
    groups: list[tuple[Ints, pa.Array]] = [(texts, join(texts, *of_texts))]
    size, second = cells.end - cells.begin, rows.buffer[cells.begin + 1]
    for byte, values in ((_NULL, ("null",)), (_BOOL, ("false", "true"))):
        of_kind = np.flatnonzero(kind == byte)
        is_bad = (size[of_kind] != 2) | (second[of_kind] >= len(values))
        is_good[owner[cells.mod[of_kind[is_bad]]]] = False
        which = np.where(is_bad, 0, second[of_kind])
        groups.append((of_kind, join(of_kind, pa.array(values).take(pa.array(which)))))
    others = np.flatnonzero(~np.isin(kind, (_STRING, _NULL, _BOOL)))
    literals = _other_literals(rows, cells.where(others), owner, is_good)
    groups.append((others, join(others, literals)))
    groups = [group for group in groups if len(group[0])] or groups[:1]
    place = np.argsort(np.concatenate([chosen for chosen, _ in groups]))
    # With one kind of value there is nothing to put together.
    together = groups[0][1] if len(groups) == 1 else pa.concat_arrays([m for _, m in groups])
    return together.take(pa.array(place[order.cells]))


def _string_literals(
    rows: RowSpans, cells: _Cells, owner: Ints, is_good: Flags
) -> tuple[pa.Array | str, ...]:
    """Return parts that make texts as JSON; rows with an unexpected value are not good."""
    at = Cursors(rows.buffer, cells.begin)
    begin, end = at.span(_STRING)
    at.require(end == cells.end)
    is_good[owner[cells.mod[~at.is_good]]] = False
    begin = np.where(at.is_good, begin, cells.begin)
    texts = strings(pa.py_buffer(rows.joined), begin, np.where(at.is_good, end, cells.begin))
    return string_literals(texts)


def _other_literals(rows: RowSpans, cells: _Cells, owner: Ints, is_good: Flags) -> pa.Array:
    """Return numbers, lists and structs as JSON, one by one."""
    literals = []
    for mod, begin, end in zip(
        cells.mod.tolist(), cells.begin.tolist(), cells.end.tolist(), strict=True
    ):
        literal = "null"
        try:
            literal = _literal(rows.joined[begin:end])
        except (ValueError, ProtobufError):
            is_good[owner[mod]] = False
        literals.append(literal)
    return pa.array(literals, pa.string())


def _literal(serialized: bytes) -> str:
    if serialized[0] == _NUMBER and len(serialized) == 9:
        (number,) = struct.unpack_from("<d", serialized, 1)
        if math.isfinite(number):
            return orjson.dumps(number).decode()
    value = json_value(Value.FromString(serialized))
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
