"""From PostgreSQL's JSON rows to Arrow by column; see reader.columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
from google.protobuf.message import DecodeError

from reader.batch import column_types_array, mods_array
from reader.columns import NOTHING, NUMBERS, Columns
from reader.decode import json_column_types
from reader.records import ColumnType
from reader.row_spans import RowSpans
from reader.schema import DATA_SCHEMA, MODS
from reader.wire import LEN, Cursors, tag

_STRING: Final = tag(3, LEN)
_MOD: Final = [field.name for field in MODS.value_type]
_TEXT: Final = pa.string()
_PLAIN: Final = (
    "commit_timestamp",
    "server_transaction_id",
    "record_sequence",
    "is_last_record_in_transaction_in_partition",
    "table_name",
    "mod_type",
    "value_capture_type",
    *NUMBERS,
)
_PLAIN_OF: Final = itemgetter(*_PLAIN)


def decode_json_columns(messages: Sequence[bytes]) -> Columns:
    """The data change records of serialized PartialResultSets of the PostgreSQL dialect.

    A message with a number that orjson would spell otherwise than Spanner is left.
    """
    everything = Columns(NOTHING, np.zeros(0, np.int64), range(len(messages)))
    try:
        rows = RowSpans.of(messages)
        at = Cursors(rows.buffer, rows.begin)
        begin, end = at.span(_STRING)
        at.require(end == rows.end)
        rows.leave(at.is_good)
        cells = _Cells()
        cells.take_all(rows, begin.tolist(), end.tolist())
        kept = np.asarray(rows.is_good[cells.message])
        batch = cells.batch()
        if not kept.all():
            batch = batch.filter(pa.array(kept))
    except (IndexError, KeyError, TypeError, ValueError, DecodeError):
        # What is wrong is for the plain way to name.
        return everything
    return Columns(batch, cells.message[kept], np.flatnonzero(~rows.is_good).tolist())


def _is_exact(value: Any) -> bool:
    """True where no number in a value can lose its spelling: reader.decode keeps it."""
    if isinstance(value, dict):
        return all(map(_is_exact, value.values()))
    if isinstance(value, list):
        return all(map(_is_exact, value))
    # An integer that is too large becomes a float.
    return not isinstance(value, float)


class _Cells:
    """The columns as lists.

    A record's cells are taken as soon as it is parsed: thousands of parsed records at once would
    have the garbage collector walk through all of them again and again.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._column_type_index: list[int] = []
        self._tags: list[str] = []
        self._are_system: list[bool] = []
        self._column_types: dict[bytes, int] = {}
        self._distinct: list[tuple[ColumnType, ...]] = []
        self._offsets = [0]
        self._mods: list[list[bytes | None]] = [[], [], []]
        self.message = np.zeros(0, np.int64)

    def take_all(self, rows: RowSpans, begin: list[int], end: list[int]) -> None:
        """Take the data change record of each row; messages that hold others are not good."""
        take_mod = self._take_mod
        texts = self._mods[0]
        loads, joined = orjson.loads, rows.joined
        is_good = rows.is_good.tolist()
        taken = []
        for first, behind, message in zip(begin, end, rows.message.tolist(), strict=True):
            if not is_good[message]:
                continue
            record = loads(joined[first:behind]).get("data_change_record")
            if record is None:
                is_good[message] = False
                continue
            taken.append(message)
            self._rows.append(_PLAIN_OF(record))
            self._tags.append(record.get("transaction_tag") or "")
            self._are_system.append(bool(record.get("is_system_transaction")))
            self._column_type_index.append(self._index_of(record["column_types"]))
            for mod in record["mods"]:
                if not take_mod(mod):
                    is_good[message] = False
            self._offsets.append(len(texts))
        self.message = np.array(taken, np.int64)
        rows.is_good[:] = is_good

    def _take_mod(self, mod: Mapping[str, Any]) -> bool:
        """False where a number may have lost its spelling."""
        is_exact = True
        for name, texts in zip(_MOD, self._mods, strict=True):
            values = mod.get(name)
            if values is None:
                texts.append(None)
                continue
            for value in values.values():
                # Nearly all of them are texts.
                if value.__class__ is not str and not _is_exact(value):
                    is_exact = False
            texts.append(orjson.dumps(values))
        return is_exact

    def _index_of(self, columns: Sequence[Mapping[str, Any]]) -> int:
        """Each distinct list of column types is built once and then taken by its index."""
        key = orjson.dumps(columns)
        position = self._column_types.get(key)
        if position is None:
            position = self._column_types[key] = len(self._distinct)
            self._distinct.append(json_column_types(columns))
        return position

    def batch(self) -> pa.RecordBatch:
        """All records that were taken."""
        columns = zip(*self._rows, strict=True) if self._rows else ((),) * len(_PLAIN)
        made: dict[str, Any] = dict(zip(_PLAIN, columns, strict=True))
        for name in NUMBERS:
            made[name] = [int(number) for number in made[name]]
        made["transaction_tag"], made["is_system_transaction"] = self._tags, self._are_system
        arrays = []
        for field in DATA_SCHEMA:
            if field.name == "column_types":
                indices = pa.array(self._column_type_index, pa.int32())
                arrays.append(column_types_array(self._distinct, indices))
            elif field.name == "mods":
                arrays.append(self._mods_array())
            elif field.name == "commit_timestamp":
                arrays.append(pa.array(made[field.name], _TEXT).cast(field.type))
            else:
                arrays.append(pa.array(made[field.name], field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=DATA_SCHEMA)

    def _mods_array(self) -> pa.Array:
        # orjson writes UTF-8.
        texts = [pa.array(values, pa.binary()).view(_TEXT) for values in self._mods]
        return mods_array(pa.array(self._offsets, pa.int32()), texts)
