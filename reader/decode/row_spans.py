"""The places of the rows of many PartialResultSets, found without parsing the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from slackwater.reader.decode.protobuf_cursor import LEN, PADDING, VARINT, Cursors, Flags, Ints, tag

_METADATA: Final = tag(1, LEN)
_VALUES: Final = tag(2, LEN)
# The fields that may follow a message's values.
_RESUME_TOKEN: Final = tag(4, LEN)
_STATS: Final = tag(5, LEN)
_PRECOMMIT_TOKEN: Final = tag(8, LEN)
_LAST: Final = tag(9, VARINT)
# From this size on, protobuf's own parser finds a message's rows.
_LARGE_BYTES: Final = 32_768


class RowSpans:
    """The rows of some messages in one buffer.

    Attributes:
        joined, buffer: the bytes, with protobuf_cursor.PADDING zeros at the end.
        begin, end: the place of each row, in the messages' order.
        message: the index of each row's message.
        is_good: whether the rows of each message were as expected so far.
    """

    def __init__(self, joined: bytes, begin: Ints, end: Ints, message: Ints, is_good: Flags):
        self.buffer = np.frombuffer(joined, np.uint8)
        self.joined = joined
        self.begin = begin
        self.end = end
        self.message = message
        self.is_good = is_good

    @classmethod
    def of(cls, messages: Sequence[bytes]) -> RowSpans:
        """Find the rows, one row of each message at a time."""
        sizes = np.fromiter(map(len, messages), np.int64, len(messages))
        if sizes.mean() > _LARGE_BYTES:
            return cls._of_large(messages)
        joined = b"".join((*messages, bytes(PADDING)))
        ends = np.cumsum(sizes)
        at = Cursors(np.frombuffer(joined, np.uint8), ends - sizes)
        number = np.arange(len(messages))
        _skip_metadata(at)
        begins, stops, owners = [], [], []
        active = number
        while len(active):
            step = Cursors(at.buffer, at.at[active])
            is_value = (step.buffer[step.at] == _VALUES) & (step.at < ends[active])
            active = active[is_value]
            if not len(active):
                break
            step = Cursors(at.buffer, step.at[is_value])
            begin, stop = step.span(_VALUES)
            begins.append(begin)
            stops.append(stop)
            owners.append(active)
            at.at[active] = stop
        is_good = _at_their_end(at, ends)
        if not begins:
            nothing = np.zeros(0, np.int64)
            return cls(joined, nothing, nothing, nothing, is_good)
        message = np.concatenate(owners)
        order = np.argsort(message, kind="stable")
        begin, stop = np.concatenate(begins)[order], np.concatenate(stops)[order]
        return cls(joined, begin, stop, message[order], is_good)

    @classmethod
    def _of_large(cls, messages: Sequence[bytes]) -> RowSpans:
        """Find the rows of large messages: there are many rows in few messages."""
        values: list[bytes] = []
        counts = np.zeros(len(messages), np.int64)
        is_good = np.ones(len(messages), np.bool_)
        for i, message in enumerate(messages):
            part = _Parts.FromString(message)
            is_good[i] &= not part.chunked_value
            counts[i] = len(part.values)
            values.extend(part.values)
        sizes = np.fromiter(map(len, values), np.int64, len(values))
        ends = np.cumsum(sizes)
        joined = b"".join((*values, bytes(PADDING)))
        owner = np.repeat(np.arange(len(messages)), counts)
        return cls(joined, ends - sizes, ends, owner, is_good)

    def exclude(self, is_good: Flags) -> Flags:
        """Exclude the messages of the rows that are not good; return which rows remain."""
        self.is_good[self.message[~is_good]] = False
        return np.asarray(self.is_good[self.message])


def _skip_metadata(at: Cursors) -> None:
    has_metadata = at.buffer[at.at] == _METADATA
    if has_metadata.any():
        step = Cursors(at.buffer, at.at[has_metadata])
        _, end = step.span(_METADATA)
        at.at[has_metadata] = end


def _at_their_end(at: Cursors, ends: Ints) -> Flags:
    """Return the messages in which nothing unexpected follows the values."""
    for expected in (_RESUME_TOKEN, _STATS, _PRECOMMIT_TOKEN, _LAST):
        follows = (at.at < ends) & (at.buffer[at.at] == expected)
        if follows.any():
            step = Cursors(at.buffer, at.at[follows])
            end = step.at + 2 if expected == _LAST else step.span(expected)[1]
            at.at[follows] = end
    return np.asarray(at.at == ends)


def _parts() -> Any:
    """Return the class of a PartialResultSet whose values stay bytes."""
    file = FileDescriptorProto(name="slackwater_parts.proto", package="slackwater", syntax="proto3")
    message = file.message_type.add(name="Parts")
    kind = FieldDescriptorProto
    message.field.add(name="values", number=2, type=kind.TYPE_BYTES, label=kind.LABEL_REPEATED)
    message.field.add(
        name="chunked_value", number=3, type=kind.TYPE_BOOL, label=kind.LABEL_OPTIONAL
    )
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("slackwater.Parts"))


_Parts: Final = _parts()
