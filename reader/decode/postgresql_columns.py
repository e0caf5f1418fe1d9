"""Decoding of PostgreSQL's JSON records by column: from bytes to Arrow, thousands at once.

As in reader.decode.googlesql_columns, a message with anything unusual is left to
reader.decode.records. The rows of a stream name the same fields in the same order. This order is
taken from the first row, and a row with another order is unusual. Spanner sorts the names of an
object, so a record begins with its column types, which all records of a table share: these bytes
are compared and not parsed (reader.decode.json_column_types). So is most of what follows them
(reader.decode.json_shapes). The other records are parsed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import orjson
import pyarrow as pa
from google.protobuf.message import DecodeError

from slackwater.reader.decode.arrow import column_types_array, mods_array
from slackwater.reader.decode.googlesql_columns import (
    FLAGS,
    NO_RECORDS,
    NUMBERS,
    Columns,
    Span,
    strings,
)
from slackwater.reader.decode.json_column_types import JsonColumnTypes
from slackwater.reader.decode.json_mods import dense_copy
from slackwater.reader.decode.json_shapes import ShapedRecords
from slackwater.reader.decode.json_structure import JsonStructure
from slackwater.reader.decode.postgresql_records import OPTIONAL_DATA_FIELDS, json_column_types
from slackwater.reader.decode.protobuf_cursor import LEN, Cursors, Flags, Ints, tag
from slackwater.reader.decode.row_spans import RowSpans
from slackwater.reader.records import ColumnType
from slackwater.reader.schema import DATA_SCHEMA, MODS

_STRING: Final = tag(3, LEN)
_PREFIX: Final = b'{"data_change_record":{'
# The same without the names, and without the first value: the column types.
_SHORT_PREFIX: Final = b"{{,"
_ROW_DEPTH: Final = 1
_DATA_DEPTH: Final = 2
_MOD_DEPTH: Final = 4
_BYTES: Final = pa.binary()
_QUOTE: Final = ord('"')
_MOD: Final = tuple(field.name for field in MODS.value_type)
_UNUSUAL: Final = (IndexError, KeyError, TypeError, ValueError, DecodeError)


@dataclass(frozen=True, slots=True)
class _Decoded:
    """Records that are decoded: the indexes of their rows, rising, and the output's columns."""

    index: Ints
    batch: pa.RecordBatch


class _AnotherShapeError(ValueError):
    """The rows do not have the usual shape."""


def decode_json_columns(messages: Sequence[bytes]) -> Columns:
    """Decode the data change records of serialized PartialResultSets of the PostgreSQL dialect."""
    all_fall_back = Columns(NO_RECORDS, np.zeros(0, np.int64), range(len(messages)))
    try:
        rows = RowSpans.of(messages)
        at = Cursors(rows.buffer, rows.begin)
        begin, end = at.span(_STRING)
        at.require(end == rows.end)
        candidates = np.flatnonzero(rows.exclude(at.is_good))
        prefixes = JsonColumnTypes(rows, begin[candidates], end[candidates])
        if prefixes.distinct:
            has_prefix = prefixes.index >= 0
            rows.is_good[rows.message[candidates[~has_prefix]]] = False
            parts = _after_column_types(prefixes, rows, candidates[has_prefix], end)
        elif len(candidates):
            records = _Records.whole(rows, begin[candidates], end[candidates])
            parts = [_parsed(records, rows, candidates)]
        else:
            return all_fall_back
        columns = _joined(parts, rows)
        # Texts that are not UTF-8 raise a ValueError, as protobuf's own parser does.
        columns.batch.validate(full=True)
    except _UNUSUAL:
        # Decoding one by one raises an error that names what is wrong.
        return all_fall_back
    return columns


def _after_column_types(
    prefixes: JsonColumnTypes, rows: RowSpans, candidates: Ints, end: Ints
) -> list[_Decoded]:
    """Decode records by their shape, and parse those that have none."""
    number = prefixes.index[prefixes.index >= 0]
    after = prefixes.end[prefixes.index >= 0]
    shaped = ShapedRecords.among(rows, after, end[candidates])
    types = column_types_array(prefixes.distinct, pa.array(number[shaped.index]))
    nested = {"column_types": types, "mods": shaped.mods}
    batch = pa.RecordBatch.from_arrays(
        [nested[name] if name in nested else shaped.scalars[name] for name in DATA_SCHEMA.names],
        schema=DATA_SCHEMA,
    )
    parts = [_Decoded(candidates[shaped.index], batch)]
    has_no_shape = np.ones(len(candidates), np.bool_)
    has_no_shape[shaped.index] = False
    if has_no_shape.any():
        candidates = candidates[has_no_shape]
        try:
            records = _Records.after_column_types(rows, after[has_no_shape], end[candidates])
            records.column_types = (prefixes.distinct, number[has_no_shape])
            parts.append(_parsed(records, rows, candidates))
        except _UNUSUAL:
            rows.is_good[rows.message[candidates]] = False
    return parts


def _parsed(records: _Records, rows: RowSpans, candidates: Ints) -> _Decoded:
    """Return the usual ones of records that are parsed; one unusual row excludes its message."""
    mods = _Mods(records)
    rows.is_good[rows.message[candidates[~records.is_good]]] = False
    chosen = rows.is_good[rows.message[candidates]]
    return _Decoded(candidates[chosen], _batch(records, mods, chosen))


def _joined(parts: Sequence[_Decoded], rows: RowSpans) -> Columns:
    """Return all parts in the rows' order, without the messages that are left out."""
    index = np.concatenate([part.index for part in parts])
    batch = pa.concat_batches([part.batch for part in parts])
    chosen = rows.is_good[rows.message[index]]
    if len(parts) > 1 or not chosen.all():
        order = np.argsort(index, kind="stable")
        order = order[chosen[order]]
        index, batch = index[order], batch.take(pa.array(order))
    return Columns(batch, rows.message[index], np.flatnonzero(~rows.is_good).tolist())


class _Records:
    """The rows with a data change record, and the places of its fields' values.

    Attributes:
        structure: the keys and values of all rows.
        is_good: whether each row has had the usual shape so far.
        values: of each field, the places of its values, texts without their quotation marks. Of
            rows that are not good, the places mean nothing.
        flags: of each boolean field, its values.
        column_types: each list of column types once, and the index of each row's list.
    """

    column_types: tuple[Sequence[tuple[ColumnType, ...]], Ints]

    def __init__(self, structure: JsonStructure, prefix: bytes) -> None:
        self.structure = structure
        self.is_good = structure.matches_at(structure.begins, prefix)
        self._exclude_rows_at(structure.odd_escapes)
        # With another key beside the record, the row's end would not be the record's.
        outer = np.flatnonzero(structure.key_depth == _ROW_DEPTH)
        outer_keys = np.diff(np.searchsorted(outer, structure.first_key))
        self.is_good &= outer_keys == (prefix == _PREFIX)
        if not self.is_good.any():
            raise _AnotherShapeError
        keys = np.flatnonzero(structure.key_depth == _DATA_DEPTH)
        first = np.searchsorted(keys, structure.first_key)
        row = int(np.argmax(self.is_good))
        names = [structure.key_name(key) for key in keys[first[row] : first[row + 1]]]
        named = {name.decode() for name in names}
        if not (named <= set(DATA_SCHEMA.names) or named >= OPTIONAL_DATA_FIELDS):
            # A field that seems to be missing may have been renamed.
            raise _AnotherShapeError
        self.is_good &= np.diff(first) == len(names)
        # For rows that are not good, the keys of the first good row are used.
        own = np.where(self.is_good, first[:-1], first[row])
        last_end = np.where(self.is_good, structure.ends, structure.ends[row]) - 2
        self.values: dict[str, Span] = {}
        for number, name in enumerate(names):
            key = keys[own + number]
            self.is_good &= structure.have_name(key, name)
            is_last = number + 1 == len(names)
            end = last_end if is_last else structure.key_begin[keys[own + number + 1]] - 1
            if not is_last:
                self.is_good &= structure.matches_at(end, b",")
            self.values[name.decode()] = (structure.value_begin[key], end)
            if name == b"mods":
                following = structure.first_key[1:] if is_last else keys[own + number + 1]
                self.mods_keys = (key + 1, following)
        self.flags: dict[str, Flags] = {}
        self._find_scalars()
        self._exclude_escapes_outside_mods()

    @classmethod
    def whole(cls, rows: RowSpans, begin: Ints, end: Ints) -> _Records:
        """Return the rows between these places."""
        buffer, ends = dense_copy(rows.joined, begin, end)
        # A writer that puts white space between values does so in every row.
        is_spaced = buffer[: len(_PREFIX)].tobytes() != _PREFIX
        records = cls(JsonStructure(buffer, ends, is_spaced=is_spaced), _PREFIX)
        records.column_types = _column_types(records)
        return records

    @classmethod
    def after_column_types(cls, rows: RowSpans, begin: Ints, end: Ints) -> _Records:
        """Return rows without the column types, which JsonColumnTypes has compared."""
        begin = begin - len(_SHORT_PREFIX) + 1
        buffer, ends = dense_copy(rows.joined, begin, end)
        # The last bytes of the prefix are overwritten with the two brackets that it opened.
        for offset, byte in enumerate(_SHORT_PREFIX[:-1]):
            buffer[ends - (end - begin) + offset] = byte
        return cls(JsonStructure(buffer, ends, is_spaced=False), _SHORT_PREFIX)

    def _exclude_rows_at(self, places: Ints) -> None:
        self.is_good[self.structure.text_index(places)] = False

    def _exclude_escapes_outside_mods(self) -> None:
        """Exclude rows with an escape outside of mods: elsewhere it would have to be decoded."""
        places = self.structure.escapes
        begin, end = self.values["mods"]
        row = self.structure.text_index(places)
        self._exclude_rows_at(places[(places < begin[row]) | (places > end[row])])

    def _find_scalars(self) -> None:
        """Find the places of texts and numbers, and the values of booleans."""
        buffer = self.structure.buffer
        for field in DATA_SCHEMA:
            if field.name not in self.values or pa.types.is_nested(field.type):
                continue
            begin, end = self.values[field.name]
            if field.name in FLAGS:
                self.flags[field.name] = is_true = self.structure.matches_at(begin, b"true")
                self.is_good &= is_true | self.structure.matches_at(begin, b"false")
                continue
            is_quoted = (buffer[begin] == _QUOTE) & (buffer[end - 1] == _QUOTE)
            if field.name not in NUMBERS:
                self.is_good &= is_quoted & (end > begin + 1)
            self.values[field.name] = (begin + is_quoted, end - is_quoted)


class _Mods:
    """The places of the three texts of each mod."""

    def __init__(self, records: _Records) -> None:
        structure = records.structure
        begin, end = records.values["mods"]
        keys, key_counts = _between(structure.key_depth == _MOD_DEPTH, *records.mods_keys)
        records.is_good &= key_counts % len(_MOD) == 0
        keys = keys[np.repeat(records.is_good, key_counts)].reshape(-1, len(_MOD))
        self.counts = np.where(records.is_good, key_counts // len(_MOD), 0)
        self.owner = np.repeat(np.arange(len(key_counts)), self.counts)
        # The list must be exactly [{mod},{mod}], and a mod must have only the three keys.
        opened = structure.key_begin[keys[:, 0]] - 1
        mods_end = np.cumsum(self.counts)
        closed = np.append(opened, 0)[1:] - 2
        has_mods = self.counts > 0
        closed[mods_end[has_mods] - 1] = end[has_mods] - 2
        first = (mods_end - self.counts)[has_mods]
        is_good = structure.matches_at(closed, b"},{")
        is_good[mods_end[has_mods] - 1] = structure.matches_at(end[has_mods] - 2, b"}]")
        is_good[first] &= opened[first] == begin[has_mods] + 1
        records.is_good[~has_mods] &= structure.matches_at(begin[~has_mods], b"[]")
        is_good &= structure.matches_at(opened, b"{")
        self.texts: dict[str, tuple[Ints, Ints, Flags]] = {}
        for number in range(len(_MOD)):
            name = structure.key_name(keys[0, number]) if len(keys) else _MOD[number].encode()
            is_good &= structure.have_name(keys[:, number], name)
            is_last = number + 1 == len(_MOD)
            value = structure.value_begin[keys[:, number]]
            value_end = closed if is_last else structure.key_begin[keys[:, number + 1]] - 1
            is_null = structure.matches_at(value, b"null")
            is_good &= is_null | structure.matches_at(value, b"{")
            self.texts[name.decode()] = (value, value_end, is_null)
        records.is_good[self.owner[~is_good]] = False


def _between(chosen: Flags, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the indexes of the chosen items in each range in turn, and their number in each."""
    indexes = np.flatnonzero(chosen)
    first, last = np.searchsorted(indexes, begin), np.searchsorted(indexes, end)
    counts = last - first
    before = np.cumsum(counts) - counts
    return indexes[np.repeat(first - before, counts) + np.arange(counts.sum())], counts


def _batch(records: _Records, mods: _Mods, chosen: Flags) -> pa.RecordBatch:
    """Return the first 13 columns of the output, of the chosen rows."""
    buffer = pa.py_buffer(records.structure.buffer)
    arrays = []
    for field in DATA_SCHEMA:
        name = field.name
        if name in OPTIONAL_DATA_FIELDS and name not in records.values:
            empty = "" if field.type == pa.string() else False
            arrays.append(pa.repeat(pa.scalar(empty), int(chosen.sum())))
        elif name in FLAGS:
            arrays.append(pa.array(records.flags[name][chosen]))
        elif name == "mods":
            arrays.append(_mods(buffer, mods, chosen))
        elif name == "column_types":
            distinct, number = records.column_types
            arrays.append(column_types_array(distinct, pa.array(number[chosen])))
        else:
            begin, end = records.values[name]
            arrays.append(strings(buffer, begin[chosen], end[chosen]).cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=DATA_SCHEMA)


def _column_types(records: _Records) -> tuple[Sequence[tuple[ColumnType, ...]], Ints]:
    """Return the column types of rows that have them at any place; parse each text once."""
    begin, end = records.values["column_types"]
    good = records.is_good
    texts = strings(pa.py_buffer(records.structure.buffer), begin[good], end[good], _BYTES)
    encoded = texts.dictionary_encode()
    distinct = [json_column_types(orjson.loads(text)) for text in encoded.dictionary.to_pylist()]
    number = np.zeros(len(good), np.int64)
    number[good] = np.asarray(encoded.indices)
    return distinct, number


def _mods(buffer: pa.Buffer, mods: _Mods, chosen: Flags) -> pa.Array:
    is_owned = chosen[mods.owner]
    texts = []
    for name in _MOD:
        begin, end, is_null = mods.texts[name]
        texts.append(strings(buffer, begin[is_owned], end[is_owned], is_null=is_null[is_owned]))
    return mods_array(mods.counts[chosen], texts)
