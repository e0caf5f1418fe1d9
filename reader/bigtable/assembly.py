"""Changes that come in parts, or are written in another way, as messages of the usual form.

The usual form is that of a change in one message: the fields in the order of their numbers, none
that is unknown, each value whole. reader.bigtable.change_rows decodes nothing else.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from slackwater.reader.bigtable.service import ChangeMessage
from slackwater.reader.errors import DecodeError

# Added to the number of a mutation that is an aggregate, in the field for a timestamp's origin,
# which no column has. The aggregate itself is written as a cell that is set.
AGGREGATE: Final = 1 << 20
# The type of a message that goes on with the change of the one before.
CONTINUATION: Final = 3


def assembled(partition: str, messages: Sequence[bytes], is_usual: Iterator[bool]) -> list[bytes]:
    """Return a message of the usual form for each change.

    Args:
        partition: its keys, as a text.
        messages: of whole changes, in their order.
        is_usual: whether each is of that form already; no more is taken than there are messages.

    Raises:
        DecodeError: a message does not continue the one before, or holds what is not known.
    """
    changes, first = list[bytes](), None
    for message, needs_nothing in zip(messages, is_usual, strict=False):
        if needs_nothing and first is None:
            changes.append(message)
            continue
        part = ChangeMessage.FromString(message)
        data = part.data_change
        if (data.type_ == CONTINUATION) != (first is not None):
            raise DecodeError(
                f"a change in {partition} has the type {data.type_} where its"
                f" {'next' if first is not None else 'first'} message is due."
            )
        if first is None:
            first = part
        else:
            first.data_change.chunks.extend(data.chunks)
        if data.done:
            first.data_change.done = True
            first.data_change.commit_timestamp.SetInParent()
            first.data_change.estimated_low_watermark.CopyFrom(data.estimated_low_watermark)
            first.data_change.estimated_low_watermark.SetInParent()
            _put_together(first.data_change, partition)
            first.DiscardUnknownFields()
            changes.append(first.SerializeToString())
            first = None
    return changes


def _put_together(change: Any, partition: str) -> None:
    """Let each chunk hold a whole mutation, in the usual form."""
    chunks, cut, values = list(change.chunks), None, list[bytes]()
    del change.chunks[:]
    for chunk in chunks:
        mutation = chunk.mutation
        if chunk.HasField("chunk_info"):
            values.append(mutation.set_cell.value)
            # The first part has the cell's other fields.
            cut = mutation if cut is None else cut
            if not chunk.chunk_info.last_chunk:
                continue
            value, size = b"".join(values), chunk.chunk_info.chunked_value_size
            if len(value) != size or not cut.HasField("set_cell"):
                raise DecodeError(f"a value in {partition} has {len(value)} bytes of {size}.")
            mutation, cut, values = cut, None, []
            mutation.set_cell.value = value
        _make_usual(mutation)
        change.chunks.add().mutation.CopyFrom(mutation)
    if cut is not None:
        raise DecodeError(f"a change in {partition} ends within a value.")


def _make_usual(mutation: Any) -> None:
    kind = mutation.WhichOneof("mutation")
    if kind is None:
        raise DecodeError(
            f"a change holds a mutation that is not known: {mutation!r}.",
            "A newer version of slackwater may know it",
        )
    mutation.timestamp_origin = 0
    if kind in {"add_to_cell", "merge_to_cell"}:
        cell, number = getattr(mutation, kind), mutation.DESCRIPTOR.fields_by_name[kind].number
        fields = {
            "family_name": cell.family_name,
            "column_qualifier": cell.column_qualifier.raw_value,
            "timestamp_micros": cell.timestamp.raw_timestamp_micros,
            "value": _aggregated(cell.input),
        }
        mutation.set_cell.CopyFrom(type(mutation.set_cell)(**fields))
        mutation.timestamp_origin = AGGREGATE + number


def _aggregated(value: Any) -> bytes:
    """Return what is added; a number as the eight bytes that its cell would hold."""
    whole: bytes = value.raw_value
    if value.WhichOneof("kind") == "int_value":
        whole = value.int_value.to_bytes(8, "big", signed=True)
    return whole
