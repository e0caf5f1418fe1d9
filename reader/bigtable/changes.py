"""The rows of a change stream: one for each change of a row, in columns of Apache Arrow.

The names are those of DataChange in Bigtable's API. A message may hold only a part of a change, and
a part of a value; a row is there when its last message has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from slackwater.reader.errors import DecodeError

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_ENTRY: Final = pa.struct(
    [
        ("kind", pa.string()),
        ("family", pa.string()),
        ("qualifier", pa.binary()),
        # Any number: by custom they are microseconds.
        ("timestamp_micros", pa.int64()),
        ("end_timestamp_micros", pa.int64()),
        ("value", pa.binary()),
    ]
)
SCHEMA: Final = pa.schema(
    [
        ("commit_timestamp", _TIMESTAMP),
        ("row_key", pa.binary()),
        ("row_key_text", pa.string()),
        ("type", pa.string()),
        ("source_cluster_id", pa.string()),
        ("tiebreaker", pa.int64()),
        ("entries", pa.list_(_ENTRY)),
        ("estimated_low_watermark", _TIMESTAMP),
        ("partition", pa.string()),
        ("low_watermark", _TIMESTAMP),
    ]
)
_TYPES: Final = {1: "USER", 2: "GARBAGE_COLLECTION"}
_CONTINUATION: Final = 3
Entry = tuple[str, str, bytes | None, int | None, int | None, bytes | None]


@dataclass
class ChangeRows:
    """The rows of one partition, until they are taken.

    Attributes:
        partition: its keys, as a text.
    """

    partition: str
    _rows: list[tuple[Any, ...]] = field(default_factory=list)
    # Of the change whose last message has not come.
    _first: Any = None
    _entries: list[Entry] = field(default_factory=list)
    _chunks: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, change: Any) -> int | None:
        """Add a message.

        Args:
            change: a DataChange.

        Returns:
            The estimated low watermark, in microseconds; None if its change goes on in another
            message.

        Raises:
            DecodeError: it does not continue the one before.
        """
        if (change.type_ == _CONTINUATION) != (self._first is not None):
            raise DecodeError(
                f"a change in {self.partition} has the type {change.type_} where its"
                f" {'next' if self._first is not None else 'first'} message is due."
            )
        if self._first is None:
            self._first = change
        for chunk in change.chunks:
            if chunk.HasField("chunk_info"):
                self._add_part(chunk)
            else:
                self._entries.append(_entry(chunk.mutation))
        if not change.done:
            return None
        if self._chunks:
            raise DecodeError(f"a change in {self.partition} ends within a value.")
        first, entries = self._first, self._entries
        self._first, self._entries = None, []
        kind, watermark_us = first.type_, _microseconds(change.estimated_low_watermark)
        self._rows.append(
            (
                _microseconds(first.commit_timestamp),
                first.row_key,
                _TYPES.get(kind) or str(kind),
                first.source_cluster_id or None,
                first.tiebreaker,
                entries,
                watermark_us,
            )
        )
        return watermark_us

    def forget_partial(self) -> None:
        """Forget a change whose last message has not come: the call broke."""
        self._first, self._entries, self._chunks = None, [], []

    def _add_part(self, chunk: Any) -> None:
        """Add a part of a value; the first one has the cell's other fields."""
        self._chunks.append(chunk.mutation.set_cell.value)
        if chunk.chunk_info.chunked_value_offset == 0:
            self._entries.append(_entry(chunk.mutation))
        if not chunk.chunk_info.last_chunk:
            return
        value = b"".join(self._chunks)
        self._chunks = []
        if len(value) != chunk.chunk_info.chunked_value_size:
            raise DecodeError(
                f"a value in {self.partition} has {len(value)} bytes of"
                f" {chunk.chunk_info.chunked_value_size}."
            )
        self._entries[-1] = (*self._entries[-1][:-1], value)

    def taken_batch(self, low_watermark_us: int) -> pa.RecordBatch:
        """Return the rows, and forget them.

        Args:
            low_watermark_us: that of the epoch, in microseconds.
        """
        rows, self._rows = self._rows, []
        commits, keys, types, clusters, breakers, entries, watermarks = zip(*rows, strict=True)
        count, row_keys = len(rows), pa.array(keys, pa.binary())
        return pa.RecordBatch.from_arrays(
            [
                _times(commits),
                row_keys,
                _texts(row_keys),
                pa.array(types, pa.string()),
                pa.array(clusters, pa.string()),
                pa.array(breakers, pa.int64()),
                _lists(entries),
                _times(watermarks),
                pa.repeat(pa.scalar(self.partition), count),
                pa.repeat(_times([low_watermark_us])[0], count),
            ],
            schema=SCHEMA,
        )


def _entry(mutation: Any) -> Entry:
    match mutation.WhichOneof("mutation"):
        case "set_cell":
            cell = mutation.set_cell
            qualifier, micros = cell.column_qualifier, cell.timestamp_micros
            return ("SET_CELL", cell.family_name, qualifier, micros, None, cell.value)
        case "delete_from_column":
            column = mutation.delete_from_column
            times = column.time_range
            start, end = times.start_timestamp_micros, times.end_timestamp_micros
            qualifier = column.column_qualifier
            return ("DELETE_CELLS", column.family_name, qualifier, start, end or None, None)
        case "delete_from_family":
            return ("DELETE_FAMILY", mutation.delete_from_family.family_name, *(None,) * 4)
        case "delete_from_row":
            return ("DELETE_ROW", "", *(None,) * 4)
        case "add_to_cell":
            return ("ADD_TO_CELL", *_aggregated(mutation.add_to_cell))
        case "merge_to_cell":
            return ("MERGE_TO_CELL", *_aggregated(mutation.merge_to_cell))
        case other:
            raise DecodeError(
                f"a change holds a mutation that is not known: {other or mutation!r}.",
                "A newer version of slackwater may know it",
            )


def _aggregated(cell: Any) -> tuple[str, bytes, int, None, bytes]:
    """Return an aggregate's entry; a number as the eight bytes that its cell would hold."""
    number = cell.input
    is_whole = number.WhichOneof("kind") == "int_value"
    value = number.int_value.to_bytes(8, "big", signed=True) if is_whole else number.raw_value
    qualifier, micros = cell.column_qualifier.raw_value, cell.timestamp.raw_timestamp_micros
    return cell.family_name, qualifier, micros, None, value


def _microseconds(time: Any) -> int:
    """Return a Timestamp in microseconds; its own method takes five times as long."""
    whole: int = time.seconds * 1_000_000 + time.nanos // 1_000
    return whole


def _times(microseconds: Sequence[int]) -> pa.Array:
    return pa.array(microseconds, pa.int64()).cast(_TIMESTAMP)


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


def _lists(entries: Sequence[Sequence[Entry]]) -> pa.Array:
    offsets, flat = [0], list[Entry]()
    for of_row in entries:
        flat += of_row
        offsets.append(len(flat))
    columns: list[Sequence[Any]] = list(zip(*flat, strict=True)) or [()] * _ENTRY.num_fields
    fields = [_ENTRY.field(i) for i in range(_ENTRY.num_fields)]
    structs = pa.StructArray.from_arrays(
        [pa.array(values, of.type) for values, of in zip(columns, fields, strict=True)],
        fields=fields,
    )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)
