"""The places of keys and values in many JSON texts, found in all of them at once.

This is the first step of simdjson (Langdale and Lemire, "Parsing Gigabytes of JSON per Second",
2019) with numpy: the quotation marks show what is inside a string, and the brackets outside of
strings show how deep a place is nested. Keys and values can then be cut out without being parsed.
"""

from typing import Final

import numpy as np

from slackwater.reader.decode.protobuf_cursor import Bytes, Flags, Ints, matches_at

_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_COLON: Final = ord(":")
_SPACE: Final = ord(" ")
_OPEN: Final = ord("{")
_CLOSE: Final = ord("}")
# The bit in which a square bracket differs from a curly one.
_CURLY: Final = 0x20
# Escapes that every writer of JSON writes in the same way.
_PLAIN_ESCAPES: Final = np.isin(np.arange(256), np.frombuffer(rb"\"bfnrt", np.uint8))
# Zeros after the texts, so that a key can be compared at any place where one could be.
PADDING: Final = bytes(64)


class JsonStructure:
    """The brackets, strings and keys of JSON objects that follow each other in a buffer.

    Args:
        buffer: the texts, and PADDING after them.
        ends: where each text ends.
        is_spaced: there may be white space between values, which is removed.

    Attributes:
        buffer, ends: without white space between values.
        key_begin, value_begin: where each key and its value begin.
        key_depth: how many brackets are open there: at most 127, and 80 in Spanner's JSON.
        first_key: of each text, the index of its first key; and at the end the number of keys.
        escapes: the places of the escapes in strings.
        odd_escapes: those that another writer might write differently.

    Raises:
        ValueError: a text is not a JSON object.
    """

    def __init__(self, buffer: Bytes, ends: Ints, *, is_spaced: bool) -> None:
        self.buffer, self.ends = buffer, ends
        if is_spaced:
            self._remove_blanks()
        at, byte = self._marks()
        quotes = np.flatnonzero(byte == _QUOTE)
        if len(quotes) % 2:
            raise ValueError("a string has no end")
        if (quotes[1::2] - quotes[::2] != 1).any():
            is_outside = ~_is_inside(byte) | (byte == _QUOTE)
            at, byte = at[is_outside], byte[is_outside]
            quotes = np.flatnonzero(byte == _QUOTE)
        # In ASCII, these bits tell an opening bracket from a closing one.
        step = (3 - (byte & 6).view(np.int8)) * (byte != _QUOTE)
        depth = np.cumsum(step, dtype=np.int8)
        last = np.searchsorted(at, self.ends) - 1
        if (
            (at[last] != self.ends - 1).any()
            or depth[last].any()
            or (byte[last] != _CLOSE).any()
            or (at[np.concatenate(([0], last[:-1] + 1))] != self.begins).any()
        ):
            raise ValueError("a text is not a JSON object")
        closing = quotes[1::2]
        keys = closing[self.buffer[at[closing] + 1] == _COLON]
        self.key_depth = depth[keys]
        self.first_key = np.concatenate(([0], np.searchsorted(keys, last)))
        self.key_begin, self.value_begin = at[keys - 1], at[keys] + 2

    @property
    def begins(self) -> Ints:
        """The place where each text begins."""
        return np.concatenate(([0], self.ends[:-1]))

    def _marks(self, *, with_blanks: bool = False) -> tuple[Ints, Bytes]:
        """Return the places of brackets and unescaped quotation marks, and which each is."""
        buffer = self.buffer[: len(self.buffer) - len(PADDING)]
        folded = buffer | _CURLY
        is_mark = (buffer == _QUOTE) | (folded == _OPEN) | (folded == _CLOSE)
        if with_blanks:
            is_mark |= buffer <= _SPACE
        self.escapes, self.odd_escapes = escapes_in(buffer)
        is_mark[self.escapes + 1] = False
        at = np.flatnonzero(is_mark)
        return at, buffer[at]

    def _remove_blanks(self) -> None:
        at, byte = self._marks(with_blanks=True)
        blanks = at[~_is_inside(byte) & (byte <= _SPACE)]
        stays = np.ones(len(self.buffer), np.bool_)
        stays[blanks] = False
        self.ends = self.ends - np.searchsorted(blanks, self.ends)
        self.buffer = self.buffer[stays]

    def text_index(self, places: Ints) -> Ints:
        """Return the index of the text that each place lies in."""
        return np.searchsorted(self.ends, places, side="right").astype(np.int64)

    def key_name(self, key: int) -> bytes:
        """Return the name of a key."""
        return self.buffer[self.key_begin[key] + 1 : self.value_begin[key] - 2].tobytes()

    def have_name(self, keys: Ints, name: bytes) -> Flags:
        """Return which of these keys have this name, of at most 32 bytes."""
        return self.matches_at(self.key_begin[keys], b'"' + name + b'":')

    def matches_at(self, places: Ints, text: bytes) -> Flags:
        """Return at which of these places this text stands, of at most 40 bytes."""
        return matches_at(self.buffer, places, text)


def escapes_in(buffer: Bytes) -> tuple[Ints, Ints]:
    """Return the places of the escapes, and of those that another writer might write differently.

    A backslash escapes if an even number of backslashes stands before it.

    Raises:
        ValueError: the text ends in an escape.
    """
    at = np.flatnonzero(buffer == _BACKSLASH)
    if not len(at):
        return at, at
    number = np.arange(len(at))
    begins = np.concatenate(([True], np.diff(at) != 1))
    run_begin = np.maximum.accumulate(np.where(begins, number, 0))
    escapes = at[(number - run_begin) & 1 == 0]
    if escapes[-1] + 1 == len(buffer):
        raise ValueError("a text ends in an escape")
    return escapes, escapes[~_PLAIN_ESCAPES[buffer[escapes + 1]]]


def _is_inside(byte: Bytes) -> Flags:
    """Return after which of these marks a string is open."""
    # The sum may overflow: only its lowest bit is used.
    quotes = np.cumsum((byte == _QUOTE).view(np.uint8), dtype=np.uint8)
    return (quotes & 1).view(np.bool_)
