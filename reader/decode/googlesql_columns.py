"""Decoding of GoogleSQL data change records by column: from bytes to Arrow, thousands at once.

The cost lies in Python's steps, not in the bytes: reading the values of one record in Python takes
as long as cutting one column out of hundreds of records with numpy. In protobuf's wire format a
record is a tree of lists, each after its length, so that all records can be read in step. A message
with anything unusual (heartbeats, child partitions, a value in pieces, an unexpected NULL) is left
to reader.decode.records. Both ways must give the same rows for any message.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from slackwater.reader.decode.arrow import column_types_array, mods_array
from slackwater.reader.decode.googlesql_records import DATA_CHANGE_FIELDS, column_types_of
from slackwater.reader.decode.protobuf_cursor import (
    LEN,
    VARINT,
    Cursors,
    Flags,
    Ints,
    matches_at,
    tag,
)
from slackwater.reader.decode.result_layout import Layout
from slackwater.reader.decode.row_spans import RowSpans
from slackwater.reader.schema import DATA_SCHEMA

_STRING: Final = tag(3, LEN)
_BOOL: Final = tag(4, VARINT)
_NULL: Final = tag(1, VARINT)
_LIST: Final = tag(6, LEN)
_ITEM: Final = tag(1, LEN)
# The other two kinds of record in the row of a data change record: two empty lists.
_NO_OTHER_RECORDS: Final = bytes((_ITEM, 2, _LIST, 0)) * 2
# With fewer rows in step than this, decoding them one by one costs less.
_ROWS_IN_STEP_MIN: Final = 16
_TEXT: Final = pa.string()
_TIMESTAMP: Final = DATA_SCHEMA.field("commit_timestamp").type
_STRINGS: Final = (
    "server_transaction_id",
    "record_sequence",
    "table_name",
    "mod_type",
    "value_capture_type",
    "transaction_tag",
)
NUMBERS: Final = ("number_of_records_in_transaction", "number_of_partitions_in_transaction")
FLAGS: Final = ("is_last_record_in_transaction_in_partition", "is_system_transaction")

Span = tuple[Ints, Ints]


@dataclass(frozen=True, slots=True)
class Columns:
    """The data change records of some messages, in the messages' order.

    Attributes:
        batch: the first 13 columns of the output.
        message_of: the index of each row's message.
        fallback_messages: the indexes, rising, of the messages to be decoded one by one: they hold
            something unusual; none of their rows is in the batch.
    """

    batch: pa.RecordBatch
    message_of: Ints
    fallback_messages: Sequence[int]


def decode_columns(messages: Sequence[bytes], layout: Layout) -> Columns:
    """Decode the data change records of serialized PartialResultSets.

    A message that continues a value of the message before it can look whole. The caller must check
    for that: the message before it is then one of the fallback_messages.

    Args:
        messages: of any number of queries whose result sets have this layout.
        layout: the order of a record's fields.
    """
    all_fall_back = Columns(NO_RECORDS, np.zeros(0, np.int64), range(len(messages)))
    try:
        rows = RowSpans.of(messages)
        field_spans = _find_fields(rows, layout)
        return _assemble(rows, field_spans) if len(rows.begin) else all_fall_back
    except (IndexError, ValueError, DecodeError):
        # A length that leads out of the buffer, or a text that is not a timestamp: decoding one by
        # one raises an error that names it.
        return all_fall_back


class _FieldSpans:
    """The places of the fields in the buffer: begin and end in each row."""

    def __init__(self) -> None:
        self.texts: dict[str, Span] = {}
        self.flags: dict[str, Flags] = {}
        self.column_types: Span
        self.mods: Span


def _find_fields(rows: RowSpans, layout: Layout) -> _FieldSpans:
    """Return where the fields of each row's only record lie, reading all rows in step."""
    field_spans = _FieldSpans()
    at = Cursors(rows.buffer, rows.begin)
    inner_end = _only_item(at, rows.end)
    # The list of data change records comes first; if it is empty, the row ends here.
    _, data_end = at.span(_ITEM)
    record_end = _only_item(at, data_end)
    at.require(inner_end - data_end == len(_NO_OTHER_RECORDS))
    others = np.where(at.is_good, data_end, rows.begin)
    at.require(matches_at(rows.buffer, others, _NO_OTHER_RECORDS))
    for name in layout.field_names:
        _, cell_end = at.span(_ITEM)
        if name in FLAGS:
            at.expect(_BOOL)
            field_spans.flags[name] = at.byte() != 0
        elif name == "column_types":
            field_spans.column_types = (at.at, cell_end)
        elif name == "mods":
            field_spans.mods = at.span(_LIST)
            at.require(field_spans.mods[1] == cell_end)
        elif name in DATA_CHANGE_FIELDS:
            field_spans.texts[name] = text = at.span(_STRING)
            at.require(text[1] == cell_end)
        at.skip_to(cell_end)
    at.require(at.at == record_end)
    rows.exclude(at.is_good)
    return field_spans


def _only_item(at: Cursors, end: Ints) -> Ints:
    """Step into a list whose only item is a list, and return where that one ends."""
    _, outer_end = at.span(_LIST)
    at.require(outer_end == end)
    _, item_end = at.span(_ITEM)
    at.require(item_end == end)
    _, inner_end = at.span(_LIST)
    at.require(inner_end == end)
    return inner_end


def _assemble(rows: RowSpans, field_spans: _FieldSpans) -> Columns:
    if not rows.is_good.any():
        return Columns(NO_RECORDS, np.zeros(0, np.int64), range(len(rows.is_good)))
    mods = _Mods(rows, field_spans.mods)
    is_chosen = np.asarray(rows.is_good[rows.message])
    buffer = pa.py_buffer(rows.joined)

    def text(name: str) -> pa.Array:
        begin, end = field_spans.texts[name]
        return strings(buffer, begin[is_chosen], end[is_chosen])

    arrays: dict[str, pa.Array] = {name: text(name) for name in _STRINGS}
    arrays |= {name: text(name).cast(pa.int64()) for name in NUMBERS}
    arrays |= {name: pa.array(field_spans.flags[name][is_chosen]) for name in FLAGS}
    arrays["commit_timestamp"] = text("commit_timestamp").cast(_TIMESTAMP)
    begin, end = field_spans.column_types
    arrays["column_types"] = _column_types(
        strings(buffer, begin[is_chosen], end[is_chosen], pa.binary())
    )
    arrays["mods"] = mods.array(buffer, is_chosen)
    batch = pa.RecordBatch.from_arrays(
        [arrays[name] for name in DATA_SCHEMA.names], schema=DATA_SCHEMA
    )
    # Texts that are not UTF-8 raise a ValueError, as protobuf's own parser does.
    batch.validate(full=True)
    fallback_messages = np.flatnonzero(~rows.is_good)
    return Columns(batch, rows.message[is_chosen], fallback_messages.tolist())


class _Mods:
    """The places of the three texts of each mod, found one mod of each row at a time."""

    def __init__(self, rows: RowSpans, span: Span) -> None:
        self._counts = np.zeros(len(rows.begin), np.int64)
        self._owners: list[Ints] = []
        self._texts: list[list[tuple[Ints, Ints, Flags]]] = [[], [], []]
        at, end = span[0].copy(), span[1]
        active = np.flatnonzero(rows.is_good[rows.message])
        while len(active):
            active = active[at[active] < end[active]]
            if len(active) < _ROWS_IN_STEP_MIN and len(self._owners) >= _ROWS_IN_STEP_MIN:
                rows.is_good[rows.message[active]] = False
                break
            if len(active):
                active = self._step(rows, at, active)

    def _step(self, rows: RowSpans, at: Ints, active: Ints) -> Ints:
        cursors = Cursors(rows.buffer, at[active])
        _, mod_end = cursors.span(_ITEM)
        _, inner_end = cursors.span(_LIST)
        cursors.require(inner_end == mod_end)
        cells = [_nullable(cursors) for _ in range(3)]
        cursors.require(cursors.at == mod_end)
        if not cursors.is_good.all():
            rows.is_good[rows.message[active[~cursors.is_good]]] = False
        good = cursors.is_good
        active = active[good]
        at[active] = mod_end[good]
        self._counts[active] += 1
        self._owners.append(active)
        for texts, cell in zip(self._texts, cells, strict=True):
            texts.append((cell[0][good], cell[1][good], cell[2][good]))
        return active

    def array(self, buffer: pa.Buffer, is_chosen: Flags) -> pa.Array:
        """Return the column mods of the chosen rows."""
        owner = np.concatenate(self._owners) if self._owners else np.zeros(0, np.int64)
        order = np.argsort(owner, kind="stable")
        order = order[is_chosen[owner[order]]]
        fields = [_texts(buffer, texts, order) for texts in self._texts]
        return mods_array(self._counts[is_chosen], fields)


def _texts(buffer: pa.Buffer, steps: Sequence[tuple[Ints, Ints, Flags]], order: Ints) -> pa.Array:
    """Return the texts found in these steps, in this order."""
    if not steps:
        return pa.array([], _TEXT)
    begin = np.concatenate([step[0] for step in steps])[order]
    end = np.concatenate([step[1] for step in steps])[order]
    is_null = np.concatenate([step[2] for step in steps])[order]
    return strings(buffer, begin, end, is_null=is_null)


def _nullable(at: Cursors) -> tuple[Ints, Ints, Flags]:
    """Read a text or NULL: return where it begins and ends, and whether it is NULL."""
    _, cell_end = at.span(_ITEM)
    is_null = at.buffer[at.at] == _NULL
    if is_null.any():
        begin, end = at.at, np.where(is_null, at.at, cell_end)
        rest = Cursors(at.buffer, at.at[~is_null])
        inner, inner_end = rest.span(_STRING)
        is_good = np.ones(len(is_null), np.bool_)
        is_good[~is_null] = rest.is_good & (inner_end == cell_end[~is_null])
        begin = begin.copy()
        begin[~is_null] = inner
        at.require(is_good)
    else:
        begin, end = at.span(_STRING)
        at.require(end == cell_end)
    at.skip_to(cell_end)
    # As in reader.decode.records: an empty text is not JSON, so it stands for NULL.
    return begin, end, is_null | (begin == end)


def strings(
    buffer: pa.Buffer,
    begin: Ints,
    end: Ints,
    kind: pa.DataType = _TEXT,
    is_null: Flags | None = None,
) -> pa.Array:
    """Return the texts between these places, which must be in rising order.

    With the begins and ends as its offsets, an Arrow array holds the texts and the bytes between
    them, in turn; taking every second value copies only the texts.

    Args:
        buffer: which holds the texts.
        begin, end: the place of each text.
        kind: string or binary.
        is_null: which of the values are NULL; None for none.
    """
    count = len(begin)
    if count == 0:
        return pa.array([], kind)
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2], offsets[1::2] = begin, end
    all_of_it = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(offsets), buffer])
    every_second = np.arange(0, 2 * count, 2, dtype=np.int32)
    mask = None if is_null is None or not is_null.any() else is_null
    return all_of_it.take(pa.array(every_second, mask=mask))


def _column_types(texts: pa.Array) -> pa.Array:
    """Decode each distinct text once, since column types repeat from record to record."""
    encoded = texts.dictionary_encode()
    distinct = [column_types_of(text) for text in encoded.dictionary.to_pylist()]
    return column_types_array(distinct, encoded.indices)


NO_RECORDS: Final = pa.RecordBatch.from_pylist([], schema=DATA_SCHEMA)
