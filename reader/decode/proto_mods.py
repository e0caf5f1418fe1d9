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
# What a JSON text writes with an escape.
_ESCAPED: Final = '[\x00-\x1f"\\\\]'


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


class _ColumnNames:
    """The columns of some records: each distinct list once, one after the other.

    Attributes:
        first: where each list begins.
        counts: how many columns each list has.
        prefixes: what a member's text begins with: the name as JSON, and a colon.
        rank: the place of each column among its list's, by name.
        is_unique: whether the names of each list differ.
    """

    def __init__(self, lists: Sequence[Sequence[ColumnType]]) -> None:
        names = [[column.name.encode() for column in columns] for columns in lists]
        self.counts = np.array([len(of_list) for of_list in names], np.int64)
        self.first = np.cumsum(self.counts) - self.counts
        self.prefixes = pa.array(
            [orjson.dumps(c.name).decode() + ":" for columns in lists for c in columns], pa.string()
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
    members, place = _members(rows, cells, columns.prefixes, number, owner, is_good)
    rank = columns.rank[number]
    texts = {}
    for object_of in _OBJECTS:
        of_object = np.flatnonzero(cells.object_of == object_of)
        of_object = of_object[np.lexsort((rank[of_object], cells.mod[of_object]))]
        mod, ranks = cells.mod[of_object], rank[of_object]
        is_twice = (mod[1:] == mod[:-1]) & (ranks[1:] == ranks[:-1])
        is_good[owner[mod[1:][is_twice]]] = False
        texts[object_of] = _objects(members.take(pa.array(place[of_object])), mod, len(owner))
    rows.is_good[rows.message[chosen[~is_good]]] = False
    return ModTexts(
        np.bincount(owner, minlength=len(chosen)),
        texts[_KEYS],
        texts[_NEW_VALUES],
        texts[_OLD_VALUES],
    )


def _objects(members: pa.Array, mod: Ints, mods: int) -> pa.Array:
    """Return a JSON object for each mod, of members in the order of the mods."""
    offsets = np.searchsorted(mod, np.arange(mods + 1)).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), members)
    return pc.binary_join_element_wise("{", pc.binary_join(lists, ","), "}", "")


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
    rows: RowSpans, cells: _Cells, prefixes: pa.Array, number: Ints, owner: Ints, is_good: Flags
) -> tuple[pa.Array, Ints]:
    """Return each value as a member of a JSON object; rows with an unexpected value are not good.

    Args:
        rows, cells, owner, is_good: see find_mods().
        prefixes: what the members of each column begin with.
        number: the number of each value's column among the prefixes.

    Returns:
        The members, in any order, and where that of each value stands.
    """

    def prefix(chosen: Ints) -> pa.Array:
        return prefixes.take(pa.array(number[chosen]))

    def join(chosen: Ints, literals: pa.Array) -> pa.Array:
        return pc.binary_join_element_wise(prefix(chosen), literals, "")

    kind = rows.buffer[cells.begin]
    texts = np.flatnonzero(kind == _STRING)
    of_texts = _string_members(rows, cells.where(texts), prefix(texts), owner, is_good)
    groups: list[tuple[Ints, pa.Array]] = [(texts, of_texts)]
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
    place = np.argsort(np.concatenate([chosen for chosen, _ in groups]))
    return pa.concat_arrays([members for _, members in groups]), place


def _string_members(
    rows: RowSpans, cells: _Cells, prefixes: pa.Array, owner: Ints, is_good: Flags
) -> pa.Array:
    at = Cursors(rows.buffer, cells.begin)
    begin, end = at.span(_STRING)
    at.require(end == cells.end)
    is_good[owner[cells.mod[~at.is_good]]] = False
    begin = np.where(at.is_good, begin, cells.begin)
    texts = strings(pa.py_buffer(rows.joined), begin, np.where(at.is_good, end, cells.begin))
    # Before a text that is not UTF-8 is searched: it raises a ValueError.
    texts.validate(full=True)
    if not _has_escapes(texts):
        return pc.binary_join_element_wise(prefixes, '"', texts, '"', "")
    quoted = pc.binary_join_element_wise('"', texts, '"', "")
    is_escaped = pc.match_substring_regex(texts, _ESCAPED)
    escaped = [orjson.dumps(text).decode() for text in texts.filter(is_escaped).to_pylist()]
    literals = pc.replace_with_mask(quoted, is_escaped, pa.array(escaped, pa.string()))
    return pc.binary_join_element_wise(prefixes, literals, "")


def _has_escapes(texts: pa.Array) -> bool:
    """Return whether JSON writes any of these texts with an escape; seldom it does."""
    _, _, data = texts.buffers()
    if not data:
        return False
    characters = np.frombuffer(data, np.uint8)
    is_special = (characters == ord('"')).any() or (characters == ord("\\")).any()
    return bool(is_special or characters.min() < ord(" "))


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
