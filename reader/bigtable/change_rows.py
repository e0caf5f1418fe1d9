"""Changes as rows: from the bytes of messages to Arrow, thousands at once.

As reader.decode.proto_columns does for Spanner, all messages are read in step, in protobuf's wire
format. The messages of many partitions are decoded together, because a step costs as much for a few
as for a thousand. Those that are not of the usual form are brought into it first.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from slackwater.grouping import groups_by_size
from slackwater.reader.bigtable.assembly import AGGREGATE, CONTINUATION, assembled
from slackwater.reader.bigtable.changes import ENTRY, SCHEMA, TIMESTAMP, Changes
from slackwater.reader.decode.googlesql_columns import strings
from slackwater.reader.decode.protobuf_cursor import LEN, PADDING, VARINT, Cursors, Ints, tag
from slackwater.reader.errors import DecodeError

_CHUNK: Final = tag(6, LEN)
# By number; those that are not known keep it.
_TYPES: Final = pa.array(["0", "USER", "GARBAGE_COLLECTION", *map(str, range(3, 128))])
# By the number of the field that holds such a mutation.
_KINDS: Final = pa.array(
    ["0", "SET_CELL", "DELETE_CELLS", "DELETE_FAMILY", "DELETE_ROW", "ADD_TO_CELL", "MERGE_TO_CELL"]
)
_SET_CELL, _DELETE_CELLS, _DELETE_FAMILY, _DELETE_ROW = range(1, 5)
# With fewer changes in step than this, finding their chunks one by one costs less.
_IN_STEP_MIN: Final = 48
_BATCH_BYTES: Final = 1024 * 1024


def batches_of(parts: Iterable[Changes], low_watermark_us: int) -> Iterator[pa.RecordBatch]:
    """Yield changes as rows, about a megabyte together, in the order in which they come.

    Args:
        parts: in commit order for each row key.
        low_watermark_us: that of the epoch, in microseconds.

    Raises:
        DecodeError: they are not as Bigtable describes them.
    """
    for group in groups_by_size(parts, lambda part: part.size_bytes, _BATCH_BYTES):
        yield rows_of(group, low_watermark_us)


def rows_of(parts: Sequence[Changes], low_watermark_us: int) -> pa.RecordBatch:
    """Return changes as rows of the SCHEMA; see batches_of."""
    lists = [part.messages for part in parts]
    try:
        rows = _Rows(lists)
        is_usual = rows.at.is_good
    except IndexError:
        # A length that leads out of the buffer.
        is_usual = np.zeros(sum(map(len, lists)), np.bool_)
    if not is_usual.all():
        flags = iter(is_usual.tolist())
        lists = [assembled(part.partition, part.messages, flags) for part in parts]
        rows = _Rows(lists)
        if not rows.at.is_good.all():
            raise DecodeError("a change has a type or a time that is none.")
    counts = list(map(len, lists))
    partitions = pa.array([part.partition for part in parts], pa.string())
    owners = pa.array(np.repeat(np.arange(len(parts)), counts))
    low_watermarks = _times(np.full(len(owners), low_watermark_us))
    columns = [*rows.columns(), partitions.take(owners), low_watermarks]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


class _Rows:
    """The places where the fields of changes are.

    Args:
        lists: of messages with a change each.

    Attributes:
        at: a cursor in each message, with those messages excluded that are not of the usual form.
    """

    def __init__(self, lists: Sequence[Sequence[bytes]]) -> None:
        messages = [message for of_part in lists for message in of_part]
        sizes = np.fromiter(map(len, messages), np.int64, len(messages))
        self._joined = b"".join((*messages, bytes(PADDING)))
        ends = np.cumsum(sizes)
        self.at = at = Cursors(np.frombuffer(self._joined, np.uint8), ends - sizes)
        _, end = at.span(tag(1, LEN))
        at.require(end == ends)
        at.expect(tag(1, VARINT))
        self._type = at.byte()
        is_first = (self._type > 0) & (self._type != CONTINUATION)
        at.require(is_first & (self._type < len(_TYPES)))
        self._cluster = at.optional_span(tag(2, LEN), ends)
        self._row_key = at.optional_span(tag(3, LEN), ends)
        self._commit_us = at.timestamp_us(tag(4, LEN))
        # The parser keeps 32 bits, too.
        self._tiebreaker = at.optional_varint(tag(5, VARINT), ends).astype(np.int32)
        self._row, *chunks = _chunks(at, self._joined)
        self._find_cells(*chunks)
        at.expect(tag(8, VARINT))
        at.expect(1)
        self._token = at.optional_span(tag(9, LEN), ends)
        self._watermark_us = at.timestamp_us(tag(10, LEN))
        at.require(at.at == ends)

    def _find_cells(self, begin: Ints, end: Ints) -> None:
        """Find the fields of the mutations in all chunks."""
        cell = Cursors(self.at.buffer, begin)
        _, mutation_end = cell.span(tag(2, LEN))
        first = cell.byte()
        kind = (first >> 3).astype(np.int64)
        # Aggregates have other fields.
        cell.require((first & 7 == LEN) & (kind >= _SET_CELL) & (kind <= _DELETE_ROW))
        size = cell.length()
        cell_end = cell.at + size
        # A field of the one is not searched for in the others.
        is_set, is_deletion = kind == _SET_CELL, kind == _DELETE_CELLS
        self._family = cell.optional_span(tag(1, LEN), cell_end * (kind != _DELETE_ROW))
        self._qualifier = cell.optional_span(tag(2, LEN), cell_end * (is_set | is_deletion))
        micros = cell.optional_varint(tag(3, VARINT), cell_end * is_set)
        self._value = cell.optional_span(tag(4, LEN), cell_end * is_set)
        times, times_end = cell.optional_span(tag(3, LEN), cell_end * is_deletion)
        cell.skip_to(times)
        self._micros = micros + cell.optional_varint(tag(1, VARINT), times_end)
        self._end_micros = cell.optional_varint(tag(2, VARINT), times_end)
        cell.require((cell.at == times_end) & (cell.at == cell_end))
        origin = cell.optional_varint(tag(7, VARINT), mutation_end)
        self._kind = np.where(origin > AGGREGATE, origin - AGGREGATE, kind)
        cell.require((self._kind < len(_KINDS)) & (cell.at == mutation_end))
        cell.require(mutation_end == end)
        is_good = np.ones(len(self.at.at), np.bool_)
        is_good[self._row[~cell.is_good]] = False
        self.at.require(is_good)

    def columns(self) -> list[pa.Array]:
        """Return the columns that come from the changes themselves, if no message is excluded."""
        buffer = pa.py_buffer(self._joined)
        row_keys = strings(buffer, *self._row_key, pa.binary())
        begin, end = self._cluster
        _checked(strings(buffer, *self._token))
        return [
            _times(self._commit_us),
            row_keys,
            _texts(row_keys),
            _TYPES.take(pa.array(self._type)),
            _checked(strings(buffer, begin, end, is_null=begin == end)),
            pa.array(self._tiebreaker.astype(np.int64)),
            self._entries(buffer),
            _times(self._watermark_us),
        ]

    def _entries(self, buffer: pa.Buffer) -> pa.ListArray:
        has_no_cell = (self._kind == _DELETE_FAMILY) | (self._kind == _DELETE_ROW)
        has_no_value = has_no_cell | (self._kind == _DELETE_CELLS)
        entries = pa.StructArray.from_arrays(
            [
                _KINDS.take(pa.array(self._kind)),
                _checked(strings(buffer, *self._family)),
                strings(buffer, *self._qualifier, pa.binary(), has_no_cell),
                pa.array(self._micros, mask=has_no_cell),
                pa.array(self._end_micros, mask=self._end_micros == 0),
                strings(buffer, *self._value, pa.binary(), has_no_value),
            ],
            fields=list(ENTRY),
        )
        offsets = np.searchsorted(self._row, np.arange(len(self.at.at) + 1))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), entries)


def _chunks(at: Cursors, joined: bytes) -> Ints:
    """Step over the chunks of all changes; return each one's row, its begin and its end."""
    place, active = at.at.copy(), np.flatnonzero(at.is_good)
    steps = [np.zeros((3, 0), np.int64)]
    while True:
        active = active[at.buffer[place[active]] == _CHUNK]
        if len(active) < _IN_STEP_MIN:
            break
        step = Cursors(at.buffer, place[active])
        begin, end = step.span(_CHUNK)
        steps.append(np.array([active, begin, end]))
        place[active] = end
    for row in active.tolist():
        alone = [(row, *span) for span in _chunks_at(joined, int(place[row]))]
        steps.append(np.array(alone, np.int64).T)
        place[row] = alone[-1][-1]
    at.skip_to(place)
    chunks = np.concatenate(steps, axis=1)
    return chunks if len(steps) <= 2 else chunks[:, np.argsort(chunks[1], kind="stable")]


def _chunks_at(joined: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield where each chunk begins and ends, of those from a place on."""
    while joined[at] == _CHUNK:
        size = shift = 0
        at += 1
        while joined[at] >= 0x80:
            size |= (joined[at] & 0x7F) << shift
            shift += 7
            at += 1
        end = at + 1 + (size | joined[at] << shift)
        yield at + 1, end
        at = end


def _checked(texts: pa.StringArray) -> pa.StringArray:
    """Return texts, which must be UTF-8, as protobuf's own parser demands."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise DecodeError(f"a change holds a name that is no text: {error}") from error
    return texts


def _times(microseconds: Ints) -> pa.Array:
    return pa.array(microseconds).view(TIMESTAMP)


def _texts(row_keys: pa.BinaryArray) -> pa.StringArray:
    """Return row keys as texts; null for one that is none."""
    try:
        return row_keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(map(_text, row_keys.to_pylist()), pa.string())


def _text(key: bytes) -> str | None:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None
