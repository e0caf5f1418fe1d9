"""Decoding of data change records with mutable key ranges by column, thousands at once.

As reader.decode.googlesql_columns, for the rows that reader.decode.proto_records reads one by one:
all records are read in step, in protobuf's wire format. A message with anything unusual (another
kind of record, fields in another order, a value in pieces) is left to the other. Both ways must
give the same rows for any message.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pybase64
from google.protobuf.message import DecodeError as ProtobufError

from slackwater.reader.decode.arrow import column_types_array, mods_array
from slackwater.reader.decode.googlesql_columns import NO_RECORDS, Columns, Span, strings
from slackwater.reader.decode.proto_mods import ModTexts, find_mods
from slackwater.reader.decode.proto_records import (
    MOD_TYPES,
    VALUE_CAPTURE_TYPES,
    column_types_of_record,
)
from slackwater.reader.decode.protobuf_cursor import (
    LEN,
    PADDING,
    VARINT,
    Bytes,
    Cursors,
    Flags,
    Ints,
    tag,
)
from slackwater.reader.decode.row_spans import RowSpans
from slackwater.reader.schema import DATA_SCHEMA

_STRING_VALUE: Final = tag(3, LEN)
_DATA_CHANGE: Final = tag(1, LEN)
_TIMESTAMP: Final = DATA_SCHEMA.field("commit_timestamp").type
# Base64 writes three bytes as four characters.
_GROUP: Final = 4
_GROUP_BYTES: Final = 3
_PAD: Final = ord("=")
_DIGIT: Final = ord("A")
# The highest number of an enumeration that is looked up in a table.
_ENUM_MAX: Final = 63


@dataclass(slots=True)
class _Fields:
    """The fields of each row's record: numbers and flags, and where the others lie."""

    commit_us: Ints
    texts: dict[str, Span]
    flags: dict[str, Flags]
    numbers: dict[str, Ints]
    columns: Span
    mods: Span


def decode_proto_columns(messages: Sequence[bytes]) -> Columns:
    """Decode the data change records of serialized PartialResultSets.

    A message that continues a value of the message before it can look whole. The caller must check
    for that: the message before it is then one of the fallback_messages.

    Args:
        messages: of any number of queries with mutable key ranges.
    """
    all_fall_back = Columns(NO_RECORDS, np.zeros(0, np.int64), range(len(messages)))
    if not messages:
        return all_fall_back
    try:
        rows = _records(RowSpans.of(messages))
        if not len(rows.begin):
            return all_fall_back
        fields = _find_fields(rows)
        return _assemble(rows, fields) if rows.is_good.any() else all_fall_back
    except (IndexError, ValueError, ProtobufError):
        # A length that leads out of the buffer, or a text that is not UTF-8: decoding one by one
        # raises an error that names it.
        return all_fall_back


def _records(rows: RowSpans) -> RowSpans:
    """Return the rows with their base64 decoded.

    Raises:
        ValueError: a text is not base64.
    """
    at = Cursors(rows.buffer, rows.begin)
    begin, end = at.span(_STRING_VALUE)
    size = end - begin
    # Part of a text that was cut may have any size.
    at.require((end == rows.end) & (size > 0) & (size % _GROUP == 0))
    chosen = np.flatnonzero(rows.exclude(at.is_good))
    ends = np.cumsum(size[chosen])
    decoded, padding = _decoded(_joined(rows.joined, begin[chosen], end[chosen]), ends)
    begin, end = np.zeros((2, len(size)), np.int64)
    begin[chosen] = (ends - size[chosen]) // _GROUP * _GROUP_BYTES
    end[chosen] = ends // _GROUP * _GROUP_BYTES - padding
    return RowSpans(decoded + bytes(PADDING), begin, end, rows.message, rows.is_good)


def _joined(buffer: bytes, begin: Ints, end: Ints) -> Bytes:
    """Return the texts between these places, which must be in rising order, without gaps."""
    if not len(begin):
        return np.zeros(0, np.uint8)
    _, _, data = strings(pa.py_buffer(buffer), begin, end, pa.binary()).buffers()
    return np.frombuffer(data, np.uint8).copy()


def _decoded(texts: Bytes, ends: Ints) -> tuple[bytes, Ints]:
    """Decode base64 texts that stand one after the other, in one call.

    A call for each text would cost as much as all other work on a record. With digits in place of
    their padding the texts are a single one.

    Args:
        texts: each of whole groups of four characters; the padding is replaced.
        ends: where each text ends.

    Returns:
        The bytes, and how many of them at each text's end come from padding.
    """
    last = texts[ends - 1] == _PAD
    padding = last.astype(np.int64) + (last & (texts[ends - 2] == _PAD))
    for count in (1, 2):
        texts[ends[padding >= count] - count] = _DIGIT
    return pybase64.b64decode(texts.data, validate=True), padding


def _find_fields(rows: RowSpans) -> _Fields:
    """Return the fields of each row's record, reading all rows in step.

    A field that is not sent has its default. The record's end bounds the search: the byte after it
    belongs to the next record, so each optional field is searched for before it only.
    """
    at = Cursors(rows.buffer, rows.begin)
    at.require(rows.is_good[rows.message])
    _, end = at.span(_DATA_CHANGE)
    at.require(end == rows.end)
    commit_us = at.timestamp_us(tag(1, LEN))
    texts = {"record_sequence": _text(at, 2), "server_transaction_id": _text(at, 3)}
    flags = {"is_last_record_in_transaction_in_partition": _flag(at, 4, end)}
    texts["table_name"] = _text(at, 5)
    columns = _repeated(at, 6, end)
    mods = _repeated(at, 7, end)
    numbers = {
        name: _number(at, field)
        for field, name in (
            (8, "mod_type"),
            (9, "value_capture_type"),
            (10, "number_of_records_in_transaction"),
            (11, "number_of_partitions_in_transaction"),
        )
    }
    texts["transaction_tag"] = at.optional_span(tag(12, LEN), end)
    flags["is_system_transaction"] = _flag(at, 13, end)
    at.require(at.at == end)
    for name, names in (("mod_type", MOD_TYPES), ("value_capture_type", VALUE_CAPTURE_TYPES)):
        at.require(np.isin(numbers[name], [n for n in names if n]))
    rows.exclude(at.is_good)
    return _Fields(commit_us, texts, flags, numbers, columns, mods)


def _text(at: Cursors, field: int) -> Span:
    """Step over a text that must be sent, and return where it lies."""
    begin, end = at.span(tag(field, LEN))
    at.require(end > begin)
    at.skip_to(end)
    return begin, end


def _flag(at: Cursors, field: int, record_end: Ints) -> Flags:
    is_sent: Flags = (at.at < record_end) & (at.buffer[at.at] == tag(field, VARINT))
    at.require(~is_sent | (at.buffer[at.at + 1] == 1))
    at.skip_to(at.at + 2 * is_sent)
    return is_sent


def _number(at: Cursors, field: int) -> Ints:
    """Step over a number that must be sent and is above 0, and return it."""
    at.expect(tag(field, VARINT))
    number = at.length()
    at.require(number > 0)
    return number


def _repeated(at: Cursors, field: int, record_end: Ints) -> Span:
    """Step over all values of a repeated field; return where they lie, with their tags."""
    begin, place = at.at, at.at.copy()
    active = np.arange(len(begin))
    while len(active):
        is_sent = (place[active] < record_end[active]) & (
            at.buffer[place[active]] == tag(field, LEN)
        )
        active = active[is_sent]
        if len(active):
            step = Cursors(at.buffer, place[active])
            _, end = step.span(tag(field, LEN))
            place[active] = end
    at.skip_to(place)
    return begin, place


def _assemble(rows: RowSpans, fields: _Fields) -> Columns:
    buffer = pa.py_buffer(rows.joined)
    chosen = np.flatnonzero(rows.is_good[rows.message])
    begin, end = fields.columns
    encoded = strings(buffer, begin[chosen], end[chosen], pa.binary()).dictionary_encode()
    column_types = [column_types_of_record(text) for text in encoded.dictionary.to_pylist()]
    which = np.asarray(encoded.indices)
    mods = find_mods(rows, fields.mods, chosen, column_types, which)
    is_chosen = np.asarray(rows.is_good[rows.message[chosen]])
    chosen = chosen[is_chosen]

    def text(name: str) -> pa.Array:
        first, last = fields.texts[name]
        return strings(buffer, first[chosen], last[chosen])

    arrays: dict[str, pa.Array] = {name: text(name) for name in fields.texts}
    arrays |= {name: pa.array(flags[chosen]) for name, flags in fields.flags.items()}
    arrays |= {name: pa.array(numbers[chosen]) for name, numbers in fields.numbers.items()}
    for name, names in (("mod_type", MOD_TYPES), ("value_capture_type", VALUE_CAPTURE_TYPES)):
        table = pa.array([names.get(number, "") for number in range(_ENUM_MAX + 1)])
        arrays[name] = table.take(pa.array(fields.numbers[name][chosen]))
    arrays["commit_timestamp"] = pa.array(fields.commit_us[chosen]).cast(_TIMESTAMP)
    arrays["column_types"] = column_types_array(column_types, pa.array(which[is_chosen]))
    arrays["mods"] = _mods(mods, is_chosen)
    batch = pa.RecordBatch.from_arrays(
        [arrays[name] for name in DATA_SCHEMA.names], schema=DATA_SCHEMA
    )
    # Texts that are not UTF-8 raise a ValueError, as protobuf's own parser does.
    batch.validate(full=True)
    return Columns(batch, rows.message[chosen], np.flatnonzero(~rows.is_good).tolist())


def _mods(mods: ModTexts, is_chosen: Flags) -> pa.Array:
    counts = mods.counts[is_chosen]
    texts = (mods.keys, mods.new_values, mods.old_values)
    if is_chosen.all():
        return mods_array(counts, texts)
    of_chosen = pa.array(np.repeat(is_chosen, mods.counts))
    return mods_array(counts, [text.filter(of_chosen) for text in texts])
