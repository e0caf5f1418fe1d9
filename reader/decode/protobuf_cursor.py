"""Protobuf's wire format, read at thousands of places of one buffer at the same time.

See "Encoding" in the documentation of protocol buffers. A Cursors object stands at one place in
each of many rows and takes the same step in all of them; a row that does not look as expected is
noted and left out, so that the others go on.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

VARINT: Final = 0
LEN: Final = 2
# Zeros behind the buffer, where the cursors of rows that are left out stay: whatever is expected
# is not found there, and a length of 0 moves them by two bytes a step.
PADDING: Final = 4_096
_WORD: Final = 8


def tag(field: int, wire_type: int) -> int:
    """The byte before a field's value; fields above 15 have more than a byte."""
    return field << 3 | wire_type


class Cursors:
    """A place in each of many rows.

    Args:
        buffer: bytes, with PADDING zeros at its end.
        at: where each row begins.
    """

    def __init__(self, buffer: Bytes, at: Ints) -> None:
        self.buffer = buffer
        self.at = at
        self.is_good: Flags = np.ones(len(at), np.bool_)
        self._nowhere = len(buffer) - PADDING

    def require(self, condition: Flags) -> None:
        """Leave out the rows for which this is not so."""
        if not condition.all():
            self.is_good &= condition
            self.at = np.where(self.is_good, self.at, self._nowhere)

    def expect(self, byte: int) -> None:
        """Take a step over a byte of this value."""
        self.require(self.buffer[self.at] == byte)
        self.at = self.at + 1

    def byte(self) -> Bytes:
        """Take a step over one byte."""
        value = self.buffer[self.at]
        self.at = self.at + 1
        return value

    def length(self) -> Ints:
        """Take a step over a length, a varint of at most 28 bits."""
        first = self.buffer[self.at]
        value = first.astype(np.int64)
        self.at = self.at + 1
        going_on = first >= 0x80
        shift = 0
        while going_on.any():
            shift += 7
            if shift == 28:
                self.require(~going_on)
                break
            following = self.buffer[self.at]
            # The byte before it counted its sign that another follows as a digit: take it out.
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
        """Expect a field of bytes, stay at its content: where that begins, and where it ends."""
        self.expect(byte)
        size = self.length()
        return self.at, self.at + size

    def skip_to(self, place: Ints) -> None:
        """Go on at these places; rows that were left out stay where they are."""
        self.at = place if self.is_good.all() else np.where(self.is_good, place, self._nowhere)


def matches_at(buffer: Bytes, places: Ints, text: bytes) -> Flags:
    """At which places of a buffer this text stands, compared in words of eight bytes.

    Behind each place the buffer must have bytes for the whole text and one word more.
    """
    words = np.ndarray((len(buffer) - _WORD + 1,), "<u8", buffer, strides=(1,))
    is_match: Flags = np.ones(len(places), np.bool_)
    remaining: Ints | slice = slice(None)
    for begin in range(0, len(text), _WORD):
        part = text[begin : begin + _WORD]
        word = words[places + begin]
        if len(part) < _WORD:
            word = word & np.uint64((1 << 8 * len(part)) - 1)
        is_equal = word == np.uint64(int.from_bytes(part, "little"))
        if not is_equal.all():
            is_match[remaining] = is_equal
            remaining = np.flatnonzero(is_match)
            places = places[is_equal]
    return is_match
