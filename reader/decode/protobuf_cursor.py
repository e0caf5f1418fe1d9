"""Protobuf's wire format, read at thousands of places of one buffer at the same time.

See "Encoding" in the documentation of protocol buffers. A Cursors object has a place in each of
many rows and takes the same step in all of them. A row that is not as expected is excluded, and the
others go on.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from slackwater.timestamp import NANOSECONDS_PER_MICROSECOND, NANOSECONDS_PER_SECOND

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

VARINT: Final = 0
LEN: Final = 2
# Zeros after the buffer, where the cursors of excluded rows stay: nothing that is expected stands
# there, and a length of 0 moves them by two bytes a step.
PADDING: Final = 4_096
_WORD: Final = 8
_MICROSECONDS_PER_SECOND: Final = 1_000_000


def tag(field: int, wire_type: int) -> int:
    """Return the byte before a field's value, for fields up to 15."""
    return field << 3 | wire_type


# The fields of a Timestamp.
_SECONDS: Final = tag(1, VARINT)
_NANOS: Final = tag(2, VARINT)


class Cursors:
    """The places of a cursor in each of many rows.

    Args:
        buffer: the bytes, with PADDING zeros at the end.
        at: where each row begins.

    Attributes:
        at: the place of the cursor in each row.
        is_good: whether each row was as expected so far; the other rows are excluded.
    """

    def __init__(self, buffer: Bytes, at: Ints) -> None:
        self.buffer = buffer
        self.at = at
        self.is_good: Flags = np.ones(len(at), np.bool_)
        self._nowhere = len(buffer) - PADDING

    def require(self, condition: Flags) -> None:
        """Exclude the rows for which the condition is false."""
        if not condition.all():
            self.is_good &= condition
            self.at = np.where(self.is_good, self.at, self._nowhere)

    def expect(self, byte: int) -> None:
        """Step over one byte, and exclude the rows in which it has another value."""
        self.require(self.buffer[self.at] == byte)
        self.at = self.at + 1

    def byte(self) -> Bytes:
        """Step over one byte and return it."""
        value = self.buffer[self.at]
        self.at = self.at + 1
        return value

    def length(self) -> Ints:
        """Step over a length, a varint of at most 28 bits, and return it."""
        return self._varint(28)

    def varint(self) -> Ints:
        """Step over a varint of at most 64 bits, and return it."""
        return self._varint(70)

    def _varint(self, bits_max: int) -> Ints:
        first = self.buffer[self.at]
        value = first.astype(np.int64)
        self.at = self.at + 1
        going_on = first >= 0x80
        shift = 0
        while going_on.any():
            shift += 7
            if shift == bits_max:
                self.require(~going_on)
                break
            following = self.buffer[self.at]
            # The highest bit of the byte before, which says that another follows, was counted as
            # a digit: the subtraction takes it out.
            digits = (following.astype(np.int64) - 1) << shift
            if going_on.all():
                self.at = self.at + 1
                going_on = following >= 0x80
            else:
                digits *= going_on
                self.at = self.at + going_on
                going_on = going_on & (following >= 0x80)
            value += digits
        return value

    def span(self, byte: int) -> tuple[Ints, Ints]:
        """Step to the content of a field of bytes; return where it begins and where it ends.

        Args:
            byte: the field's tag; rows with another one are excluded.
        """
        self.expect(byte)
        size = self.length()
        return self.at, self.at + size

    def skip_to(self, place: Ints) -> None:
        """Go to these places; excluded rows stay where they are."""
        self.at = place if self.is_good.all() else np.where(self.is_good, place, self._nowhere)

    def optional_span(self, byte: int, limit: Ints) -> tuple[Ints, Ints]:
        """Step over a field of bytes where it comes next; elsewhere it is empty, its default.

        Args:
            byte: the field's tag.
            limit: where each row's fields end.
        """
        is_sent = (self.at < limit) & (self.buffer[self.at] == byte)
        begin = end = self.at
        if is_sent.any():
            step = self._behind_tag(is_sent)
            size = step.length()
            self.require(step.is_good)
            begin = np.where(is_sent, step.at, self.at)
            end = begin + size
            self.skip_to(end)
        return begin, end

    def optional_varint(self, byte: int, limit: Ints) -> Ints:
        """Step over a number where it comes next, and return it; elsewhere it is 0."""
        is_sent = (self.at < limit) & (self.buffer[self.at] == byte)
        if not is_sent.any():
            return np.zeros(len(limit), np.int64)
        step = self._behind_tag(is_sent)
        value = step.varint()
        if step is not self:
            self.require(step.is_good)
            self.skip_to(np.where(is_sent, step.at, self.at))
        return value

    def _behind_tag(self, is_sent: Flags) -> "Cursors":
        """Return cursors behind the byte where a field comes next, and elsewhere at zeros."""
        if is_sent.all():
            self.at = self.at + 1
            return self
        return Cursors(self.buffer, np.where(is_sent, self.at + 1, self._nowhere))

    def timestamp_us(self, byte: int) -> Ints:
        """Step over a google.protobuf.Timestamp; return it in whole microseconds.

        Args:
            byte: the field's tag; rows with another one are excluded, as are times before 1970.
        """
        _, end = self.span(byte)
        seconds = self.optional_varint(_SECONDS, end)
        nanos = self.optional_varint(_NANOS, end)
        # Protobuf's parser keeps 32 bits of a number that has more.
        is_usual = (seconds >> 35 == 0) & (nanos >= 0) & (nanos < NANOSECONDS_PER_SECOND)
        self.require(is_usual & (self.at == end))
        return seconds * _MICROSECONDS_PER_SECOND + nanos // NANOSECONDS_PER_MICROSECOND


def matches_at(buffer: Bytes, places: Ints, text: bytes) -> Flags:
    """Return at which places of a buffer this text stands, comparing words of eight bytes.

    After each place, the buffer must have room for the whole text and one more word.
    """
    size = -(-len(text) // _WORD) * _WORD
    words = bytes_at(buffer, places, size).view("<u8")
    if beyond := size - len(text):
        words[:, -1] &= np.uint64((1 << 8 * (_WORD - beyond)) - 1)
    is_equal = words == np.frombuffer(text.ljust(size, b"\0"), "<u8")
    is_match: Flags = np.ones(len(places), np.bool_) if is_equal.all() else is_equal.all(axis=1)
    return is_match


def bytes_at(buffer: Bytes, places: Ints, size: int) -> Bytes:
    """Return a copy of so many bytes from each of these places on, a row for each place.

    They are copied together: taking them one by one, or in words, takes five times as long.
    """
    windows = np.ndarray((len(buffer) - size + 1,), f"V{size}", buffer, strides=(1,))
    return windows[places].view(np.uint8).reshape(len(places), size)
