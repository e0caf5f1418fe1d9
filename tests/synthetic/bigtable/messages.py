"""The messages of Bigtable's change streams, made from a history's changes.

Read from the descriptions of the protocol buffers. The service's own limit of a message is not
documented; here it is an argument.
"""

from collections.abc import Iterator
from typing import Any, Final

from google.cloud.bigtable_admin_v2.types import Table
from google.cloud.bigtable_v2.types import (
    GenerateInitialChangeStreamPartitionsRequest,
    GenerateInitialChangeStreamPartitionsResponse,
    ReadChangeStreamRequest,
    ReadChangeStreamResponse,
    StreamPartition,
)

from tests.synthetic.bigtable.history import (
    FAMILIES,
    AddToCell,
    Change,
    DeleteCells,
    DeleteFamily,
    Entry,
    KeyRange,
    MergeToCell,
    SetCell,
)


def _pb(message: Any) -> Any:
    """Return the class of the protocol buffers behind one of proto-plus, which is slow."""
    return type(message.pb(message()))


PartitionsRequest: Final = _pb(GenerateInitialChangeStreamPartitionsRequest)
PartitionsResponse: Final = _pb(GenerateInitialChangeStreamPartitionsResponse)
ReadRequest: Final = _pb(ReadChangeStreamRequest)
ReadResponse: Final = _pb(ReadChangeStreamResponse)
Partition: Final = _pb(StreamPartition)
_DataChange: Final = _pb(ReadChangeStreamResponse.DataChange)
_Chunk: Final = _pb(ReadChangeStreamResponse.MutationChunk)
_Type: Final = ReadChangeStreamResponse.DataChange.Type
_DATA_CHANGE_TAG: Final = b"\x0a"


def table_with_stream(name: str) -> bytes:
    """Return a table whose change stream is kept for a week, as GetTable answers."""
    table = Table(name=name, column_families={family: {} for family in FAMILIES})
    Table.pb(table).change_stream_config.retention_period.FromSeconds(7 * 24 * 3_600)
    return bytes(Table.serialize(table))


def partition_of(keys: KeyRange) -> Any:
    """Return a range of keys as a StreamPartition."""
    partition = Partition()
    partition.row_range.start_key_closed, partition.row_range.end_key_open = keys
    return partition


def keys_of(partition: Any) -> KeyRange:
    """Return the keys of a StreamPartition."""
    return KeyRange(partition.row_range.start_key_closed, partition.row_range.end_key_open)


def data_changes(change: Change, bytes_max: int) -> list[bytes]:
    """Return the serialized DataChanges of a change; the last one lacks token and watermark.

    A message ends where more than a number of bytes would be in it, and after each chunk of a value
    that is not the value's last one.
    """
    message = _DataChange(
        type_=_Type.GARBAGE_COLLECTION if change.is_garbage_collection else _Type.USER,
        source_cluster_id=change.cluster,
        row_key=change.row_key,
        tiebreaker=change.tie_breaker,
    )
    message.commit_timestamp.FromMicroseconds(change.commit_us)
    messages, size = [], 0
    for entry in change.entries:
        for chunk, length in _chunks(entry, bytes_max):
            if size and size + length > bytes_max:
                messages.append(message.SerializeToString())
                message, size = _DataChange(type_=_Type.CONTINUATION), 0
            message.chunks.append(chunk)
            size += length
            if chunk.HasField("chunk_info") and not chunk.chunk_info.last_chunk:
                # Nothing but the value's next chunk may follow it.
                size = bytes_max
    message.done = True
    messages.append(message.SerializeToString())
    return messages


def response(data_change: bytes) -> bytes:
    """Return a serialized DataChange as the record of a ReadChangeStreamResponse."""
    length, head = len(data_change), bytearray(_DATA_CHANGE_TAG)
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + data_change


def ending(token: str, watermark_us: int) -> bytes:
    """Return the fields that end the last message of a change, to stand after the others."""
    message = _DataChange(token=token)
    message.estimated_low_watermark.FromMicroseconds(watermark_us)
    return bytes(message.SerializeToString())


def _chunks(entry: Entry, bytes_max: int) -> Iterator[tuple[Any, int]]:
    """The chunks of an entry, and about how long each is."""
    chunk = _Chunk()
    mutation = chunk.mutation
    match entry:
        case SetCell():
            cell = mutation.set_cell
            cell.family_name, cell.column_qualifier = entry.family, entry.qualifier
            cell.timestamp_micros = entry.timestamp_us
            value = entry.value
            if len(value) > bytes_max:
                yield from _value_chunks(chunk, value, bytes_max)
                return
            cell.value = value
        case DeleteCells():
            column = mutation.delete_from_column
            column.family_name, column.column_qualifier = entry.family, entry.qualifier
            column.time_range.start_timestamp_micros = entry.start_us
            column.time_range.end_timestamp_micros = entry.end_us
        case DeleteFamily():
            mutation.delete_from_family.family_name = entry.family
        case AddToCell() | MergeToCell():
            is_sum = isinstance(entry, AddToCell)
            cell = mutation.add_to_cell if is_sum else mutation.merge_to_cell
            cell.family_name, cell.column_qualifier.raw_value = entry.family, entry.qualifier
            cell.timestamp.raw_timestamp_micros = entry.timestamp_us
            if isinstance(entry, AddToCell):
                cell.input.int_value = entry.input_value
            else:
                cell.input.raw_value = entry.state
    yield chunk, chunk.ByteSize()


def _value_chunks(chunk: Any, value: bytes, bytes_max: int) -> Iterator[tuple[Any, int]]:
    """A long value in several; the first one has the cell's other fields."""
    for offset in range(0, len(value), bytes_max):
        part = value[offset : offset + bytes_max]
        chunk.mutation.set_cell.value = part
        chunk.chunk_info.chunked_value_size = len(value)
        chunk.chunk_info.chunked_value_offset = offset
        chunk.chunk_info.last_chunk = offset + bytes_max >= len(value)
        yield chunk, len(part)
        chunk = _Chunk()
